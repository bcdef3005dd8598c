//! The command line as an operator meets it: exit codes, messages, machine-readable output. The server itself is tested in
//! `tests/e2e`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn millrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace")).args(args).output().expect("the binary runs")
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn every_example_configuration_is_good() {
    for name in ["quickstart", "reference", "tenants"] {
        let path = repository(&format!("examples/{name}.toml"));
        let output = millrace(&["check", "-c", path.to_str().expect("a path in UTF-8")]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output));
    }
}

#[test]
fn a_bad_configuration_exits_with_2_and_lists_every_error() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), "[server]\nlisten = 7\nlisten_adress = \"x\"\n[pool.p]\nstage = \"cook\"\n").expect("written");
    for command in ["check", "serve"] {
        let output = millrace(&[command, "-c", file.path().to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        for part in ["server.listen", "listen_adress", "pool.p.stage"] {
            assert!(text(&output).contains(part), "{part} in {}", text(&output));
        }
    }
    assert_eq!(millrace(&["check", "-c", "/nowhere.toml"]).status.code(), Some(2));
    assert_eq!(millrace(&["brew"]).status.code(), Some(2));
}

/// A built-in policy is in the binary, so that `check` knows what `serve` would refuse, and `serve` refuses it before it binds a port.
#[test]
fn tables_of_built_in_policies_are_tried() {
    let quickstart = std::fs::read_to_string(repository("examples/quickstart.toml")).expect("text");
    let run = |command: &str, policies: &str| {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), format!("{quickstart}\n{policies}\n")).expect("written");
        millrace(&[command, "-c", file.path().to_str().expect("UTF-8")])
    };
    let check = |policies: &str| run("check", policies);
    let output = run("serve", "[policy.schedule]\nconfig = { nope = 1 }");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("nope") && !text(&output).contains("listening"), "{}", text(&output));
    let output = check("[policy.schedule]\ncomponent = \"builtin:fair\"\nconfig = { nope = 1 }");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("[policy.schedule], `fair`") && text(&output).contains("nope"), "{}", text(&output));
    let output = check("[policy.precision]\nconfig = { long_context = 1 }\n[policy.route]\nmemory_mib = 1");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    for part in ["[policy.precision], ", "long_context", "[policy.route], ", "memory"] {
        assert!(text(&output).contains(part), "{part} in {}", text(&output));
    }
    let output = check("[policy.precision]\nconfig = { long_context_tokens = 100 }");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}

#[test]
fn eval_reproduces_the_logits_and_tokens_of_transformers() {
    let model = repository("host/model/tests/data/llama-bf16");
    let expected = model.join("expected.safetensors");
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("out.safetensors");
    let (model, ids) = (model.to_str().expect("UTF-8"), expected.to_str().expect("UTF-8"));
    let output = millrace(&["eval", "logits", "--model", model, "--ids", ids, "--out", out.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let (ours, theirs) = (floats(&out, "logits"), floats(&expected, "logits"));
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>().sqrt();
    let relative = distance(&ours, &theirs) / distance(&theirs, &vec![0.0; theirs.len()]);
    assert_eq!(ours.len(), theirs.len());
    assert!(relative <= 2e-5, "{relative:e}");

    let output = millrace(&["eval", "greedy", "--model", model, "--ids", ids, "--max-tokens", "12"]);
    let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned();
    let value: serde_json::Value = serde_json::from_str(&last).expect("JSON on the last line");
    let greedy: Vec<i64> = value["ids"].as_array().expect("ids").iter().filter_map(serde_json::Value::as_i64).collect();
    assert_eq!(greedy, integers(&expected, "greedy"));
}

#[test]
fn bench_engine_prints_one_json_object() {
    let model = repository("host/model/tests/data/llama-tied-bf16");
    let args =
        ["bench", "engine", "-m", model.to_str().expect("UTF-8"), "-p", "16", "-n", "8", "-b", "1,2", "-r", "1", "-t", "2"];
    let formats = ["--prefill-weights", "bf16", "--decode-weights", "bf16", "--kv", "bf16", "--json"];
    let output = millrace(&[&args[..], &formats[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let results = value["results"].as_array().expect("results");
    assert_eq!(results.len(), 3);
    for result in results {
        assert!(result["tokens_per_second"]["median"].as_f64().is_some_and(|rate| rate > 0.0), "{result}");
        assert!(result["peak_rss_bytes"].as_u64().is_some_and(|bytes| bytes > 0) && result["threads"] == 2, "{result}");
    }
    assert!(value["method"].as_str().is_some_and(|m| m.contains("median")));
}

fn tensor(path: &Path, name: &str) -> Vec<u8> {
    let bytes = std::fs::read(path).expect("a file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    file.tensor(name).expect("the tensor").data().to_vec()
}

fn floats(path: &Path, name: &str) -> Vec<f32> {
    tensor(path, name).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn integers(path: &Path, name: &str) -> Vec<i64> {
    let number = |b: &[u8]| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
    tensor(path, name).chunks_exact(8).map(number).collect()
}
