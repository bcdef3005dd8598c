//! Whether draws have the distribution that their sampler names. Seeds are fixed, so the tests do not flicker.

use millrace_cpu::CpuCompute;
use millrace_ops::{KvFormat, KvLayout, SamplerParams};

use crate::backend;
use crate::suite::sampling::sample;
use crate::suite::{Rig, World};

const ROWS: usize = 1000;
const STEPS: u32 = 20;
const LOGITS: [f32; 16] = [0.0, 1.5, -0.5, 2.0, 0.3, -2.0, 1.0, 0.9, -1.0, 0.0, 0.7, 1.9, -0.2, 0.4, -3.0, 1.2];

/// How often each token was drawn, by one seed over positions or by one position over seeds.
fn counts(sampler: SamplerParams, by_position: impl Fn(u32) -> (u64, u32)) -> Vec<f64> {
    let backend = backend(2, CpuCompute::Fast, None);
    let mut rig = Rig::new(&backend, &backend, 0.0);
    let layout = KvLayout::grouped_query(1, 1, 16, 16, KvFormat::F32);
    let world = World::new(&mut rig, layout, &[(0, 1); ROWS]);
    let logits = LOGITS.repeat(ROWS);
    let mut counts = vec![0.0; LOGITS.len()];
    for step in 0..STEPS {
        let make = |row: u32| {
            let (seed, position) = by_position(step * ROWS as u32 + row);
            SamplerParams { seed, position, segment: row, ..sampler }
        };
        let samplers: Vec<SamplerParams> = (0..ROWS as u32).map(make).collect();
        for record in sample(&mut rig, &world, &logits, &samplers) {
            counts[record.token() as usize] += 1.0;
        }
    }
    counts
}

/// Sum of (got - want)^2 / want, with as many degrees of freedom as there are tokens of positive weight, less one.
fn chi_square(counts: &[f64], weights: &[f64]) -> f64 {
    let (draws, total): (f64, f64) = (counts.iter().sum(), weights.iter().sum());
    let mut sum = 0.0;
    for (count, weight) in counts.iter().zip(weights) {
        let want = draws * weight / total;
        if want > 0.0 {
            sum += (count - want).powi(2) / want;
        } else {
            assert_eq!(*count, 0.0, "a token that the filters leave out was drawn");
        }
    }
    sum
}

fn weights(temperature: f64) -> Vec<f64> {
    LOGITS.iter().map(|logit| (f64::from(*logit) / temperature).exp()).collect()
}

#[test]
fn draws_follow_the_softmax() {
    let sampler = SamplerParams { temperature: 1.3, top_p: 1.0, ..SamplerParams::default() };
    let want = weights(1.3);
    // 37.7 is the 99.9th percentile at 15 degrees of freedom.
    let over_positions = chi_square(&counts(sampler, |n| (42, n)), &want);
    assert!(over_positions < 37.7, "one seed, all positions: {over_positions}");
    let over_seeds = chi_square(&counts(sampler, |n| (u64::from(n) << 32 | 5, 9)), &want);
    assert!(over_seeds < 37.7, "one position, all seeds: {over_seeds}");
}

#[test]
fn filtered_draws_follow_the_rest_of_the_softmax() {
    let sampler = SamplerParams { temperature: 1.0, top_p: 1.0, top_k: 6, ..SamplerParams::default() };
    let mut want = weights(1.0);
    let mut sorted = want.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    want.iter_mut().filter(|w| **w < sorted[5]).for_each(|w| *w = 0.0);
    // 20.5 and 18.5 are the 99.9th percentiles at 5 and 4 degrees of freedom.
    let top_k = chi_square(&counts(sampler, |n| (7, n)), &want);
    assert!(top_k < 20.5, "top-k: {top_k}");
    let sampler = SamplerParams { temperature: 1.0, top_p: 1.0, min_p: 0.35, ..SamplerParams::default() };
    let mut want = weights(1.0);
    let floor = want.iter().copied().fold(0.0, f64::max) * 0.35;
    want.iter_mut().filter(|w| **w < floor).for_each(|w| *w = 0.0);
    let kept = want.iter().filter(|w| **w > 0.0).count();
    assert_eq!(kept, 5);
    let min_p = chi_square(&counts(sampler, |n| (8, n)), &want);
    assert!(min_p < 18.5, "min-p: {min_p}");
}
