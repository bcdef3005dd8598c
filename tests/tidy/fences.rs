//! What code may not say where: `unsafe`, clocks, IO, randomness, async, hashed maps. Searches Rust text without comments and strings.

use crate::expect_none;
use crate::lexer::{line_of, occurrences};
use crate::repo::{Source, sources};

/// Absent from `core`, `kv`, `policy` and `scheduler`: the same inputs give the same outputs, on any machine and at any time.
const IMPURE: &[&str] = &[
    "std::time",
    "std::io",
    "std::fs",
    "std::env",
    "std::net",
    "std::process",
    "Instant",
    "SystemTime",
    "async",
    "await",
    "tokio",
    "rand",
    "getrandom",
    "HashMap",
    "HashSet",
    "RandomState",
    "DefaultHasher",
];
const PURE: [&str; 10] = [
    "host/core/src/",
    "host/kv/src/",
    "host/policy/src/",
    "host/scheduler/src/",
    // The protocol between processes; its transport is in `tcp`.
    "host/transfer/src/codec/",
    "host/transfer/src/incarnation.rs",
    "host/transfer/src/message.rs",
    "host/transfer/src/receiver",
    "host/transfer/src/sender.rs",
    "host/transfer/src/terms.rs",
];

fn found(source: &Source, wanted: &str) -> Vec<String> {
    let lines = occurrences(&source.code, wanted).into_iter().map(|at| line_of(&source.code, at));
    lines.map(|line| format!("{}:{line}: {wanted}", source.path)).collect()
}

#[test]
fn unsafe_is_in_kernels_and_one_mapped_file() {
    let outside = sources().iter().filter(|source| !source.path.starts_with("kernels/"));
    let mut violations = Vec::new();
    let mut mapping = Vec::new();
    for source in outside {
        let lines = found(source, "unsafe");
        if lines.is_empty() {
            continue;
        }
        if source.path.starts_with("host/model/src/") && source.code.contains("memmap2") {
            mapping.push(source.path.clone());
        } else {
            violations.extend(lines);
        }
    }
    if mapping.len() > 1 {
        violations.push(format!("more than one file maps checkpoints: {}", mapping.join(", ")));
    }
    expect_none("unsafe is in kernels/ and the one file of host/model that maps checkpoints", &violations);
}

#[test]
fn the_command_line_speaks_http_in_one_folder() {
    let outside = sources().iter().filter(|source| source.path.starts_with("host/cli/src/"));
    let outside = outside.filter(|source| !source.path.starts_with("host/cli/src/bench/serve/"));
    let violations: Vec<String> = outside
        .flat_map(|source| ["hyper", "hyper_util", "http_body_util"].map(|library| found(source, library)))
        .flatten()
        .collect();
    expect_none("only `bench serve`, a client, speaks HTTP in the command line", &violations);
}

#[test]
fn packages_without_unsafe_forbid_it() {
    let mut violations = Vec::new();
    for source in sources() {
        let parts: Vec<&str> = source.path.split('/').collect();
        let is_root = matches!(parts.as_slice(), ["host", _, "src", "lib.rs" | "main.rs"]);
        let maps_files = source.path.starts_with("host/model/");
        let wanted = if maps_files { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
        let compact: String = source.code.split_whitespace().collect();
        if is_root && !compact.contains(wanted) && !compact.contains("#![forbid(unsafe_code)]") {
            violations.push(format!("{}: {wanted} is missing", source.path));
        }
    }
    expect_none("host packages forbid unsafe code", &violations);
}

#[test]
fn pure_packages_know_no_clock_no_io_no_chance() {
    let pure = sources().iter().filter(|source| PURE.iter().any(|directory| source.path.starts_with(directory)));
    let violations: Vec<String> = pure
        .flat_map(|source| {
            // What is shared between threads is tested with threads.
            let threads = (!source.path.ends_with("tests.rs")).then_some(&"std::thread");
            IMPURE.iter().chain(threads).flat_map(move |wanted| found(source, wanted))
        })
        .collect();
    expect_none("core, kv, policy, scheduler and the hand-off's protocol are pure", &violations);
}

/// Braced imports (`use std::{io, fs}`) would hide from the list above.
#[test]
fn pure_packages_import_std_by_full_path() {
    let pure = sources().iter().filter(|source| PURE.iter().any(|directory| source.path.starts_with(directory)));
    let violations: Vec<String> = pure.flat_map(|source| found(source, "std::{")).collect();
    expect_none("pure packages name std's modules one by one", &violations);
}
