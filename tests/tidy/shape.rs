//! The shape of the repository: top level, sizes of files, first lines, scripts, size of committed data.

use crate::expect_none;
use crate::repo::{files, sources};

const MAX_LINES: usize = 600;
/// From here on a file should be able to say why it is one.
const ARGUE_LINES: usize = 400;
const MAX_DATA_BYTES: usize = 8_000_000;

/// What may lie at the top. Everything else has a home below one of the folders.
const TOP_LEVEL: &[&str] = &[
    ".cargo",
    ".ci",
    ".gitattributes",
    ".gitignore",
    ".github",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "NOTICE",
    "README.md",
    "SECURITY.md",
    "clippy.toml",
    "deny.toml",
    "examples",
    "host",
    "kernels",
    "plugins",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "tests",
    "wit",
];

/// Text that people write and review; everything else is data.
const WRITTEN: &[&str] = &[
    "rs", "toml", "lock", "md", "wit", "wat", "sh", "py", "js", "mjs", "ts", "c", "h", "cu", "cuh", "cpp", "jinja", "yml", "yaml",
];

#[test]
fn the_top_level_is_fixed() {
    let mut entries: Vec<&str> = files().iter().filter_map(|file| file.path.split('/').next()).collect();
    entries.dedup();
    let violations: Vec<String> =
        entries.iter().filter(|entry| !TOP_LEVEL.contains(entry)).map(|entry| (*entry).to_owned()).collect();
    expect_none("the top level is fixed", &violations);
}

#[test]
fn files_stay_small() {
    let hand_written = files().iter().filter(|file| {
        let extension = file.path.rsplit('.').next().unwrap_or_default();
        ["rs", "py", "sh", "js", "c", "h", "cu", "cuh", "wit"].contains(&extension)
    });
    let mut violations = Vec::new();
    for file in hand_written {
        let lines = file.bytes.iter().filter(|&&byte| byte == b'\n').count();
        if lines > MAX_LINES {
            violations.push(format!("{}: {lines} lines", file.path));
        } else if lines > ARGUE_LINES {
            println!("worth a look: {} has {lines} lines", file.path);
        }
    }
    expect_none("files have at most 600 lines", &violations);
}

#[test]
fn every_file_says_what_it_is() {
    let silent = sources()
        .iter()
        .filter(|source| !source.text.starts_with("//! ") || source.text.lines().next().is_some_and(says_nothing));
    let violations: Vec<String> = silent.map(|source| source.path.clone()).collect();
    expect_none("every Rust file starts with `//!` and a sentence", &violations);
}

fn says_nothing(line: &str) -> bool {
    line.len() < 20
}

#[test]
fn scripts_can_be_run() {
    let mut violations = Vec::new();
    for file in files() {
        let has_interpreter = file.bytes.starts_with(b"#!/");
        let is_script = has_interpreter || file.path.ends_with(".sh") || file.path == ".ci/run";
        if is_script && !(has_interpreter && file.executable) {
            violations.push(format!("{}: interpreter line {has_interpreter}, executable {}", file.path, file.executable));
        }
    }
    expect_none("scripts are executable and name their interpreter", &violations);
}

#[test]
fn committed_data_is_small() {
    let mut data: Vec<(usize, &str)> = files()
        .iter()
        .filter(|file| !WRITTEN.contains(&file.path.rsplit('.').next().unwrap_or_default()))
        .map(|file| (file.bytes.len(), file.path.as_str()))
        .collect();
    data.sort_unstable();
    let total: usize = data.iter().map(|(bytes, _)| bytes).sum();
    let largest: Vec<String> = data.iter().rev().take(20).map(|(bytes, path)| format!("{path}: {bytes} bytes")).collect();
    assert!(
        total <= MAX_DATA_BYTES,
        "{total} bytes of data, {MAX_DATA_BYTES} are allowed; the largest:\n  {}",
        largest.join("\n  ")
    );
}
