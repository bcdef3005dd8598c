//! Mutated checkpoints: whatever a GGUF file, a safetensors file, an index or a config.json holds, reading it gives a checkpoint
//! or an error that names the file; never a panic, never an allocation by a number that the file made up.
//!
//! Deterministic: the seed and the round give the input. Inputs that give an error (or success) of a new kind join the corpus,
//! so that mutations build on each other. Longer runs:
//!
//! ```text
//! MILLRACE_FUZZ_ROUNDS=1000000 MILLRACE_FUZZ_SEED=7 cargo test --release -p millrace-model --test fuzz -- --nocapture
//! ```
//! An input that fails is kept in the system's temporary directory; the message says under which name.

#[path = "../common/mod.rs"]
mod common;

mod corpus;
mod mutate;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use common::Lcg;
use corpus::Corpus;
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
use peak_alloc::PeakAlloc;
use targets::Target;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Rounds of each target where nothing else is asked for: some seconds in all.
const ROUNDS: usize = 2500;
/// Inputs stay under 256 KB; this is far above what reading one takes, and far below what lies ask for.
const MEMORY_BOUND: usize = 24 << 20;

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number")))
}

/// One test alone, because it watches the memory of its process.
#[test]
fn mutated_checkpoints_are_read_or_refused() {
    let (rounds, seed) = (number("MILLRACE_FUZZ_ROUNDS", ROUNDS), number("MILLRACE_FUZZ_SEED", 1));
    let options = CpuOptions { threads: 1, compute: CpuCompute::Reference, isa: None };
    let backend = CpuBackend::new(options).unwrap();
    for target in targets::all() {
        let directory = tempfile::tempdir().unwrap();
        let kinds = fuzz(&target, directory.path(), &backend, (rounds, seed));
        println!("{}: {rounds} rounds, {kinds} kinds of outcome", target.name);
        // Else most mutations die at the same check, and nothing behind it is tested.
        assert!(kinds >= 12, "{} reached only {kinds} kinds of outcome", target.name);
    }
}

fn fuzz(target: &Target, directory: &Path, backend: &CpuBackend, (rounds, seed): (usize, usize)) -> usize {
    let mut corpus = Corpus::new();
    let path = (target.place)(directory);
    for input in &target.seeds {
        let errors = exercise(target, &path, input, backend);
        assert_eq!(errors, Ok(Vec::new()), "{}: an unspoilt file", target.name);
        corpus.meet(input, &[]);
    }
    let mut chance = Lcg(seed as u64);
    for round in 0..rounds {
        let mut input = corpus.choose(&mut chance).to_vec();
        for _ in 0..1 + chance.below(4) {
            mutate::once(&mut input, corpus.choose(&mut chance), target.kind, &mut chance);
        }
        mutate::repair(&mut input, target.kind, &mut chance);
        match exercise(target, &path, &input, backend) {
            Ok(errors) => corpus.meet(&input, &errors),
            Err(why) => {
                let kept = std::env::temp_dir().join(format!("millrace-fuzz-{}-{seed}-{round}", target.name));
                std::fs::write(&kept, &input).unwrap();
                panic!("{}, seed {seed}, round {round}: {why}; the input is {}", target.name, kept.display());
            }
        }
    }
    corpus.kinds()
}

/// The errors of reading an input, or what must not happen.
fn exercise(target: &Target, path: &Path, input: &[u8], backend: &CpuBackend) -> Result<Vec<String>, String> {
    std::fs::write(path, input).unwrap();
    let checkpoint = if path.extension().is_some_and(|e| e == "gguf") { path } else { path.parent().unwrap() };
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let outcome = catch_unwind(AssertUnwindSafe(|| common::survey::survey(checkpoint, target.load.then_some(backend))));
    let grown = MEMORY.peak_usage().saturating_sub(before);
    let errors = outcome.map_err(|_| "it panicked".to_owned())?;
    if grown > MEMORY_BOUND {
        return Err(format!("reading {} bytes took {grown} bytes of memory", input.len()));
    }
    let file = checkpoint.to_string_lossy();
    match errors.iter().find(|error| !error.contains(file.as_ref())) {
        Some(error) => Err(format!("an error that names no file: {error}")),
        None => Ok(errors),
    }
}
