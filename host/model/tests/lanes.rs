//! Two-stage evaluation: prefill, hand-off and decode step by step give what one pass gives, and precision is lost only where a
//! stage's own format loses it. Logits and perplexities against HF transformers.

mod common;

use std::path::Path;

use common::{cpu, distance, expected, fixture, fixtures, name};
use millrace_core::{KvFormat, Stage, StageRecipe};
use millrace_cpu::{CpuBackend, CpuCompute};
use millrace_model::eval::{
    EvalLane, EvalOptions, EvalStage, Protocol, compare, log_sum_exp, logits, perplexity, token_log_probabilities, visit_lanes,
};
use millrace_model::{Architecture, Checkpoint, ModelError, WeightCache, load};

fn model(path: &Path, backend: &CpuBackend, recipe: StageRecipe) -> Box<dyn Architecture> {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{e}"));
    load(&checkpoint, backend, recipe, &mut WeightCache::new()).unwrap_or_else(|e| panic!("{e}"))
}

/// One model in both stages.
fn lane<'a>(backend: &'a CpuBackend, model: &'a dyn Architecture, (prefill, decode): (KvFormat, KvFormat)) -> EvalLane<'a> {
    EvalLane { backend, prefill: EvalStage { model, kv: prefill }, decode: EvalStage { model, kv: decode } }
}

fn protocol(window: usize, prefill: usize) -> Protocol {
    Protocol { window, prefill, stride: window, batch: 3, lead: None, page_tokens: 16, chunk: 7 }
}

/// Logits of every scored place, by the place of the token before it, and the stages that gave them.
fn staged(lane: EvalLane<'_>, ids: &[u32], protocol: &Protocol) -> (Vec<Vec<f32>>, Vec<Stage>) {
    let mut rows = vec![None; ids.len() - 1];
    visit_lanes(&[lane], ids, protocol, &mut |place, logits| {
        let row = &mut rows[place.token - 1];
        assert!(row.is_none(), "{place:?} came twice");
        *row = Some((logits[0].to_vec(), place.stage));
        Ok(())
    })
    .unwrap();
    rows.into_iter().flatten().unzip()
}

#[test]
fn prefill_hand_off_and_decode_give_the_logits_of_transformers() {
    let backend = cpu(CpuCompute::Reference);
    for path in fixtures() {
        let (name, wanted) = (name(&path), expected(&path));
        let model = model(&path, &backend, StageRecipe::Stored);
        let (vocab, lane) = (model.vocab(), lane(&backend, &*model, (KvFormat::F32, KvFormat::F32)));
        for prefill in [1, 15, 16, 17, 33, 47, 48] {
            let (rows, stages) = staged(lane, &wanted.ids, &protocol(48, prefill));
            let far = distance(&rows.concat(), &wanted.logits[..47 * vocab]);
            assert!(far <= 2e-5, "{name}, {prefill} tokens through prefill: {far:e}");
            let decoded = stages.iter().filter(|&&stage| stage == Stage::Decode).count();
            assert_eq!(decoded, 47 - prefill.min(47), "{name}");
        }
    }
}

