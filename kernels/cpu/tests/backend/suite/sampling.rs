//! Sample: greedy choices, filters, statuses, and independence of the batch.

use millrace_ops::{KvFormat, KvLayout, Op, RowStatus, Sample, SamplerParams, StepRecord, as_bytes};

use super::{Rig, World, upload};

pub(crate) fn suite(rig: &mut Rig<'_>) {
    for vocab in [1, 7, 1000, 4096, 9001, 49_152] {
        greedy(rig, vocab);
    }
    statuses(rig);
    filters(rig);
    batch_independence(rig);
}

/// A world with `count` sequences and nothing in them.
fn world(rig: &mut Rig<'_>, count: usize) -> World {
    let layout = KvLayout::grouped_query(1, 1, 16, 16, KvFormat::F32);
    World::new(rig, layout, &vec![(0, 1); count])
}

pub(crate) fn sample(rig: &mut Rig<'_>, world: &World, logits: &[f32], samplers: &[SamplerParams]) -> Vec<StepRecord> {
    let (count, sequences) = (samplers.len(), world.sequences.len());
    let vocab = logits.len() / count;
    let logits = rig.floats(logits);
    let op = Sample { logits, step: world.step.clone(), count, sequences, vocab, step_number: 3 };
    rig.run([upload(&world.step.samplers, as_bytes(samplers)), Op::Sample(op)]);
    rig.records(&world.step.records, sequences)
}

fn hot(seed: u64, position: u32, segment: u32) -> SamplerParams {
    SamplerParams { temperature: 0.8, top_p: 1.0, seed, position, segment, ..SamplerParams::default() }
}

fn greedy(rig: &mut Rig<'_>, vocab: usize) {
    let world = world(rig, 3);
    let mut logits = rig.random.floats(3 * vocab);
    let mut want = Vec::new();
    for row in logits.chunks_mut(vocab) {
        let (a, b) = (rig.random.below(vocab), rig.random.below(vocab));
        row[a] = 4.0;
        row[b] = 4.0;
        want.push(a.min(b) as u32);
    }
    logits[2 * vocab..].fill(-1.5);
    want[2] = 0;
    let samplers: Vec<SamplerParams> =
        (0..3).map(|segment| SamplerParams { segment, top_p: 1.0, ..SamplerParams::default() }).collect();
    let tokens: Vec<u32> = sample(rig, &world, &logits, &samplers).iter().map(|r| r.token()).collect();
    assert_eq!(tokens, want, "ties go to the lowest id (vocabulary {vocab})");
}

fn statuses(rig: &mut Rig<'_>) {
    let world = world(rig, 7);
    let vocab = 5000;
    let mut logits = rig.random.floats(5 * vocab);
    logits[vocab + 4999] = f32::NAN;
    logits[2 * vocab + 17] = f32::INFINITY;
    logits[3 * vocab..4 * vocab].fill(f32::NEG_INFINITY);
    logits[4 * vocab..].fill(f32::NEG_INFINITY);
    logits[4 * vocab + 4998] = -3.0;
    let samplers: Vec<SamplerParams> = [6, 1, 2, 3, 5].map(|segment| hot(1, 2, segment)).to_vec();
    rig.run([upload(&world.step.verdicts, as_bytes(&[0u32, 0, 0, 0, 1, 0, 1]))]);
    let records = sample(rig, &world, &logits, &samplers);
    let statuses: Vec<RowStatus> = records.iter().map(|r| r.status()).collect();
    let (ok, bad, stale) = (RowStatus::Ok, RowStatus::NotFinite, RowStatus::StalePage);
    assert_eq!(statuses, [ok, bad, bad, bad, stale, ok, stale]);
    let tokens: Vec<u32> = records.iter().map(|r| r.token()).collect();
    assert_eq!(tokens, [0, 0, 0, 0, 0, 4998, 0]);
    assert!(records.iter().all(|r| r.step() == 3));
}

/// Which tokens a sampler may give, by the definition of its filters.
fn allowed(logits: &[f32], sampler: &SamplerParams) -> Vec<u32> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    if sampler.top_k > 0 {
        order.truncate(sampler.top_k as usize);
    }
    let largest = f64::from(logits[order[0] as usize]);
    let weight = |id: &u32| ((f64::from(logits[*id as usize]) - largest) / f64::from(sampler.temperature)).exp();
    let total: f64 = order.iter().map(weight).sum();
    let mut mass = 0.0;
    let mut kept = Vec::new();
    for id in &order {
        if mass >= f64::from(sampler.top_p) * total {
            break;
        }
        mass += weight(id);
        kept.push(*id);
    }
    kept.retain(|id| weight(id) >= f64::from(sampler.min_p));
    kept
}

fn filters(rig: &mut Rig<'_>) {
    let count = 64;
    let world = world(rig, count);
    let vocab = 10_000;
    for (top_k, top_p, min_p) in [
        (5, 1.0, 0.0),
        (0, 0.3, 0.0),
        (0, 1.0, 0.5),
        (40, 0.5, 0.0),
        (40, 0.9, 0.3),
        (1, 1.0, 0.0),
        (0, 0.97, 0.0),
        (20_000, 1.0, 0.9),
    ] {
        let row: Vec<f32> = rig.random.floats(vocab).iter().map(|v| v * 3.0).collect();
        let make = |i: usize| SamplerParams { top_k, top_p, min_p, temperature: 0.7, ..hot(i as u64 * 77, 5, i as u32) };
        let samplers: Vec<SamplerParams> = (0..count).map(make).collect();
        let records = sample(rig, &world, &row.repeat(count), &samplers);
        let allowed = allowed(&row, &samplers[0]);
        let mut seen = std::collections::BTreeSet::new();
        for record in &records {
            assert_eq!(record.status(), RowStatus::Ok);
            assert!(allowed.contains(&record.token()), "k {top_k} p {top_p} m {min_p}: {} is filtered out", record.token());
            seen.insert(record.token());
        }
        assert!(allowed.len() < 4 || seen.len() > 2, "k {top_k} p {top_p} m {min_p}: draws vary");
    }
}

fn batch_independence(rig: &mut Rig<'_>) {
    let (count, vocab) = (12, 6000);
    let world = world(rig, count);
    let logits: Vec<f32> = rig.random.floats(count * vocab).iter().map(|v| v * 4.0).collect();
    let make = |i: usize| SamplerParams {
        top_k: [0, 50][i % 2],
        top_p: [1.0, 1.0, 0.9][i % 3],
        ..hot(1000 + i as u64, i as u32, i as u32)
    };
    let samplers: Vec<SamplerParams> = (0..count).map(make).collect();
    let together = sample(rig, &world, &logits, &samplers);
    for i in 0..count {
        let alone = sample(rig, &world, &logits[i * vocab..][..vocab], &samplers[i..=i]);
        assert_eq!(alone[i].token(), together[i].token(), "row {i} alone");
    }
}
