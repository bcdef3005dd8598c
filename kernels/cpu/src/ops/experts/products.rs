//! LinearExperts: each slot by its expert's weight. Slots of an expert are neighbours, so an expert's product is that of a plain
//! linear layer over a run of rows; which runs there are is read on the device. Knows no weight layout.

use millrace_ops::{BackendError, LinearExperts, LinearMode};

use super::division::Division;
use super::{Starts, slot_count};
use crate::linear::{LinearTask, PackedWeight, multiply, quantize};
use crate::memory::Region;
use crate::ops::step::Walk;
use crate::ops::weights::PreparedSet;
use crate::pool::Compute;
use crate::task::{Arguments, Task, Worker, product};

/// Two phases where the weights want quantized rows, else one.
pub(crate) struct LinearExpertsTask {
    arguments: Arguments,
    x: Region,
    weights: PreparedSet,
    starts: Starts,
    out: Region,
    slots: usize,
}

impl LinearExpertsTask {
    pub(crate) fn new(arguments: Arguments, op: LinearExperts, compute: Compute) -> Result<Self, BackendError> {
        let LinearExperts { x, weights, by, out, rows } = op;
        let slots = slot_count(arguments, &by, rows)?;
        let weights = PreparedSet::new(arguments, weights, compute.step_rows())?;
        arguments.require(weights.count() == by.experts, || format!("{} weights for {} experts", weights.count(), by.experts))?;
        let x = arguments.region("x", x, product(&[slots, weights.cols, 4]))?;
        let out = arguments.region("out", out, product(&[slots, weights.rows, 4]))?;
        let starts = Starts::new(arguments, &by, slots)?;
        arguments.distinct(&x, &out)?;
        arguments.distinct(&starts.words, &out)?;
        Ok(Self { arguments, x, weights, starts, out, slots })
    }

    /// The product of `count` slots from `first` on with `weight`; both within the slots.
    fn task<'a>(&self, weight: &'a PackedWeight, (first, count): (usize, usize)) -> LinearTask<'a> {
        let (cols, width) = (self.weights.cols, self.weights.rows);
        // The sizes were checked by `new`; `first` is at most the number of slots.
        let x = self.x.address_of::<f32>(self.slots * cols).wrapping_add(first * cols);
        let out = self.out.address_of::<f32>(self.slots * width).wrapping_add(first * width);
        LinearTask {
            weight,
            form: self.weights.form,
            x,
            x_stride: cols,
            rows: count,
            quantized_row: first,
            out,
            out_stride: width,
            bias: None,
            mode: LinearMode::Store,
        }
    }

    fn quantize(&self, worker: &Worker<'_>) -> Result<(), BackendError> {
        // How rows are quantized is the same for all weights of the set.
        let task = self.task(self.weights.packed(self.arguments, 0)?, (0, self.slots));
        let chunk = worker.chunk(self.slots);
        while let Some(rows) = worker.take(chunk, self.slots) {
            // SAFETY: `x` is written by nobody in this phase; the shared scratch was reserved for `quantized` of this task;
            // these rows of it belong to the worker that took them.
            unsafe { quantize(&task, rows, worker.quantized) };
        }
        Ok(())
    }
}

impl Task for LinearExpertsTask {
    fn phases(&self) -> usize {
        if self.weights.form.in_scratch() { 2 } else { 1 }
    }

    fn quantized(&self) -> Option<(usize, usize)> {
        self.weights.form.in_scratch().then_some((self.slots * self.weights.form.passes(), self.weights.cols))
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        if phase + 1 < self.phases() {
            return self.quantize(worker);
        }
        let starts = self.starts.checked(self.arguments)?;
        let division = Division::new(starts, self.weights.panels, worker.workers);
        let total = division.total();
        let mut walk = Walk::new(|expert| division.items(expert));
        while let Some(range) = worker.take(1, total) {
            for item in range {
                let (expert, piece) = walk.locate(item);
                let chunk = division.chunk(expert);
                let task = self.task(self.weights.packed(self.arguments, expert)?, division.slots(expert));
                // SAFETY: addresses and sizes were checked by `new`, that the slots are within them by `checked`; `x` and
                // scratch are written by nobody in this phase; these columns of the expert's slots of `out` belong to the
                // worker that took the item.
                unsafe { multiply(&task, piece * chunk..(piece + 1) * chunk, worker.quantized) };
            }
        }
        Ok(())
    }
}