/// Each window alone, in one pass, against all of them side by side in decode; 67 tokens in windows of 20 leave one of 7. Keys
/// and values, latents with sparse attention, and experts that rows of several windows share.
#[test]
fn windows_side_by_side_do_not_touch_each_other() {
    let backend = cpu(CpuCompute::Reference);
    for name in ["llama-bf16", "odd-glm_5_2", "qwen3_moe-int4"] {
        let model = model(&fixture(name), &backend, StageRecipe::Stored);
        let vocab = model.vocab();
        let ids: Vec<u32> = (0..67).map(|i| (i * 37 + 11) % vocab as u32).collect();
        let lane = lane(&backend, &*model, (KvFormat::F32, KvFormat::F32));
        let options = EvalOptions { kv: KvFormat::F32, page_tokens: 16, chunk: 64 };
        let alone: Vec<Vec<f32>> = ids.chunks(20).map(|window| logits(&*model, &backend, window, options).unwrap()).collect();
        for batch in [1, 2, 3, 9] {
            let mut seen = 0;
            visit_lanes(&[lane], &ids, &Protocol { batch, ..protocol(20, 5) }, &mut |place, rows| {
                let (window, row) = (place.token / 20, place.token % 20 - 1);
                let far = distance(rows[0], &alone[window][row * vocab..(row + 1) * vocab]);
                assert!(far <= 1e-5, "{name}, {place:?} in a batch of {batch}: {far:e}");
                seen += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!(seen, 67 - 4);
        }
    }
}

/// The hand-off between pools of one format changes no bit: decode reads what a single pool would have held. Chunks of one row
/// after the prefill part are the same computation in one pool.
#[test]
fn a_hand_off_in_one_format_changes_nothing() {
    let cases = [
        (CpuCompute::Reference, "llama-bf16", StageRecipe::Stored),
        (CpuCompute::Reference, "glm_moe_dsa-int4", StageRecipe::Stored),
        (CpuCompute::Fast, "llama-bf16", StageRecipe::Int8),
        (CpuCompute::Fast, "kimi_k25-int4", StageRecipe::Stored),
    ];
    for (compute, name, recipe) in cases {
        let backend = cpu(compute);
        let wanted = expected(&fixture(name));
        let model = model(&fixture(name), &backend, recipe);
        for kv in [KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8] {
            let one_pool = EvalOptions { kv, page_tokens: 16, chunk: 1 };
            let one_pool = logits(&*model, &backend, &wanted.ids, one_pool).unwrap();
            let rows_alone = Protocol { chunk: 1, ..protocol(48, 21) };
            let (rows, _) = staged(lane(&backend, &*model, (kv, kv)), &wanted.ids, &rows_alone);
            assert_eq!(rows.concat(), one_pool[..rows.len() * model.vocab()], "{name} {compute:?} {kv}");
        }
    }
}

#[test]
fn each_stage_answers_for_its_own_precision() {
    let backend = cpu(CpuCompute::Reference);
    let wanted = expected(&fixture("llama-bf16"));
    let (exact, coarse) = (
        model(&fixture("llama-bf16"), &backend, StageRecipe::Stored),
        model(&fixture("llama-int4"), &backend, StageRecipe::Stored),
    );
    let stage = |model, kv| EvalStage { model, kv };
    let exact_lane = lane(&backend, &*exact, (KvFormat::F32, KvFormat::F32));
    let mixed = EvalLane { backend: &backend, prefill: stage(&*exact, KvFormat::Bf16), decode: stage(&*coarse, KvFormat::Fp8) };
    let found = compare(exact_lane, mixed, &wanted.ids, &protocol(48, 24), &mut |_| {}).unwrap();
    println!("{found:#?}");
    assert_eq!((found.prefill.tokens, found.decode.tokens, found.all.tokens), (24, 23, 47));
    assert!(found.decode.mean > 10.0 * found.prefill.mean && found.prefill.mean > 0.0, "only decode has other weights");
    assert!(found.worst.iter().all(|token| token.place.stage == Stage::Decode) && found.worst.len() == 10);
    assert!(found.worst.is_sorted_by(|a, b| a.divergence >= b.divergence) && found.worst[0].divergence == found.all.max);
    // The same lane twice is no distance apart.
    let same = compare(mixed, mixed, &wanted.ids, &protocol(48, 24), &mut |_| {}).unwrap().all;
    assert_eq!((same.max, same.same_top, same.perplexity_ratio()), (0.0, 1.0, 1.0));
    // Narrowing on the way costs something, and no more than rounding K and V in e4m3 does.
    let narrowed = lane(&backend, &*exact, (KvFormat::F32, KvFormat::Fp8));
    let narrowed = compare(exact_lane, narrowed, &wanted.ids, &protocol(48, 24), &mut |_| {}).unwrap();
    assert_eq!(narrowed.prefill.max, 0.0, "prefill keeps f32");
    assert!(narrowed.decode.mean > 0.0 && narrowed.decode.mean < found.decode.mean, "{narrowed:?}");
}

#[test]
fn perplexity_is_that_of_the_reference_logits() {
    let backend = cpu(CpuCompute::Reference);
    for path in fixtures() {
        let (name, wanted) = (name(&path), expected(&path));
        let model = model(&path, &backend, StageRecipe::Stored);
        let rows = wanted.logits.chunks_exact(model.vocab()).zip(&wanted.ids[1..]);
        let nats: f64 = rows.map(|(row, &id)| log_sum_exp(row) - f64::from(row[id as usize])).sum();
        let lane = lane(&backend, &*model, (KvFormat::F32, KvFormat::F32));
        let mut told = Vec::new();
        for protocol in [Protocol::whole(48), protocol(48, 20)] {
            let found = perplexity(lane, &wanted.ids, &protocol, &mut |tokens| told.push(tokens)).unwrap();
            assert_eq!((found.all.tokens, found.all.tokens - found.prefill.tokens), (47, found.decode.tokens));
            let ratio = found.all.perplexity() / (nats / 47.0).exp();
            assert!((ratio - 1.0).abs() < 1e-4, "{name}: {found:?}, {ratio}");
        }
        assert_eq!(told.len(), 2 * 47);
        let options = EvalOptions { kv: KvFormat::F32, ..EvalOptions::default() };
        let sum: f32 = token_log_probabilities(&*model, &backend, &wanted.ids, options).unwrap().iter().sum();
        assert!((f64::from(sum) + nats).abs() < 1e-2, "{name}");
    }
}

/// Overlapping windows with a lead: every token but the first once, none twice.
#[test]
fn long_texts_are_scored_once_per_token() {
    let backend = cpu(CpuCompute::Fast);
    let model = model(&fixture("llama-bf16"), &backend, StageRecipe::Stored);
    let ids: Vec<u32> = (0..900u32).map(|i| (i * i + 3 * i) % 256).collect();
    let protocol = Protocol { stride: 32, lead: Some(1), batch: 8, ..protocol(64, 32) };
    assert_eq!(protocol.scored_tokens(ids.len()), 899);
    let found = perplexity(lane(&backend, &*model, (KvFormat::Bf16, KvFormat::Fp8)), &ids, &protocol, &mut |_| {}).unwrap();
    assert_eq!(found.all.tokens, 899);
    assert!(found.decode.tokens > 800 && found.all.perplexity() > 1.0, "{found:?}");
}

#[test]
fn what_cannot_be_run_is_an_error_that_says_why() {
    let backend = cpu(CpuCompute::Reference);
    let model = model(&fixture("llama-bf16"), &backend, StageRecipe::Stored);
    let run = |kv, ids: &[u32], protocol: Protocol| {
        let result = perplexity(lane(&backend, &*model, kv), ids, &protocol, &mut |_| {});
        result.map_err(|e: ModelError| e.to_string()).unwrap_err()
    };
    let f32 = (KvFormat::F32, KvFormat::F32);
    let ids = [1, 2, 3, 4, 5];
    let widened = run((KvFormat::Fp8, KvFormat::Bf16), &ids, protocol(5, 2));
    assert!(widened.contains("decode KV bf16 cannot hold what prefill wrote in fp8"), "{widened}");
    assert!(run(f32, &[7], Protocol::whole(1)).contains("nothing follows"));
    assert!(run(f32, &[1, 256], Protocol::whole(2)).contains("vocabulary of 256"));
    assert!(run(f32, &ids, Protocol { prefill: 6, ..Protocol::whole(5) }).contains("prefill part"));
    assert!(run(f32, &ids, Protocol { page_tokens: 20, ..Protocol::whole(5) }).contains("multiple of 16"));
    assert!(run(f32, &vec![1; 600], Protocol::whole(600)).contains("context of 512"));
    // Every window in decode at once: more tokens in pages than any evaluation has.
    let crowd = run(f32, &vec![1; 17_000_000], Protocol { batch: usize::MAX, ..protocol(500, 400) });
    assert!(crowd.contains("34000 sequences of 499 tokens"), "{crowd}");
}
