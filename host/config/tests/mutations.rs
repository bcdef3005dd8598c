//! Random changes of the reference never panic, and what is accepted keeps its promises. Deterministic: its own generator.

use std::path::Path;

use millrace_config::{Config, PoolSize, TenantAccess, parse};

/// Steps of a 64-bit linear congruential generator (Knuth's constants); the high bits are used.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

const TOKENS: [&str; 26] = [
    "=",
    "[",
    "]",
    "[[",
    "{",
    "}",
    "\"",
    "'",
    "#",
    ".",
    ",",
    "\n",
    "-1",
    "0",
    "99999999999999999999",
    "1e400",
    "nan",
    "true",
    "\"\"",
    "[]",
    "{}",
    "1979-05-27",
    "[pool.x]\n",
    "[tenant.x]\n",
    "\u{0}",
    "é",
];

/// One random change: lines dropped, doubled or swapped, values replaced, tokens put in, characters removed.
fn change(text: &str, random: &mut Random) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let line = random.below(lines.len());
    let other = random.below(lines.len());
    match random.below(7) {
        0 => drop(lines.remove(line)),
        1 => lines.insert(other, lines[line].clone()),
        2 => lines.swap(line, other),
        3 => {
            if let Some((key, _)) = lines[line].split_once(" = ") {
                lines[line] = format!("{key} = {}", TOKENS[random.below(TOKENS.len())]);
            }
        }
        4 => {
            let value = lines[other].split_once(" = ").map(|(_, value)| value.to_owned());
            if let (Some((key, _)), Some(value)) = (lines[line].split_once(" = "), value) {
                lines[line] = format!("{key} = {value}");
            }
        }
        kind => {
            let mut chars: Vec<char> = lines[line].chars().collect();
            let at = random.below(chars.len() + 1);
            if kind == 5 {
                chars.splice(at..at, TOKENS[random.below(TOKENS.len())].chars());
            } else if at < chars.len() {
                chars.remove(at);
            }
            lines[line] = chars.into_iter().collect();
        }
    }
    lines.join("\n")
}

/// What every accepted configuration promises, stated apart from the code that checks it.
fn check_promises(config: &Config) {
    assert_eq!(config.models.len(), 1);
    assert!(!config.lanes.is_empty() && !config.tenants.is_empty());
    for pool in &config.pools {
        assert!(pool.device < config.devices.len() && pool.model < config.models.len());
        assert_eq!(pool.page_tokens % 16, 0);
        assert!(pool.max_step_tokens > 0 && pool.max_sequences > 0);
        assert!(!matches!(pool.size, PoolSize::Pages(0) | PoolSize::MemoryMib(0)));
        assert!(config.tenants.len() == 1 || config.zeroes_freed(pool));
    }
    for lane in &config.lanes {
        let (prefill, decode) = (&config.pools[lane.prefill.0 as usize], &config.pools[lane.decode.0 as usize]);
        assert_eq!((prefill.stage.to_string(), decode.stage.to_string()), ("prefill".to_owned(), "decode".to_owned()));
        assert_eq!((prefill.page_tokens, prefill.model), (decode.page_tokens, decode.model));
    }
    for tenant in &config.tenants {
        match &tenant.access {
            TenantAccess::Open => assert!(config.tenants.len() == 1 && config.server.listen.ip().is_loopback()),
            TenantAccess::Keys(keys) => assert!(!keys.is_empty()),
        }
        assert!(!tenant.allowed_lanes.is_empty());
        assert!(tenant.allowed_lanes.iter().all(|lane| (lane.0 as usize) < config.lanes.len()));
    }
}

#[test]
fn random_changes_never_panic() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut accepted = 0;
    let mut refused = 0;
    for (name, seed) in [("reference.toml", 1), ("tenants.toml", 2)] {
        let original = std::fs::read_to_string(examples.join(name)).unwrap();
        let mut random = Random(seed);
        for _ in 0..2000 {
            let mut text = original.clone();
            for _ in 0..=random.below(6) {
                text = change(&text, &mut random);
            }
            match parse(&text, name) {
                Ok(config) => {
                    check_promises(&config);
                    assert!(!config.summary().is_empty());
                    accepted += 1;
                }
                Err(errors) => {
                    assert!(errors.total() > 0 && !errors.to_string().is_empty());
                    refused += 1;
                }
            }
        }
    }
    // Both outcomes must occur often, or this test says nothing.
    assert!(accepted > 300 && refused > 300, "{accepted} accepted, {refused} refused");
}

#[test]
fn deep_and_long_texts_are_refused_quickly() {
    for text in [
        format!("a{} = 1", ".a".repeat(400_000)),
        format!("[a{}]", ".a".repeat(400_000)),
        format!("a = {}", "[".repeat(900_000)),
        format!("a = {}", "{a=".repeat(300_000)),
        "[a]\n".repeat(200_000),
        format!("[policy.route]\nconfig = {{ a = {}1{} }}", "[".repeat(1000), "]".repeat(1000)),
        format!("[pool.p]\n{}", (0..60_000).map(|n| format!("k{n} = 1\n")).collect::<String>()),
    ] {
        assert!(parse(&text, "x.toml").is_err());
    }
}
