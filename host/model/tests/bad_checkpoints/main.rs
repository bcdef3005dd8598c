//! Ways in which a checkpoint can be wrong, each with what the error must name: the file, the tensor or key, the expectation.
//! `cargo test -p millrace-model --test bad_checkpoints -- --nocapture` prints them as a table of case and message.

#[path = "../common/mod.rs"]
mod common;

mod configs;
mod contradictions;
mod directories;
mod fp8_tensors;
mod gguf_files;
mod headers;
mod int4_tensors;
mod leftovers;
mod numbers;

use std::path::{Path, PathBuf};

use common::cpu;
use common::hub::Hub;
use millrace_core::StageRecipe;
use millrace_cpu::CpuCompute;
use millrace_model::{Checkpoint, WeightCache, load};

/// A checkpoint that must be refused.
struct Case {
    /// What is wrong with it, in words.
    wrong: &'static str,
    /// Writes it into an empty directory and says what to open.
    make: Box<dyn Fn(&Path) -> PathBuf>,
    /// What the message must contain.
    names: &'static [&'static str],
}

impl Case {
    fn new(wrong: &'static str, names: &'static [&'static str], make: impl Fn(&Path) -> PathBuf + 'static) -> Self {
        Self { wrong, make: Box::new(make), names }
    }

    /// A hub fixture, changed.
    fn changed(
        wrong: &'static str,
        names: &'static [&'static str],
        fixture: &'static str,
        change: impl Fn(&mut Hub) + 'static,
    ) -> Self {
        Self::new(wrong, names, move |directory| {
            let mut hub = Hub::open(&common::fixture(fixture));
            change(&mut hub);
            hub.write(directory);
            directory.to_path_buf()
        })
    }
}

/// Opens and loads every case; prints what came of it.
fn refuse(cases: Vec<Case>) {
    let mut failures = Vec::new();
    for case in &cases {
        let directory = tempfile::tempdir().unwrap();
        let path = (case.make)(directory.path());
        let message = match refusal(&path) {
            Some(message) => message,
            None => {
                failures.push(format!("{}: it was loaded", case.wrong));
                continue;
            }
        };
        println!("{:<60} | {}", case.wrong, message.replace(&directory.path().display().to_string(), ""));
        let missing: Vec<_> = case.names.iter().filter(|part| !message.contains(*part)).collect();
        if !missing.is_empty() || !message.contains(path.to_str().unwrap_or_default()) {
            failures.push(format!("{}: {missing:?} or {} not in: {message}", case.wrong, path.display()));
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// Why a checkpoint is refused, when it is opened or loaded.
fn refusal(path: &Path) -> Option<String> {
    let checkpoint = match Checkpoint::open(path) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Some(error.to_string()),
    };
    if let Err(error) = checkpoint.tokenizer() {
        return Some(error.to_string());
    }
    let backend = cpu(CpuCompute::Fast);
    load(&checkpoint, &backend, StageRecipe::Stored, &mut WeightCache::new()).err().map(|error| error.to_string())
}

/// What the tables change is right before it is changed.
#[test]
fn the_unchanged_checkpoints_load() {
    for fixture in ["llama-bf16", "llama-fp8", "llama-int4", "formats/int4-zero-point", "formats/fp8-channel", "formats/mixed"] {
        let directory = tempfile::tempdir().unwrap();
        let hub = Hub::open(&common::fixture(fixture));
        hub.write(directory.path());
        assert_eq!(refusal(directory.path()), None, "{fixture}");
        let sharded = tempfile::tempdir().unwrap();
        hub.write_shards(sharded.path(), |name| vec![if name.len() % 2 == 0 { "a.safetensors" } else { "b.safetensors" }]);
        assert_eq!(refusal(sharded.path()), None, "{fixture} in shards");
    }
}
