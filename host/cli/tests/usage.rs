//! How every command takes being called wrongly: exit code 2, and one message on stderr that begins with `error:`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn millrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace")).args(args).output().expect("the binary runs")
}

fn repository(path: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// What follows `Commands:` in a help text.
fn listed(help: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    let commands = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = commands.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next().map(str::to_owned));
    names.filter(|name| name != "help").collect()
}

/// Every command as it is typed.
fn commands() -> BTreeSet<String> {
    let typed = |name: String| {
        let below = listed(&millrace(&[&name, "--help"]));
        if below.is_empty() { vec![name] } else { below.iter().map(|command| format!("{name} {command}")).collect() }
    };
    listed(&millrace(&["--help"])).into_iter().flat_map(typed).collect()
}

const POLICY: [(&str, &[&str], &str); 10] = [
    ("policy new", &["x", "--lang", "rust"], "--kind"),
    ("policy new", &["x", "--lang", "cobol", "--kind", "route"], "cobol"),
    ("policy new", &["Upper", "--lang", "rust", "--kind", "route"], "cannot be a policy's name"),
    ("policy build", &["module.wasm"], "--out"),
    ("policy check", &[], "<FILE>"),
    ("policy check", &["../../plugins/dist/route.wasm", "--config", "/nowhere.toml"], "/nowhere.toml"),
    ("policy bench", &["builtin:fastest"], "builtin:fastest is no built-in policy"),
    ("policy bench", &["builtin:route", "--rows", "0"], "--rows"),
    ("policy replay", &["../../plugins/dist/route.wasm"], "--trace"),
    ("policy inspect", &[], "<FILE>"),
];

const ENGINES: [(&str, &[&str], &str); 2] = [
    ("engine prefill", &["--pool", "p"], "--config"),
    ("engine decode", &["-c", "/nowhere.toml", "--pool", "p"], "/nowhere.toml"),
];

#[cfg(not(feature = "simulate"))]
const SIMULATE: [(&str, &[&str], &str); 0] = [];
#[cfg(feature = "simulate")]
const SIMULATE: [(&str, &[&str], &str); 9] = [
    ("simulate", &["--rate", "1001"], "--rate"),
    ("simulate", &["--faults", "rain"], "rain"),
    ("simulate", &["--threads", "0"], "--threads"),
    ("simulate", &["--requests", "1001"], "--requests"),
    ("simulate", &["--seeds", "0"], "--seeds"),
    ("simulate", &["--from", "18446744073709551615", "--seeds", "2"], "begin at a lower one"),
    ("simulate", &["--aborts", "5", "--rate", "0"], "no client goes away"),
    ("simulate", &["--aborts", "5", "--faults", "reassign"], "no client goes away"),
    ("simulate", &["--reassignments", "5", "--faults", "abort"], "nothing reassigns one"),
];

/// Runs a command with arguments that are refused; `named` is what the message is about.
fn refuses(command: &str, more: &[&str], named: &str) {
    let args: Vec<&str> = command.split(' ').chain(more.iter().copied()).collect();
    let output = millrace(&args);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    // Notes about files that were opened on the way may stand before it.
    let error = message.lines().position(|line| line.starts_with("error: "));
    let told = message.lines().skip(error.unwrap_or_else(|| panic!("{args:?}: {message}"))).collect::<Vec<_>>().join("\n");
    assert!(!message.contains("error: error:"), "{args:?}: {message}");
    assert!(told.contains(named), "{args:?}: {named} in {message}");
    assert!(output.stdout.is_empty(), "{args:?}");
}

/// Those of measurements.
fn benches(model: &str) -> Vec<(&'static str, Vec<&str>, &'static str)> {
    let (small, with_tags) = (["-b", "1", "-d", "8", "-n", "4"], env!("CARGO_BIN_EXE_millrace"));
    vec![
        ("bench engine", vec!["-m", model, "-b", "0"], "-b 0"),
        ("bench engine", vec!["-m", model, "-p", "5000"], "-p 5000"),
        ("bench engine", vec!["-m", model, "-t", "5000"], "--threads"),
        ("bench handoff", vec!["-m", model, "-r", "0"], "-r 0"),
        ("bench handoff", vec!["-m", model, "-p", "5000"], "-p 5000"),
        ("bench handoff", vec!["-m", model, "--kv", "int4"], "`int4` is no KV format"),
        ("bench kv", vec!["-m", model, "-b", "0"], "-b"),
        ("bench kv", vec!["-m", model, "--pool-mib", "0"], "--pool-mib 0"),
        ("bench kv", vec!["-m", model, "-d", "5000"], "-d 5000"),
        ("bench tags", vec![], "--model"),
        ("bench tags", vec!["-m", model, "-b", "0"], "-b 0"),
        ("bench tags", vec!["-m", model, "-d", "5000"], "-d 5000"),
        ("bench tags", vec!["-m", model, "-n", "3"], "-n 3"),
        ("bench tags", vec!["-m", model, "-r", "0"], "-r 0"),
        (
            "bench tags",
            [&["-m", model][..], &small, &["--baseline", "/nowhere/millrace"]].concat(),
            "--baseline /nowhere/millrace",
        ),
        ("bench tags", [&["-m", model][..], &small, &["--baseline", with_tags]].concat(), "has page tags"),
        ("bench tags", [&["-m", model][..], &small, &["--baseline", "/bin/true"]].concat(), "is no millrace"),
        ("bench prefix", vec!["-m", model, "-p", "31"], "-p 31"),
        ("bench prefix", vec!["-m", model, "-e", "0"], "-e"),
        ("bench prefix", vec!["-m", model, "-p", "5000"], "-p 5000 -e 32, prompts of 5032 tokens"),
        ("bench serve", vec!["--url", "http://127.0.0.1:1"], "--model"),
        ("bench serve", vec!["--model", "m", "--url", "https://127.0.0.1:1"], "https is not spoken here"),
    ]
}

