//! RouteRows: each row's experts, then slots grouped by expert. Knows router logits; no weight and no activation.

use std::ops::Range;

use millrace_ops::{BackendError, RouteRows, RouteRule};

use super::choice::Chooser;
use super::slot_count;
use crate::memory::Region;
use crate::task::{Arguments, Task, Worker, product};

/// Up to this many rows one worker does everything: that is shorter than a barrier.
const ALONE_ROWS: usize = 4;

/// Two phases: choices by all workers, then the grouping by one; one phase where rows are few.
pub(crate) struct RouteRowsTask {
    logits: Region,
    bias: Option<Region>,
    rule: RouteRule,
    experts: usize,
    top_k: usize,
    ids: Region,
    weights: Region,
    slots: Region,
    slot_rows: Region,
    starts: Region,
    rows: usize,
}

impl RouteRowsTask {
    pub(crate) fn new(arguments: Arguments, op: RouteRows) -> Result<Self, BackendError> {
        let RouteRows { logits, bias, rule, to, rows } = op;
        let slot_bytes = product(&[slot_count(arguments, &to, rows)?, 4]);
        let (experts, top_k) = (to.experts, to.top_k);
        check_groups(arguments, &rule, experts, top_k)?;
        let logits = arguments.region("logits", logits, product(&[rows, experts, 4]))?;
        let bias = bias.map(|bias| arguments.region("bias", bias, product(&[experts, 4]))).transpose()?;
        let ids = arguments.region("to.ids", to.ids, slot_bytes)?;
        let weights = arguments.region("to.weights", to.weights, slot_bytes)?;
        let slots = arguments.region("to.slots", to.slots, slot_bytes)?;
        let slot_rows = arguments.region("to.slot_rows", to.slot_rows, slot_bytes)?;
        let starts = arguments.region("to.starts", to.starts, product(&[experts + 1, 4]))?;
        let outputs = [&ids, &weights, &slots, &slot_rows, &starts];
        for (i, output) in outputs.iter().enumerate() {
            let inputs = std::iter::once(&logits).chain(&bias);
            for other in inputs.chain(outputs[..i].iter().copied()) {
                arguments.distinct(other, output)?;
            }
        }
        Ok(Self { logits, bias, rule, experts, top_k, ids, weights, slots, slot_rows, starts, rows })
    }

    /// Experts and weights of rows that the worker took.
    fn choose(&self, rows: Range<usize>, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let (experts, top_k) = (self.experts, self.top_k);
        // SAFETY: another buffer than the outputs; nobody writes it in this phase.
        let bias = self.bias.as_ref().map(|bias| unsafe { bias.items::<f32>(0, experts) });
        let scratch = worker.scratch.floats(Chooser::scratch_floats(experts, &self.rule))?;
        let mut chooser = Chooser::new(&self.rule, bias, experts, scratch);
        for row in rows {
            // SAFETY: another buffer than the outputs; nobody writes it in this phase.
            let logits = unsafe { self.logits.items(row * experts, experts) };
            // SAFETY: these rows' choices belong to the worker that took the rows.
            let (ids, weights) = unsafe { (self.ids.items_mut(row * top_k, top_k), self.weights.items_mut(row * top_k, top_k)) };
            chooser.choose(logits, ids, weights);
        }
        Ok(())
    }

    /// Slots by expert ascending, within an expert by row ascending. For one worker, after all choices.
    fn group(&self) {
        let count = self.rows * self.top_k;
        // SAFETY: choices are complete and one worker is in here, so nobody writes ids, and the others are its own.
        let (ids, slots, slot_rows, starts) = unsafe {
            (
                self.ids.items::<u32>(0, count),
                self.slots.items_mut::<u32>(0, count),
                self.slot_rows.items_mut::<u32>(0, count),
                self.starts.items_mut::<u32>(0, self.experts + 1),
            )
        };
        // Slots per expert, one place ahead; then each expert's first slot, which moves on as its slots are given out and
        // ends as the first slot of the next expert.
        starts.fill(0);
        for id in ids {
            starts[*id as usize + 1] += 1;
        }
        for expert in 0..self.experts {
            starts[expert + 1] += starts[expert];
        }
        for (row, (ids, slots)) in (0u32..).zip(ids.chunks_exact(self.top_k).zip(slots.chunks_exact_mut(self.top_k))) {
            for (id, slot) in ids.iter().zip(slots) {
                let next = &mut starts[*id as usize];
                (*slot, slot_rows[*next as usize]) = (*next, row);
                *next += 1;
            }
        }
        starts.copy_within(..self.experts, 1);
        starts[0] = 0;
    }
}

/// Whether a rule can be followed: groups of equal size, and enough experts in those that may be chosen from.
fn check_groups(arguments: Arguments, rule: &RouteRule, experts: usize, top_k: usize) -> Result<(), BackendError> {
    let RouteRule { groups, top_groups, .. } = *rule;
    arguments.require(groups > 0 && experts.is_multiple_of(groups), || {
        format!("{experts} experts do not make {groups} groups of equal size")
    })?;
    arguments.require(top_groups > 0 && top_groups <= groups, || {
        format!("top_groups of {top_groups} of {groups} groups; use 1 to {groups}")
    })?;
    let choice = top_groups * (experts / groups);
    arguments.require(top_k <= choice, || {
        format!("top_k of {top_k} where {top_groups} groups of {} experts leave a choice of {choice}", experts / groups)
    })
}

impl Task for RouteRowsTask {
    fn phases(&self) -> usize {
        if self.rows <= ALONE_ROWS { 1 } else { 2 }
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        if self.phases() == 1 {
            if worker.take(1, 1).is_some() {
                self.choose(0..self.rows, worker)?;
                self.group();
            }
            return Ok(());
        }
        if phase == 0 {
            let chunk = worker.chunk(self.rows);
            while let Some(rows) = worker.take(chunk, self.rows) {
                self.choose(rows, worker)?;
            }
        } else if worker.take(1, 1).is_some() {
            self.group();
        }
        Ok(())
    }
}
