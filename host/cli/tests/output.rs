//! Where commands write: standard output that closes or is full, `--out` that is a link, a device, or the input, and inputs without an
//! end. Needs no model but those of the repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn millrace(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(args);
    command
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name)
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Commands that print a result, the shortest of each kind.
fn printing() -> Vec<Vec<String>> {
    let (model, config) = (fixture("llama-bf16"), fixture("llama-bf16/config.json"));
    let ids = model.join("expected.safetensors");
    let (model, ids, config) = (utf8(&model), utf8(&ids), utf8(&config));
    let lines: [&[&str]; 8] = [
        &["eval", "perplexity", "--model", model, "--ids", ids],
        &["eval", "compare", "bf16", "int8", "--model", model, "--ids", ids, "--json"],
        &["eval", "greedy", "--model", model, "--ids", ids, "--max-tokens", "1"],
        &["keys", "new", "tenant"],
        &["plan", "--config", config, "--gpus", "1", "--gpu-memory", "80"],
        &["bench", "engine", "-m", model, "-p", "8", "-n", "4", "-b", "1", "-d", "4", "-r", "1", "-t", "1"],
        &["bench", "tags", "-m", model, "-n", "4", "-b", "1", "-d", "4", "-r", "1", "-t", "1"],
        &["bench", "prefix", "-m", model, "-p", "32", "-e", "1", "--chunk", "8", "-r", "1", "-t", "1"],
    ];
    lines.iter().map(|line| line.iter().map(|&word| word.to_owned()).collect()).collect()
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_command_well() {
    for line in printing() {
        let args: Vec<&str> = line.iter().map(String::as_str).collect();
        let mut child = millrace(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", message(&output));
        assert!(!message(&output).contains("panicked"), "{args:?}: {}", message(&output));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_ends_a_command_with_a_message() {
    for line in printing() {
        let args: Vec<&str> = line.iter().map(String::as_str).collect();
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device that is full");
        let output = millrace(&args).stdout(full).stderr(Stdio::piped()).output().expect("it runs");
        let message = message(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
        assert!(message.contains("error: cannot write to standard output"), "{args:?}: {message}");
        assert!(!message.contains("panicked"), "{args:?}: {message}");
    }
}

fn logits(ids: &Path, out: &Path) -> Output {
    let model = fixture("llama-bf16");
    let args = ["eval", "logits", "--model", utf8(&model), "--ids", utf8(ids), "--out", utf8(out)];
    millrace(&args).output().expect("it runs")
}

#[test]
#[cfg(unix)]
fn logits_go_into_what_is_there() {
    use std::os::unix::fs::FileTypeExt as _;

    let directory = TempDir::new().expect("a directory");
    let ids = fixture("llama-bf16").join("expected.safetensors");
    let (target, link) = (directory.path().join("target"), directory.path().join("link"));
    std::fs::write(&target, vec![7; 1 << 20]).expect("a file");
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    let output = logits(&ids, &link);
    assert!(output.status.success(), "{}", message(&output));
    assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink(), "the link is still one");
    let bytes = std::fs::read(&target).expect("a file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors, and nothing of what was there");
    assert_eq!(file.tensor("logits").expect("logits").shape()[0], 48);
    // A device stays one, and one that is full is an error.
    let output = logits(&ids, Path::new("/dev/null"));
    assert!(output.status.success(), "{}", message(&output));
    assert!(std::fs::metadata("/dev/null").expect("there").file_type().is_char_device());
    let output = logits(&ids, Path::new("/dev/full"));
    assert_eq!(output.status.code(), Some(1), "{}", message(&output));
    assert!(std::fs::metadata("/dev/full").expect("there").file_type().is_char_device());
}

#[test]
fn logits_do_not_replace_their_input() {
    let directory = TempDir::new().expect("a directory");
    let ids = directory.path().join("ids.json");
    std::fs::write(&ids, "[1, 2, 3]").expect("a file");
    let output = logits(&ids, &ids);
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    assert!(message(&output).contains("is read by --ids"), "{}", message(&output));
    assert_eq!(std::fs::read_to_string(&ids).expect("still there"), "[1, 2, 3]");
    // Nor their model, by another name of one of its files.
    let model = directory.path().join("model");
    std::fs::create_dir(&model).expect("a directory");
    for entry in std::fs::read_dir(fixture("llama-bf16")).expect("the fixture") {
        let file = entry.expect("a file").path();
        std::fs::copy(&file, model.join(file.file_name().expect("a name"))).expect("copied");
    }
    let (weights, link) = (model.join("model.safetensors"), directory.path().join("link"));
    std::os::unix::fs::symlink(&weights, &link).expect("a link");
    let before = std::fs::read(&weights).expect("weights");
    for out in [&weights, &link] {
        let args = ["eval", "logits", "--model", utf8(&model), "--ids", utf8(&ids), "--out", utf8(out)];
        let output = millrace(&args).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{}", message(&output));
        assert!(message(&output).contains("is read by --model"), "{}", message(&output));
        assert!(std::fs::read(&weights).expect("still there") == before);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn inputs_without_an_end_are_refused() {
    let model = fixture("llama-bf16");
    for option in ["--text", "--ids"] {
        let args = ["eval", "perplexity", "--model", utf8(&model), option, "/dev/zero"];
        let output = millrace(&args).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{option}: {}", message(&output));
        assert!(message(&output).contains("/dev/zero: more than"), "{option}: {}", message(&output));
    }
}
