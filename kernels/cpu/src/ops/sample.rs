//! Sample: one token per logits row. Knows logits and sampler parameters, no tokenizer.
//!
//! With a temperature the filters apply in this order: temperature, top-k, top-p (over what top-k left), min-p (against the
//! likeliest token); then one number from [`crate::philox`], named by (seed, position), picks by inverse of the cumulative
//! weights: in order of ids where neither top-k nor top-p is on, else in order of falling weight. A draw depends on its row,
//! seed and position alone: rows are cut into fixed blocks, and partial results are combined in order.

use std::sync::atomic::Ordering;

use millrace_ops::{BackendError, RowStatus, Sample, SamplerParams, StepRecord};

use crate::memory::{Plain, Region};
use crate::ops::step::Step;
use crate::philox::uniform;
use crate::task::{Arguments, Task, Worker, product};

/// Logits of one work item.
const BLOCK: usize = 4096;
/// Candidates that top-p without top-k begins with; eight times as many where they do not hold enough of the mass.
const FIRST_CANDIDATES: usize = 64;

/// What a block of a row's logits comes to.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Partial {
    largest: f32,
    /// 0, or 1 where a logit is NaN or +inf.
    bad: u32,
}

// SAFETY: two words without padding, any bits are valid.
unsafe impl Plain for Partial {}

/// How a row is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Plan {
    /// `None`: the largest logit.
    inverse_temperature: Option<f32>,
    /// Whether top-k or top-p is on, so that candidates are ordered by weight.
    by_weight: bool,
}

impl Plan {
    fn of(sampler: &SamplerParams, vocab: usize) -> Self {
        let top_k = sampler.top_k != 0 && (sampler.top_k as usize) < vocab;
        let hot = sampler.temperature > 0.0;
        // A denormal temperature has an infinite inverse, and 0 * inf is no number.
        let inverse_temperature = hot.then(|| (1.0 / sampler.temperature).min(f32::MAX));
        Self { inverse_temperature, by_weight: top_k || sampler.top_p < 1.0 }
    }
}

/// Three phases: largest logit per block; sum of weights per block; one draw per row.
pub(crate) struct SampleTask {
    arguments: Arguments,
    logits: Region,
    step: Step,
    samplers: Region,
    records: Region,
    count: usize,
    vocab: usize,
    step_number: u32,
}

impl SampleTask {
    pub(crate) fn new(arguments: Arguments, op: Sample) -> Result<Self, BackendError> {
        let Sample { logits, step, count, sequences, vocab, step_number } = op;
        arguments.require(vocab > 0 && u32::try_from(vocab).is_ok(), || format!("a vocabulary of {vocab}"))?;
        let logits = arguments.region("logits", logits, product(&[count, vocab, 4]))?;
        let samplers = arguments.region("step.samplers", step.samplers.clone(), product(&[count, size_of::<SamplerParams>()]))?;
        let records = arguments.region("step.records", step.records.clone(), product(&[sequences, 8]))?;
        let step = Step::new(arguments, &step, sequences)?;
        Ok(Self { arguments, logits, step, samplers, records, count, vocab, step_number })
    }

    fn blocks(&self) -> usize {
        self.vocab.div_ceil(BLOCK)
    }

    fn sampler(&self, row: usize) -> SamplerParams {
        // SAFETY: only uploads write samplers, in phases of their own.
        unsafe { self.samplers.items(row, 1)[0] }
    }

    fn row(&self, row: usize) -> &[f32] {
        // SAFETY: logits are written by nobody in this operation.
        unsafe { self.logits.items(row * self.vocab, self.vocab) }
    }

    fn record(&self, sequence: usize, token: u32, status: RowStatus) {
        let status = if self.step.flagged(sequence) { RowStatus::StalePage } else { status };
        let token = if status == RowStatus::Ok { token } else { 0 };
        let record = StepRecord::new(token, status, self.step_number);
        self.records.double_word(sequence).store(record.0, Ordering::Release);
    }

