//! `examples/`: the reference holds every key and every default, and every example is a configuration. Reads files of the
//! repository, opens nothing that they name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use millrace_config::{ErrorKind, known_keys, load, parse};
use toml::de::{DeTable, DeValue};

/// The tables of the reference with nothing but what has no default.
const MINIMAL: &str = r#"
[model.example]
path = "model.gguf"
[pool.prefill]
stage = "prefill"
[pool.decode]
stage = "decode"
[lane.default]
prefill = "prefill"
decode = "decode"
[tenant.example]
key_sha256 = "KEY"
"#;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn reference() -> String {
    std::fs::read_to_string(examples().join("reference.toml")).unwrap()
}

/// Whether a line is a key that is off by default: `#key = value`.
fn is_off(line: &str) -> bool {
    line.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()) && rest.contains(" = "))
}

/// The reference with those lines turned on that `chosen` picks by their number.
fn turned_on(text: &str, chosen: impl Fn(usize) -> bool) -> String {
    let line = |(number, line): (usize, &str)| {
        let line = if is_off(line) && chosen(number) { line.trim_start_matches('#') } else { line };
        format!("{line}\n")
    };
    text.lines().enumerate().map(line).collect()
}

#[test]
fn the_reference_holds_the_defaults() {
    let text = reference();
    let written = parse(&text, "x.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let key = text.lines().find_map(|line| line.strip_prefix("key_sha256 = \"")).unwrap().trim_end_matches('"');
    let minimal = parse(&MINIMAL.replace("KEY", key), "x.toml").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(written, minimal);
}

#[test]
fn the_reference_holds_every_key_and_no_other() {
    let text = turned_on(&reference(), |_| true);
    let root = DeTable::parse(&text).unwrap();
    let mut written = BTreeSet::new();
    collect(root.get_ref(), "", &mut written);
    let known = known_keys();
    let missing: Vec<&String> = known.difference(&written).collect();
    let unknown: Vec<&String> = written.difference(&known).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing in reference.toml: {missing:?}; unknown: {unknown:?}");
    assert!(known.len() > 60, "{}", known.len());
}

/// Paths of all keys, with chosen names as `*`.
fn collect(table: &DeTable<'_>, path: &str, into: &mut BTreeSet<String>) {
    for (key, value) in table {
        let named = ["model", "device", "pool", "lane", "tenant"].contains(&path);
        let key = if named { "*" } else { key.get_ref().as_ref() };
        let below = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        if !named {
            into.insert(below.clone());
        }
        match value.get_ref() {
            DeValue::Table(table) if key != "config" => collect(table, &below, into),
            _ => {}
        }
    }
}

/// A pin conflicts with the built-in component beside it, a recording's bound with its directory that is off; everything else that
/// is off can be turned on as it stands.
#[test]
fn what_is_off_can_be_turned_on() {
    let text = reference();
    let off: Vec<(usize, &str)> = text.lines().enumerate().filter(|(_, line)| is_off(line)).collect();
    assert_eq!(off.len(), 10);
    for (number, line) in off {
        let text = turned_on(&text, |other| other == number);
        match parse(&text, "x.toml") {
            Ok(_) => assert!(!line.starts_with("#sha256") && !line.starts_with("#max_mib"), "{line}"),
            Err(errors) => {
                assert!(line.starts_with("#sha256") || line.starts_with("#max_mib"), "{line}: {errors}");
                assert_eq!(errors.errors().iter().map(|error| error.kind).collect::<Vec<_>>(), [ErrorKind::Conflict]);
                let text = text.replace("component = \"builtin\"", "component = \"policy.wasm\"");
                let text = text.replace("#directory = ", "directory = ");
                parse(&text, "x.toml").unwrap_or_else(|errors| panic!("{errors}"));
            }
        }
    }
}

#[test]
fn every_key_of_the_reference_has_a_reason() {
    let text = reference();
    let mut explained = BTreeSet::new();
    let mut unexplained = BTreeSet::new();
    let mut after_comment = false;
    for line in text.lines() {
        let key = line.trim_start_matches('#').split(" = ").next().unwrap_or_default().to_owned();
        if is_off(line) || (!line.starts_with('#') && line.contains(" = ")) {
            // A comment stands for the group of lines below it.
            if after_comment {
                explained.insert(key)
            } else {
                unexplained.insert(key)
            };
        } else {
            after_comment = line.starts_with("# ") && !line.starts_with("# ===");
        }
    }
    let bare: Vec<&String> = unexplained.difference(&explained).collect();
    assert!(bare.is_empty(), "no comment above: {bare:?}");
}

#[test]
fn every_example_is_a_configuration() {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            load(&path).unwrap_or_else(|errors| panic!("{errors}"));
            names.push(path.file_stem().unwrap().to_string_lossy().into_owned());
        }
    }
    for name in ["quickstart", "reference", "tenants"] {
        assert!(names.iter().any(|found| found == name), "{name} is missing: {names:?}");
    }
}

#[test]
fn the_quickstart_has_the_two_lanes_that_it_promises() {
    let config = load(&examples().join("quickstart.toml")).unwrap();
    let lanes: Vec<(String, String)> =
        config.lanes.iter().map(|lane| (lane.name.clone(), config.precision(lane).unwrap().to_string())).collect();
    let expected = [("fast", "int8+kv-bf16/int4+kv-fp8"), ("exact", "bf16+kv-bf16/bf16+kv-bf16")];
    assert_eq!(lanes, expected.map(|(name, precision)| (name.to_owned(), precision.to_owned())));
    assert!(config.server.listen.ip().is_loopback() && config.server.admin_listen.ip().is_loopback());
    assert_eq!(config.models[0].path, Path::new("~/.cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf"));
}