#[test]
fn every_command_refuses_wrong_usage_alike() {
    let (model, config) = (repository("host/model/tests/data/llama-bf16"), repository("examples/configs/glm-5.2.json"));
    let ids = format!("{model}/expected.safetensors");
    let (model, config, ids) = (model.as_str(), config.as_str(), ids.as_str());
    let bad = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(bad.path(), "[server]\nlisten = 7\n").expect("written");
    let bad = bad.path().to_str().expect("UTF-8");
    let one = ["--gpus", "8", "--gpu-memory", "140.4"];
    let cases: [(&str, Vec<&str>, &str); 30] = [
        ("serve", vec![], "--config"),
        ("serve", vec!["-c", bad], "server.listen"),
        ("serve", vec!["-c", "/nowhere.toml"], "/nowhere.toml"),
        ("check", vec!["--confg", bad], "--confg"),
        ("check", vec!["-c", bad], "server.listen"),
        ("check", vec!["-c", "/nowhere.toml"], "/nowhere.toml"),
        ("keys new", vec![], "<TENANT>"),
        ("keys new", vec!["a b"], "a tenant's name"),
        ("eval logits", vec!["--model", model, "--ids", ids], "--out"),
        ("eval logits", vec!["--model", model, "--ids", ids, "--out", "/dev/null", "--chunk", "0"], "--chunk"),
        ("eval logits", vec!["--model", model, "--ids", ids, "--out", "/dev/null", "--threads", "5000"], "--threads"),
        ("eval logits", vec!["--model", model, "--ids", "[1, 2]", "--out", "/dev/null"], "--ids takes the name of a file"),
        ("eval greedy", vec!["--model", model, "--ids", ids, "--max-tokens", "x"], "--max-tokens"),
        ("eval greedy", vec!["--model", model, "--ids", ids, "--max-tokens", "1", "--kv", "int4"], "`int4` is no KV format"),
        ("eval perplexity", vec!["--model", model], "--text"),
        ("eval perplexity", vec!["--model", model, "--ids", ids, "--window", "1"], "--window"),
        (
            "eval perplexity",
            vec!["--model", model, "--ids", ids, "--prefill-kv", "fp8", "--decode-kv", "bf16"],
            "keeps or narrows",
        ),
        ("eval compare", vec!["int5", "bf16", "--model", model, "--ids", ids], "`int5` is no recipe"),
        ("eval compare", vec!["bf16", "bf16+kv-fp8/bf16+kv-bf16", "--model", model, "--ids", ids], "keeps or narrows"),
        ("eval compare", vec!["bf16", "int4", "--model", model, "--ids", ids, "-t", "5000"], "--threads"),
        ("plan", vec!["--config", config], "--gpus"),
        ("plan", [&["--config", "/nowhere.json"][..], &one].concat(), "/nowhere.json"),
        ("plan", [&["--config", config, "--page-tokens", "65"][..], &one].concat(), "65 tokens is no multiple of 16"),
        ("plan", vec!["--config", config, "--gpus", "0", "--gpu-memory", "140.4"], "GPU"),
        ("plan", [&["--config", config, "--prefill", "int4"][..], &one].concat(), "use int4-g32"),
        ("quantize", vec![model, "/nowhere/out"], "--weights"),
        ("quantize", vec![model, "/nowhere/out", "--weights", "fp8", "--group", "32"], "--group is for --weights int4"),
        ("quantize", vec![model, "/nowhere/out", "--weights", "int4", "--group", "48"], "--group 48"),
        ("quantize", vec![model, "/nowhere/out", "--weights", "fp8", "--keep", "a("], "--keep `a(`"),
        ("quantize", vec![model, "/nowhere/out", "--weights", "fp8", "--threads", "5000"], "--threads 5000"),
    ];
    let benches = benches(model);
    let elsewhere = POLICY.iter().chain(&ENGINES).chain(&SIMULATE);
    let mut seen = BTreeSet::new();
    for (command, more, named) in
        cases.iter().chain(&benches).map(|(command, more, named)| (*command, more.as_slice(), *named)).chain(elsewhere.copied())
    {
        seen.insert(command.to_owned());
        refuses(command, more, named);
    }
    assert_eq!(seen, commands(), "every command has its cases");
}

#[test]
fn unknown_commands_are_told_alike() {
    for unknown in [&["brew"][..], &["keys", "brew"], &["eval", "brew"], &["bench", "brew"], &["policy", "brew"]] {
        let output = millrace(unknown);
        assert_eq!(output.status.code(), Some(2), "{unknown:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "), "{unknown:?}");
    }
}