    /// A record for each sequence, then the largest logit of each block.
    fn scan(&self, worker: &Worker<'_>) {
        let (sequences, blocks) = (self.step.sequences, self.blocks());
        while let Some(range) = worker.take(1, sequences + self.count * blocks) {
            for item in range {
                let Some(item) = item.checked_sub(sequences) else {
                    self.record(item, 0, RowStatus::Ok);
                    continue;
                };
                let start = item % blocks * BLOCK;
                let logits = &self.row(item / blocks)[start..self.vocab.min(start + BLOCK)];
                let scan = crate::simd::scan(worker.isa, logits);
                let partial = Partial { largest: scan.largest, bad: u32::from(!scan.fine) };
                // SAFETY: this partial belongs to the worker that took the item.
                unsafe { worker.shared.items_mut(item, 1)[0] = partial };
            }
        }
    }

    /// A row's largest logit and the first block that holds it; `None` where the row is not finite.
    fn largest(&self, row: usize, worker: &Worker<'_>) -> Option<(f32, usize)> {
        let blocks = self.blocks();
        // SAFETY: this part of partials was written in the first phase and is not written now.
        let partials = unsafe { worker.shared.items::<Partial>(row * blocks, blocks) };
        let mut best = (f32::NEG_INFINITY, 0);
        for (block, partial) in partials.iter().enumerate() {
            if partial.bad != 0 {
                return None;
            }
            if partial.largest > best.0 {
                best = (partial.largest, block);
            }
        }
        (best.0 > f32::NEG_INFINITY).then_some(best)
    }

    /// The first of a row's largest logits.
    fn greedy(&self, row: usize, (largest, block): (f32, usize)) -> u32 {
        let logits = self.row(row).iter().skip(block * BLOCK);
        let within = logits.take_while(|logit| **logit != largest).count();
        u32::try_from(block * BLOCK + within).unwrap_or(0)
    }

    /// Sums of the weights of each block, of those that min-p keeps where that is the only filter. They lie behind the
    /// partials, so that reading those needs no care.
    fn sum(&self, worker: &Worker<'_>) {
        let blocks = self.blocks();
        while let Some(range) = worker.take(1, self.count * blocks) {
            for item in range {
                let row = item / blocks;
                let sampler = self.sampler(row);
                let plan = Plan::of(&sampler, self.vocab);
                let (Some(inverse), Some((largest, _))) = (plan.inverse_temperature, self.largest(row, worker)) else { continue };
                let floor = if plan.by_weight { 0.0 } else { sampler.min_p };
                let start = item % blocks * BLOCK;
                let logits = &self.row(row)[start..self.vocab.min(start + BLOCK)];
                let sum = crate::simd::sum_weights(worker.isa, logits, largest, inverse, floor);
                // SAFETY: this sum belongs to the worker that took the item.
                unsafe { worker.shared.items_at_mut::<f32>(self.sums_offset() + item * 4, 1)[0] = sum };
            }
        }
    }

    fn sums_offset(&self) -> usize {
        self.count * self.blocks() * size_of::<Partial>()
    }

    fn draw(&self, row: usize, worker: &Worker<'_>) -> Result<(), BackendError> {
        let sampler = self.sampler(row);
        let (segment, sequences) = (sampler.segment as usize, self.step.sequences);
        self.arguments.require(segment < sequences, || format!("sampler {row} names segment {segment} of {sequences}"))?;
        let Some((largest, block)) = self.largest(row, worker) else {
            self.record(segment, 0, RowStatus::NotFinite);
            return Ok(());
        };
        let plan = Plan::of(&sampler, self.vocab);
        let token = match plan.inverse_temperature {
            None => self.greedy(row, (largest, block)),
            Some(inverse) => {
                let blocks = self.blocks();
                // SAFETY: sums were written in the second phase and are not written now.
                let sums = unsafe { worker.shared.items_at::<f32>(self.sums_offset() + row * blocks * 4, blocks) };
                let weights = Weights { logits: self.row(row), largest, inverse };
                let pick =
                    if plan.by_weight { weights.pick_by_weight(&sampler, sums) } else { weights.pick_by_id(&sampler, sums) };
                pick.unwrap_or_else(|| self.greedy(row, (largest, block)))
            }
        };
        self.record(segment, token, RowStatus::Ok);
        Ok(())
    }
}

impl Task for SampleTask {
    fn phases(&self) -> usize {
        3
    }

