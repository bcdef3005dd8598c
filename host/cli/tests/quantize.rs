//! `millrace quantize` as an operator meets it: exit codes, reports, and a result that `millrace eval` runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn millrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace")).args(args).output().expect("the binary runs")
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/llama-bf16")
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_checkpoint_is_quantized_reported_and_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, report, source) = (directory.path().join("int4"), directory.path().join("report.json"), source());
    let args = ["quantize", utf8(&source), utf8(&path), "--weights", "int4", "--json", "--report", utf8(&report)];
    let output = millrace(&[&args[..], &["--keep", r"layers\.0\.mlp", "nowhere"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "note: --keep `nowhere` matches no tensor\n", "no progress where nobody looks");
    let said: Value = serde_json::from_str(&stdout(&output)).expect("one JSON object");
    assert_eq!((&said["quantized_tensors"], &said["files"]), (&11.into(), &1.into()));
    assert_eq!(said["layers"].as_array().expect("layers").len(), 2);
    assert_eq!(said["kept"][0]["count"], 3);
    let error = said["relative_error"].as_f64().expect("a number");
    assert!(error > 0.05 && error < 0.1, "{error}");
    let size = |path: &Path| std::fs::metadata(path.join("model.safetensors")).expect("a file").len();
    assert_eq!((said["bytes_before"].as_u64(), said["bytes_after"].as_u64()), (Some(size(&source)), Some(size(&path))));
    let full: Value = serde_json::from_slice(&std::fs::read(&report).expect("written")).expect("JSON");
    assert_eq!(full["tensors"].as_array().expect("tensors").len(), 11);
    assert_eq!(full["worst"], said["worst"]);

    let (ids, out) = (source.join("expected.safetensors"), directory.path().join("out.safetensors"));
    let output = millrace(&["eval", "logits", "--model", utf8(&path), "--ids", utf8(&ids), "--out", utf8(&out)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(out.exists());
}

#[test]
fn tables_name_layers_worst_tensors_and_sizes() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("fp8");
    let output = millrace(&["quantize", utf8(&source()), utf8(&path), "--weights", "fp8", "--threads", "1"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let text = stdout(&output);
    for part in [
        "model.layers.1 ",
        "all ",
        "worst tensors",
        "14 tensors, 245760 parameters in FP8 (128x128 blocks), stored as compressed-tensors float-quantized\n",
        "0.60 MiB -> ",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(text.lines().filter(|line| line.contains("_proj.weight")).count(), 10, "{text}");
}

#[test]
fn usage_exits_with_2_and_the_rest_with_1() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, source) = (directory.path().join("out"), source());
    let run = |args: &[&str]| millrace(&[&["quantize", utf8(&source), utf8(&path)], args].concat());
    let usage: [(&[&str], &str); 8] = [
        (&[], "--weights"),
        (&["--weights", "int2"], "int2"),
        (&["--weights", "fp8", "--group", "32"], "--group is for --weights int4"),
        (&["--weights", "int4", "--group", "48"], "--group 48: is no group of INT4; use 32, 64 or 128"),
        (&["--weights", "fp8", "--keep", "a("], "--keep `a(`"),
        (&["--weights", "fp8", "--preset", "llama"], "llama"),
        (&["--weights", "fp8", "--shard-mib", "99999999999999"], "--shard-mib 99999999999999"),
        (&["--weights", "fp8", "--threads", "5000"], "--threads 5000"),
    ];
    for (args, wanted) in usage {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(wanted), "{wanted} in {}", stderr(&output));
    }
    let nowhere = directory.path().join("nowhere/report.json");
    let output = run(&["--weights", "fp8", "--report", utf8(&nowhere)]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("report.json: cannot be written"), "{}", stderr(&output));
    assert!(!path.exists(), "nothing was done");
    let inside = millrace(&["quantize", utf8(&source), utf8(&source.join("out")), "--weights", "fp8"]);
    assert_eq!(inside.status.code(), Some(2), "{}", stderr(&inside));
    assert!(stderr(&inside).contains("lies in the source"), "{}", stderr(&inside));
    let output = run(&["--weights", "fp8", "--preset", "kimi"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing to quantize"), "{}", stderr(&output));
    std::fs::create_dir(&path).expect("made");
    let output = run(&["--weights", "fp8"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("exists already"), "{}", stderr(&output));
}
