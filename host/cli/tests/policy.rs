//! `millrace policy ..` as an author meets it: what each command prints, how it exits, and that a refusal says what to mend.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn millrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace")).args(args).output().expect("the binary runs")
}

fn repository(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).to_str().expect("UTF-8").to_owned()
}

fn guest(name: &str) -> String {
    repository(&format!("tests/guests/dist/{name}.wasm"))
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn object(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", err(output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// A file of a temporary directory.
fn file(directory: &tempfile::TempDir, name: &str, text: &[u8]) -> String {
    let path: PathBuf = directory.path().join(name);
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn inspect_tells_what_a_file_is() {
    let component = repository("plugins/dist/schedule.wasm");
    let text = out(&millrace(&["policy", "inspect", &component]));
    for part in ["decides    schedule", "exports    millrace:policy/", "schedule@0.1.0: plan-step", "optional   none", "sha256"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let value = object(&millrace(&["policy", "inspect", &guest("counter-schedule"), "--json"]));
    assert_eq!((&value["kinds"], &value["component"]), (&serde_json::json!(["schedule"]), &Value::Bool(true)));
    let imports: Vec<&str> = value["imports"].as_array().expect("imports").iter().filter_map(|i| i["name"].as_str()).collect();
    assert!(imports.contains(&"millrace:policy/state@0.1.0"), "{imports:?}");
    assert_eq!(value["bytes"].as_u64(), std::fs::metadata(guest("counter-schedule")).ok().map(|file| file.len()));
}

#[test]
fn check_says_what_a_host_would() {
    let output = millrace(&["policy", "check", &repository("plugins/dist/precision.wasm")]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    assert!(text.contains("precision policy `tier-precision`") && text.ends_with("fine\n"), "{text}");
    assert!(text.contains("tier, prefill-weight-bits"), "columns by name: {text}");
    for (name, code, says) in [
        ("trap-trial-schedule", 1, "a trial decision went wrong"),
        ("refuse-init-schedule", 2, "no weights given"),
        ("refuse-config-schedule", 2, "a: missing; b: negative"),
    ] {
        let output = millrace(&["policy", "check", &guest(name)]);
        assert_eq!(output.status.code(), Some(code), "{name}: {}", err(&output));
        assert!(err(&output).contains(says) && err(&output).contains(name), "{name}: {}", err(&output));
    }
    let output = millrace(&["policy", "check", &guest("reverse-schedule"), "--kind", "route"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("build it for the world route-policy"), "{}", err(&output));
}

#[test]
fn check_takes_the_table_or_the_deployment() {
    let directory = tempfile::tempdir().expect("a directory");
    let precision = repository("plugins/dist/precision.wasm");
    let check = |config: &str| millrace(&["policy", "check", &precision, "--config", config, "--json"]);
    let good = file(&directory, "good.json", br#"{"long_context_tokens": 100}"#);
    assert_eq!(object(&check(&good))["kind"], "precision");
    let bad = file(&directory, "bad.json", br#"{"long_context": 100, "pressure_per_mille": 0}"#);
    let output = check(&bad);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("long_context"), "{}", err(&output));
    assert_eq!(check(&file(&directory, "list.json", b"[1]")).status.code(), Some(2));
    assert_eq!(check(&file(&directory, "no.json", b"{")).status.code(), Some(2));
    assert!(object(&check(&repository("examples/tenants.toml")))["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    let tight = std::fs::read_to_string(repository("examples/reference.toml")).expect("text");
    let tight = tight.replacen("memory_mib = 64", "memory_mib = 1", 1);
    let output = check(&file(&directory, "tight.toml", tight.as_bytes()));
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(err(&output).contains("raise the policy's memory limit"), "{}", err(&output));
}

#[test]
fn bench_measures_the_policy_and_not_its_fallback() {
    for policy in ["builtin:schedule", "builtin:route", "builtin:precision"] {
        let value = object(&millrace(&["policy", "bench", policy, "--rows", "16,64", "--calls", "20", "--json"]));
        let results = value["results"].as_array().expect("results");
        assert_eq!(results.iter().map(|r| r["rows"].as_u64()).collect::<Vec<_>>(), [Some(16), Some(64)]);
        for result in results {
            let (median, p99) = (&result["ns_per_decision"]["median"], &result["ns_per_decision"]["p99"]);
            assert!(median.as_u64().is_some_and(|ns| ns > 100) && p99.as_u64() >= median.as_u64(), "{result}");
        }
        for figure in ["instantiate_ns", "compile_ns", "memory_bytes"] {
            assert!(value[figure].as_u64().is_some_and(|figure| figure > 0), "{figure}: {value}");
        }
    }
    let output = millrace(&["policy", "bench", &guest("trap-schedule"), "--rows", "16", "--calls", "10"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("answered by the native fallback"), "{}", err(&output));
    assert!(out(&output).is_empty());
}

#[test]
fn build_refuses_what_carries_no_component_types() {
    let directory = tempfile::tempdir().expect("a directory");
    let module = file(&directory, "module.wasm", b"\0asm\x01\0\0\0");
    let target = directory.path().join("out.wasm");
    let output = millrace(&["policy", "build", &module, "-o", target.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("without component types") && !target.exists(), "{}", err(&output));
}

#[test]
fn new_makes_a_project_and_overwrites_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let project = directory.path().join("night-shift");
    let path = project.to_str().expect("UTF-8");
    let output = millrace(&["policy", "new", path, "--lang", "c", "--kind", "precision"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    for file in ["build.sh", "policy.c", "millrace.h", "bindings/precision_policy.h", "wit/precision.wit", "README.md"] {
        assert!(project.join(file).is_file(), "{file}");
    }
    let readme = std::fs::read_to_string(project.join("README.md")).expect("text");
    let admin = format!("http://{}/admin/policies/precision", millrace_config::defaults::ADMIN_LISTEN);
    assert!(readme.contains(&admin), "{admin} in {readme}");
    let before = std::fs::read(project.join("policy.c")).expect("text");
    let again = millrace(&["policy", "new", path, "--lang", "js", "--kind", "route"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(err(&again).contains("there already"), "{}", err(&again));
    assert_eq!(std::fs::read(project.join("policy.c")).expect("text"), before);
}

#[test]
fn new_writes_what_comes_beside_the_decision_where_it_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let new = |name: &str, with: &[&str]| {
        let project = directory.path().join(name);
        let asked = ["policy", "new", project.to_str().expect("UTF-8"), "--lang", "c", "--kind", "route"];
        (millrace(&[&asked[..], with].concat()), project)
    };
    let (output, project) = new("both", &["--with", "handover,feedback"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let read = |path: &str| std::fs::read_to_string(project.join(path)).expect("text");
    for (file, part) in [
        ("wit/worlds.wit", "world route-policy {\n  export feedback;\n  export handover;\n"),
        ("bindings/route_policy.h", "exports_millrace_policy_feedback_observe("),
        ("policy.c", "exports_millrace_policy_handover_restore("),
    ] {
        assert!(read(file).contains(part), "{part} in {file}");
    }
    let (output, project) = new("neither", &["--with", "telepathy"]);
    assert_eq!((output.status.code(), project.exists()), (Some(2), false));
    assert!(err(&output).contains("feedback, handover"), "{}", err(&output));
}

/// The table of a policy in the binary is the operator's too.
#[test]
fn check_tries_the_table_of_a_built_in_policy() {
    let directory = tempfile::tempdir().expect("a directory");
    let with = |table: &str| {
        let text = std::fs::read_to_string(repository("examples/quickstart.toml")).expect("text");
        let policy = format!("[policy.schedule]\ncomponent = \"builtin:priority\"\nconfig = {table}\n");
        assert!(!text.contains("[policy.schedule]"), "or there are two");
        let config = file(&directory, "deploy.toml", format!("{text}\n{policy}").as_bytes());
        millrace(&["policy", "check", "builtin:priority", "--config", &config])
    };
    let good = with("{ level_ms = 1000 }");
    assert_eq!(good.status.code(), Some(0), "{}", err(&good));
    let bad = with("{ level_ms = 0 }");
    assert_eq!(bad.status.code(), Some(2), "{}", err(&bad));
    assert!(err(&bad).contains("level_ms is 0"), "{}", err(&bad));
    let unknown = millrace(&["policy", "check", "builtin:nobody"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(err(&unknown).contains("fcfs"), "{}", err(&unknown));
}

/// A pipe that nobody writes to would be read for ever.
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe.wasm");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let (pipe, folder) = (pipe.to_str().expect("UTF-8"), directory.path().to_str().expect("UTF-8"));
    let out = format!("{folder}/out.wasm");
    for path in [pipe, folder] {
        for command in [&["check", path][..], &["inspect", path], &["bench", path], &["build", path, "-o", &out]] {
            let output = millrace(&[&["policy"], command].concat());
            assert_eq!(output.status.code(), Some(1), "{command:?}");
            assert!(err(&output).contains("no regular file"), "{command:?}: {}", err(&output));
        }
        let trace = millrace(&["policy", "replay", "builtin:fair", "--trace", path]);
        assert!(err(&trace).contains("no regular file"), "{}", err(&trace));
    }
}

#[test]
fn build_says_what_a_file_is_that_is_no_module() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = directory.path().join("out.wasm");
    let script = file(&directory, "policy.py", b"def plan_step():\n");
    for (path, says) in [
        (script.as_str(), &["policy.py", "not WebAssembly", "give the .wasm file"][..]),
        (&repository("plugins/dist/route.wasm"), &["route.wasm", "a component already"]),
    ] {
        let output = millrace(&["policy", "build", path, "-o", target.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(1));
        assert!(says.iter().all(|part| err(&output).contains(part)) && !target.exists(), "{}", err(&output));
    }
}

/// Nothing compared is nothing known.
#[test]
fn a_replay_that_compares_nothing_fails() {
    let directory = tempfile::tempdir().expect("a directory");
    let init = format!(
        r#"{{"event":"init","version":1,"instance":1,"kind":"schedule","sha256":"{}","seed":1,"config":"{{}}","now_us":1,"imports":{{"results":[]}},"info":{{"name":"x","version":"1","wants":[]}},"continued":false}}"#,
        "0".repeat(64)
    );
    let replay = |text: &str, component: &str| {
        let trace = file(&directory, "schedule.trace", text.as_bytes());
        millrace(&["policy", "replay", component, "--trace", &trace])
    };
    let output = replay(&format!("{init}\n"), "builtin:fair");
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("none of its 0 calls was compared"), "{}", err(&output));
    let output = replay(&format!("{init}\n{{\"event\":\"ca"), "builtin:fair");
    assert_eq!(output.status.code(), Some(1));
    assert!(out(&output).contains("line 2, the last one, is torn"), "{}", out(&output));
    // The recording says what was decided.
    let output = replay(&format!("{init}\n"), "builtin:tenant");
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("is no schedule policy"), "{}", err(&output));
}

/// What it lacks is said, and what it has is compared.
#[test]
fn a_recording_of_an_older_millrace_is_replayed() {
    let directory = tempfile::tempdir().expect("a directory");
    let (facts, imports) = (r#"{"rows":1,"columns":[]}"#, r#""imports":{"results":[]}"#);
    let budget =
        r#"{"stage":"decode","step":1,"tokens":1,"sequences":1,"free_pages":1,"total_pages":1,"page_tokens":16,"step_us":0}"#;
    let init = format!(
        r#"{{"event":"init","version":1,"instance":1,"kind":"schedule","sha256":"{}","seed":1,"config":"{{}}","now_us":1,{imports},"info":{{"name":"x","version":"1","wants":[]}},"continued":false}}"#,
        "0".repeat(64)
    );
    let call = format!(
        r#"{{"event":"call","instance":1,"call":1,"now_us":1,"facts":[{budget},{facts},{{"rows":0,"columns":[]}}],{imports},"answer":[{{"run":[0],"tokens":[],"preempt":[],"valid_steps":0,"reason":0}}],"fault":null,"took_ns":1}}"#
    );
    let trace = file(&directory, "schedule.trace", format!("{init}\n{call}\n").as_bytes());
    let replay = |guest: &str, json: &[&str]| millrace(&[&["policy", "replay", guest, "--trace", &trace], json].concat());
    let output = replay(&guest("memory-schedule"), &[]);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
    assert!(
        out(&output).contains("1 decided the same") && out(&output).contains("an older millrace recorded this"),
        "{}",
        out(&output)
    );
    let value = object(&replay(&guest("reverse-schedule"), &["--json"]));
    assert_eq!((&value["without_beside"], &value["beside"]["calls"]), (&Value::Bool(false), &serde_json::json!(0)), "{value}");
}

/// As many as a pool may have, within the limits of a deployment.
#[test]
fn bench_measures_the_largest_table() {
    for policy in ["builtin:fair", "builtin:tier", "builtin:least-loaded"] {
        let value = object(&millrace(&["policy", "bench", policy, "--rows", "65536", "--calls", "10", "--json"]));
        assert_eq!(value["results"][0]["rows"], serde_json::json!(65_536), "{value}");
    }
    let output = millrace(&["policy", "bench", "builtin:fair", "--rows", "65537"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("65536"), "{}", err(&output));
}

/// The limits are those of a deployment; only the deadline is measured beyond, and that is said.
#[test]
fn bench_says_where_a_host_would_not_have_waited() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = std::fs::read_to_string(repository("examples/quickstart.toml")).expect("text");
    let with = |line: &str| file(&directory, "deploy.toml", format!("{text}\n[policy.schedule]\n{line}\n").as_bytes());
    let bench = |policy: &str, config: &str| {
        millrace(&["policy", "bench", policy, "--rows", "16384", "--calls", "10", "--config", config, "--json"])
    };
    for (deadline_us, late) in [(100, serde_json::json!([16_384])), (1_000_000, serde_json::json!([]))] {
        let value = object(&bench("builtin:fair", &with(&format!("deadline_us = {deadline_us}"))));
        assert_eq!((&value["deadline_us"], &value["late_rows"]), (&serde_json::json!(deadline_us), &late), "{value}");
    }
    let output = bench(&guest("reverse-schedule"), &with("memory_mib = 1"));
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("raise the policy's memory limit"), "{}", err(&output));
}

/// Minutes of measuring are not to end with a plot that cannot be written.
#[test]
fn bench_kv_opens_its_plot_before_it_measures() {
    let output = millrace(&["bench", "kv", "-m", "/nowhere/model.gguf", "--svg", "/nowhere/plot.svg"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("--svg: cannot write the plot to /nowhere/plot.svg"), "{}", err(&output));
}
