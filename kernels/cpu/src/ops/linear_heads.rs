//! LinearHeads: a product per head over a run of columns of its own. Divides heads and panels among workers; knows no weight
//! layout.

use millrace_ops::{BackendError, LinearHeads, LinearMode};

use crate::linear::{LinearTask, PackedWeight, chunk_panels, multiply, quantize};
use crate::memory::Region;
use crate::ops::weights::PreparedSet;
use crate::pool::Compute;
use crate::task::{Arguments, Task, Worker, product};

/// Two phases where the weights want quantized rows, else one. The rows of head h are those from `h * rows` on
/// of the scratch.
pub(crate) struct LinearHeadsTask {
    arguments: Arguments,
    x: Region,
    x_stride: usize,
    x_offset: usize,
    x_step: usize,
    weights: PreparedSet,
    out: Region,
    rows: usize,
}

impl LinearHeadsTask {
    pub(crate) fn new(arguments: Arguments, op: LinearHeads, compute: Compute) -> Result<Self, BackendError> {
        let LinearHeads { x, x_stride, x_offset, x_step, weights, out, rows } = op;
        let weights = PreparedSet::new(arguments, weights, compute.step_rows())?;
        let heads = weights.count();
        let end = product(&[heads - 1, x_step]).saturating_add(x_offset).saturating_add(weights.cols);
        arguments.require(end <= x_stride, || format!("heads end at column {end} of rows of {x_stride}"))?;
        let x = arguments.region("x", x, product(&[rows, x_stride, 4]))?;
        let out = arguments.region("out", out, product(&[rows, heads, weights.rows, 4]))?;
        arguments.distinct(&x, &out)?;
        Ok(Self { arguments, x, x_stride, x_offset, x_step, weights, out, rows })
    }

    fn task<'a>(&self, head: usize, weight: &'a PackedWeight) -> LinearTask<'a> {
        let (rows, width) = (self.rows, self.weights.count() * self.weights.rows);
        // The sizes were checked by `new`; a head's columns end within a row, and where there are no rows, nothing is followed.
        let x = self.x.address_of::<f32>(rows * self.x_stride).wrapping_add(self.x_offset + head * self.x_step);
        let out = self.out.address_of::<f32>(rows * width).wrapping_add(head * self.weights.rows);
        LinearTask {
            weight,
            form: self.weights.form,
            x,
            x_stride: self.x_stride,
            rows,
            quantized_row: head * rows,
            out,
            out_stride: width,
            bias: None,
            mode: LinearMode::Store,
        }
    }

    fn quantize(&self, worker: &Worker<'_>) -> Result<(), BackendError> {
        let total = self.weights.count() * self.rows;
        let chunk = worker.chunk(total);
        while let Some(range) = worker.take(chunk, total) {
            let mut at = range.start;
            while at < range.end {
                let (head, first) = (at / self.rows, at % self.rows);
                let count = (range.end - at).min(self.rows - first);
                let task = self.task(head, self.weights.packed(self.arguments, head)?);
                // SAFETY: `x` is written by nobody in this phase; the shared scratch was reserved for `quantized` of this
                // task; these rows of it belong to the worker that took them.
                unsafe { quantize(&task, first..first + count, worker.quantized) };
                at += count;
            }
        }
        Ok(())
    }
}

impl Task for LinearHeadsTask {
    fn phases(&self) -> usize {
        if self.weights.form.in_scratch() { 2 } else { 1 }
    }

    fn quantized(&self) -> Option<(usize, usize)> {
        self.weights
            .form
            .in_scratch()
            .then_some((self.weights.count() * self.rows * self.weights.form.passes(), self.weights.cols))
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        if phase + 1 < self.phases() {
            return self.quantize(worker);
        }
        let heads = self.weights.count();
        let chunk = chunk_panels(heads * self.weights.panels, worker.workers);
        let pieces = self.weights.panels.div_ceil(chunk);
        while let Some(range) = worker.take(1, heads * pieces) {
            for item in range {
                let (head, first) = (item / pieces, item % pieces * chunk);
                let task = self.task(head, self.weights.packed(self.arguments, head)?);
                // SAFETY: addresses and sizes were checked by `new`; `x` and scratch are written by nobody in this phase;
                // these columns of `out` belong to the worker that took the item.
                unsafe { multiply(&task, first..first + chunk, worker.quantized) };
            }
        }
        Ok(())
    }
}
