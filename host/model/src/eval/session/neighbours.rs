//! A row's numbers do not depend on whose rows are beside it, bit by bit: the same sequence alone and among 31 others, prompt and decode;
//! and a neighbour that holds no number at all reaches nobody.

use std::path::{Path, PathBuf};

use millrace_core::StageRecipe;
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};

use super::*;
use crate::{Checkpoint, WeightCache, load};

const TOGETHER: usize = 32;
const DECODED: usize = 4;
const PAGE_TOKENS: usize = 16;

fn checkpoints() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.join("expected.safetensors").exists()).collect();
    found.sort();
    assert!(found.len() >= 14, "{found:?}");
    found
}

/// Prompts of one to 37 tokens, and what each is given to decode.
fn sequences(vocab: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    let token = |sequence: usize, position: usize| ((sequence * 131 + position * 17 + position * position) % vocab) as u32;
    let tokens = |sequence: usize| (0..1 + sequence * 7 % 37 + DECODED).map(move |position| token(sequence, position));
    (0..TOGETHER)
        .map(|sequence| {
            let mut prompt: Vec<u32> = tokens(sequence).collect();
            let decoded = prompt.split_off(prompt.len() - DECODED);
            (prompt, decoded)
        })
        .collect()
}

fn session<'a>(model: &'a dyn Architecture, backend: &dyn Backend, sequences: usize) -> Session<'a> {
    let shape = SessionShape { kv: KvFormat::F32, page_tokens: PAGE_TOKENS, sequences, tokens: 48, rows: sequences * 40 };
    Session::new(model, backend, shape).unwrap()
}

/// Logits of each sequence's last row, step by step, as bits.
fn run(session: &mut Session<'_>, of: &[(Vec<u32>, Vec<u32>)]) -> Vec<Vec<Vec<u32>>> {
    let mut steps: Vec<Vec<&[u32]>> = vec![of.iter().map(|(prompt, _)| prompt.as_slice()).collect()];
    steps.extend((0..DECODED).map(|at| of.iter().map(|(_, decoded)| &decoded[at..=at]).collect()));
    let vocab = session.model.vocab();
    let run = |ids: &Vec<&[u32]>| {
        let logits = session.step(ids, Logits::Last { count: of.len() }).unwrap();
        logits.chunks(vocab).map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
    };
    steps.iter().map(run).collect()
}

fn backend(compute: CpuCompute) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: 2, compute, isa: None }).unwrap()
}

/// Of each checkpoint: its name, and how many of the sequences have other bits among others than alone.
fn changed(compute: CpuCompute) -> Vec<(String, usize)> {
    let backend = backend(compute);
    let of = |path: PathBuf| {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let model = load(&checkpoint, &backend, StageRecipe::Stored, &mut WeightCache::default()).unwrap();
        let all = sequences(model.vocab());
        let together = run(&mut session(&*model, &backend, TOGETHER), &all);
        let differs = |(index, one): &(usize, &(Vec<u32>, Vec<u32>))| {
            let alone = run(&mut session(&*model, &backend, 1), std::slice::from_ref(one));
            alone.iter().zip(&together).any(|(alone, together)| alone[0] != together[*index])
        };
        (path.file_name().unwrap().to_string_lossy().into_owned(), all.iter().enumerate().filter(differs).count())
    };
    checkpoints().into_iter().map(of).collect()
}

#[test]
fn reference_compute_gives_the_same_bits_alone_and_among_31_others() {
    let changed = changed(CpuCompute::Reference);
    assert!(changed.iter().all(|(_, count)| *count == 0), "{changed:?}");
}

#[test]
fn fast_compute_gives_the_same_bits_alone_and_among_31_others() {
    let changed = changed(CpuCompute::Fast);
    assert!(changed.iter().all(|(_, count)| *count == 0), "{changed:?}");
}

/// Every page of every other sequence is full of NaN, filled slots and empty ones; so are, in the sequence's own pages, the slots that it
/// has not filled.
#[test]
fn neighbours_that_are_no_numbers_reach_nobody() {
    for compute in [CpuCompute::Reference, CpuCompute::Fast] {
        let backend = backend(compute);
        for path in checkpoints() {
            let checkpoint = Checkpoint::open(&path).unwrap();
            let model = load(&checkpoint, &backend, StageRecipe::Stored, &mut WeightCache::default()).unwrap();
            let all = sequences(model.vocab());
            let clean = run(&mut session(&*model, &backend, TOGETHER), &all);
            let mut poisoned = session(&*model, &backend, TOGETHER);
            // What was freed and is handed out again may hold anything.
            poison(&mut poisoned, 0..TOGETHER);
            let prompts: Vec<&[u32]> = all.iter().map(|(prompt, _)| prompt.as_slice()).collect();
            poisoned.step(&prompts, Logits::Last { count: TOGETHER }).unwrap();
            poison(&mut poisoned, 1..TOGETHER);
            for at in 0..DECODED {
                let ids: Vec<&[u32]> = all.iter().map(|(_, decoded)| &decoded[at..=at]).collect();
                let logits = poisoned.step(&ids, Logits::Last { count: TOGETHER }).unwrap();
                let mut rows = logits.chunks(model.vocab());
                let first: Vec<u32> = rows.next().unwrap().iter().map(|logit| logit.to_bits()).collect();
                assert_eq!(first, clean[at + 1][0], "{} with {compute:?}, step {at}", path.display());
                assert!(rows.all(|row| row.iter().any(|logit| logit.is_nan())), "{}: the poison is read", path.display());
            }
        }
    }
}

/// Fills every page of some sequences with NaN.
fn poison(session: &mut Session<'_>, sequences: std::ops::Range<usize>) {
    let cache = session.cache.clone();
    let size = cache.layout.page_bytes();
    let bytes: Vec<u8> = f32::NAN.to_le_bytes().repeat(size / 4);
    let pages: Vec<u32> = sequences.flat_map(|sequence| session.table(sequence).to_vec()).map(|entry| entry.page).collect();
    for page in pages {
        upload(session.queue(), (&cache.pages, page as usize * size), bytes.clone());
    }
}
