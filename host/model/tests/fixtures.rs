//! The fixtures' logits and greedy continuations against HF transformers, with reference and fast compute. Those under
//! tests/data/odd-* were made by tests/make_fixtures.py; `MILLRACE_FIXTURES` names a directory of more.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{cpu, distance, expected, fixture, fixtures, median_distance, name};
use millrace_core::{KvFormat, StageRecipe};
use millrace_cpu::{CpuBackend, CpuCompute, StrictBackend};
use millrace_model::eval::{EvalOptions, greedy, logits};
use millrace_model::{Architecture, Checkpoint, WeightCache, load};

fn model(path: &Path, backend: &CpuBackend, recipe: StageRecipe) -> Box<dyn Architecture> {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{e}"));
    load(&checkpoint, backend, recipe, &mut WeightCache::new()).unwrap_or_else(|e| panic!("{e}"))
}

fn options(chunk: usize) -> EvalOptions {
    EvalOptions { kv: KvFormat::F32, page_tokens: 16, chunk }
}

#[test]
fn reference_compute_agrees_to_2e_5_and_greedy_ids_exactly() {
    let backend = cpu(CpuCompute::Reference);
    for path in fixtures() {
        let (name, wanted) = (name(&path), expected(&path));
        let model = model(&path, &backend, StageRecipe::Stored);
        let out = logits(&*model, &backend, &wanted.ids, options(48)).unwrap();
        let far = distance(&out, &wanted.logits);
        println!("{name}: {far:.2e}");
        assert!(far <= 2e-5, "{name}: {far:e}");
        let ids = greedy(&*model, &backend, &wanted.ids, wanted.greedy.len(), options(17)).unwrap();
        assert_eq!(ids, wanted.greedy, "{name}");
    }
}

/// Every chunk size from token by token to the whole prompt.
#[test]
fn chunks_do_not_change_the_logits() {
    let backend = cpu(CpuCompute::Reference);
    for path in fixtures() {
        let (name, wanted) = (name(&path), expected(&path));
        let model = model(&path, &backend, StageRecipe::Stored);
        for chunk in 1..=48 {
            let out = logits(&*model, &backend, &wanted.ids, options(chunk)).unwrap();
            let far = distance(&out, &wanted.logits);
            assert!(far <= 2e-5, "{name} in chunks of {chunk}: {far:e}");
        }
    }
}

#[test]
fn the_last_row_alone_gives_the_same_token_as_all_rows() {
    let backend = cpu(CpuCompute::Reference);
    for name in ["llama-fp8", "odd-glm_5_2", "qwen3_moe-int4"] {
        let wanted = expected(&fixture(name));
        let model = model(&fixture(name), &backend, StageRecipe::Stored);
        for length in [1, 2, 16, 17, 33, 48] {
            let ids = &wanted.ids[..length];
            let all = logits(&*model, &backend, ids, options(48)).unwrap();
            let last = millrace_model::eval::argmax(&all[all.len() - model.vocab()..]);
            // Chunks of 5: the first ones ask for no logits, the last for its last row.
            assert_eq!(greedy(&*model, &backend, ids, 1, options(5)).unwrap(), [last], "{name} {length}");
        }
    }
}

#[test]
fn fast_compute_agrees_within_its_format() {
    let backend = cpu(CpuCompute::Fast);
    let cases = [
        ("llama-bf16", StageRecipe::Bf16, 1e-2),
        ("llama-tied-bf16", StageRecipe::Bf16, 1e-2),
        ("llama-bf16", StageRecipe::Stored, 1e-2),
        ("llama-int4", StageRecipe::Stored, 3e-2),
        ("llama-int4", StageRecipe::Int4, 3e-2),
        ("llama-int4", StageRecipe::Int8, 3e-2),
        ("llama-int4", StageRecipe::Bf16, 1e-2),
        ("llama-fp8", StageRecipe::Stored, 3e-2),
        ("llama-fp8", StageRecipe::Bf16, 1e-2),
    ];
    for (name, recipe, limit) in cases {
        let wanted = expected(&fixture(name));
        let model = model(&fixture(name), &backend, recipe);
        let out = logits(&*model, &backend, &wanted.ids, options(48)).unwrap();
        let far = median_distance(&out, &wanted.logits, model.vocab());
        println!("{name} {recipe}: {far:.2e}");
        assert!(far <= limit, "{name} with {recipe}: {far:e}");
    }
}

#[test]
fn kv_formats_stay_close() {
    let backend = cpu(CpuCompute::Reference);
    let wanted = expected(&fixture("llama-bf16"));
    let model = model(&fixture("llama-bf16"), &backend, StageRecipe::Stored);
    // Rounding of K and V alone: 2^-9 for BF16, 2^-4 for e4m3.
    for (kv, limit) in [(KvFormat::Bf16, 5e-3), (KvFormat::Fp8, 6e-2)] {
        let out = logits(&*model, &backend, &wanted.ids, EvalOptions { kv, ..options(48) }).unwrap();
        let far = distance(&out, &wanted.logits);
        println!("llama-bf16 kv {kv}: {far:.2e}");
        assert!(far > 1e-6 && far <= limit, "{kv}: {far:e}");
    }
}

#[test]
fn two_stages_share_what_they_want_in_the_same_format() {
    let backend = cpu(CpuCompute::Reference);
    let checkpoint = Checkpoint::open(&fixture("llama-tied-bf16")).unwrap();
    let mut cache = WeightCache::new();
    let first = load(&checkpoint, &backend, StageRecipe::Stored, &mut cache).unwrap();
    let bytes = cache.bytes();
    assert!(bytes > 0 && bytes <= first.weight_bytes());
    let second = load(&checkpoint, &backend, StageRecipe::Bf16, &mut cache).unwrap();
    assert_eq!(cache.bytes(), bytes, "BF16 is how they are stored");
    assert_eq!(first.weight_bytes(), second.weight_bytes());
    load(&checkpoint, &backend, StageRecipe::Int8, &mut cache).unwrap();
    assert!(cache.bytes() > bytes);
}

#[test]
fn loading_and_running_read_nothing_back() {
    let backend = StrictBackend::new(Arc::new(cpu(CpuCompute::Fast)));
    let checkpoint = Checkpoint::open(&fixture("llama-bf16")).unwrap();
    let model = load(&checkpoint, &backend, StageRecipe::Int8, &mut WeightCache::new()).unwrap();
    assert!(model.weight_bytes() > 0);
    // Only evaluation asks for device memory, and is told so.
    let error = logits(&*model, &backend, &[1, 2, 3], options(8)).unwrap_err().to_string();
    assert!(error.contains("host reads of device memory are not allowed"), "{error}");
}

#[test]
fn ids_that_cannot_be_run_are_errors() {
    let backend = cpu(CpuCompute::Reference);
    let model = model(&fixture("llama-bf16"), &backend, StageRecipe::Stored);
    let run = |ids: &[u32], options| logits(&*model, &backend, ids, options).unwrap_err().to_string();
    assert!(run(&[], options(8)).contains("no token ids"));
    assert!(run(&[256], options(8)).contains("vocabulary of 256"));
    assert!(run(&vec![1; 513], options(8)).contains("context of 512"));
    assert!(run(&[1], options(0)).contains("chunk"));
    assert!(run(&[1], EvalOptions { page_tokens: 20, ..options(8) }).contains("multiple of 16"));
}