    fn shared_bytes(&self, _workers: usize) -> usize {
        self.sums_offset() + self.count * self.blocks() * 4
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        match phase {
            0 => self.scan(worker),
            1 => self.sum(worker),
            _ => {
                while let Some(range) = worker.take(1, self.count) {
                    for row in range {
                        self.draw(row, worker)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A row's weights: `exp((logit - largest) / temperature)`, so the likeliest token has weight 1.
struct Weights<'a> {
    logits: &'a [f32],
    largest: f32,
    inverse: f32,
}

impl Weights<'_> {
    fn of(&self, logit: f32) -> f32 {
        ((logit - self.largest) * self.inverse).exp()
    }

    fn pick_by_id(&self, sampler: &SamplerParams, sums: &[f32]) -> Option<u32> {
        let total: f64 = sums.iter().copied().map(f64::from).sum();
        let mut left = uniform(sampler.seed, sampler.position) * total;
        // Rounding may leave the target behind the last block: the last block with any weight has it then.
        let last = sums.iter().rposition(|sum| *sum > 0.0)?;
        let mut block = 0;
        while block < last && left >= f64::from(sums[block]) {
            left -= f64::from(sums[block]);
            block += 1;
        }
        let logits = self.logits.iter().enumerate().skip(block * BLOCK).take(BLOCK);
        let kept = logits.map(|(id, logit)| (id, self.of(*logit))).filter(|(_, w)| *w > 0.0 && *w >= sampler.min_p);
        let mut picked = None;
        for (id, weight) in kept {
            picked = u32::try_from(id).ok();
            left -= f64::from(weight);
            if left < 0.0 {
                break;
            }
        }
        picked
    }

    fn pick_by_weight(&self, sampler: &SamplerParams, sums: &[f32]) -> Option<u32> {
        let limit = if sampler.top_k == 0 { self.logits.len() } else { self.logits.len().min(sampler.top_k as usize) };
        let mut wanted = if sampler.top_k == 0 { FIRST_CANDIDATES.min(limit) } else { limit };
        loop {
            let candidates = highest(self.logits, wanted);
            let weights: Vec<f64> = candidates.iter().map(|c| f64::from(self.of(c.0))).collect();
            let total = if sampler.top_k == 0 { sums.iter().copied().map(f64::from).sum() } else { weights.iter().sum::<f64>() };
            let mut mass = 0.0;
            // The shortest run of the likeliest tokens that holds top-p of the mass; at least one.
            let reach = weights.iter().position(|weight| {
                mass += weight;
                mass >= f64::from(sampler.top_p) * total
            });
            if reach.is_none() && wanted < limit {
                wanted = (wanted * 8).min(limit);
                continue;
            }
            let kept = reach.map_or(weights.len(), |last| last + 1);
            let kept = weights[..kept].iter().take_while(|weight| **weight >= f64::from(sampler.min_p)).count().max(1);
            let mut left = uniform(sampler.seed, sampler.position) * weights[..kept].iter().sum::<f64>();
            let picked = weights[..kept].iter().position(|weight| {
                left -= weight;
                left < 0.0
            });
            return candidates.get(picked.unwrap_or(kept - 1)).map(|candidate| candidate.1);
        }
    }
}

/// The `count` highest logits with their ids, falling; ties by rising id. Never sorts more than about `2 * count` of them.
fn highest(logits: &[f32], count: usize) -> Vec<(f32, u32)> {
    let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let mut best: Vec<(f32, u32)> = Vec::with_capacity((2 * count).min(logits.len()) + 1);
    let mut bar = f32::NEG_INFINITY;
    for (id, &logit) in (0u32..).zip(logits) {
        if best.len() >= count && logit <= bar {
            continue;
        }
        // -0 and 0 are the same logit.
        best.push((logit + 0.0, id));
        if best.len() >= 2 * count {
            best.select_nth_unstable_by(count - 1, order);
            best.truncate(count);
            bar = best[count - 1].0;
        }
    }
    best.sort_unstable_by(order);
    best.truncate(count);
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_are_those_of_a_full_sort() {
        let mut state = 7u32;
        let logits: Vec<f32> = (0..5000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 16) % 500) as f32
            })
            .collect();
        let mut sorted: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
        sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for count in [1, 2, 17, 500, 4999, 5000] {
            assert_eq!(highest(&logits, count), sorted[..count], "{count}");
        }
    }
}
