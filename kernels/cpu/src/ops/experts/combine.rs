//! CombineRows: each row's weighted sum over its slots. Knows not what rows hold.
//!
//! A row's slots are summed in the order of its own choices, from zero, and the sum is added to the output: what else is in the
//! batch changes where slots lie, but no result.

use millrace_ops::{BackendError, CombineRows};

use super::slot_count;
use crate::memory::Region;
use crate::task::{Arguments, Task, Worker, product};

/// Columns that one work item covers, and of the sum that a worker holds.
const COLUMNS: usize = 512;

pub(crate) struct CombineRowsTask {
    arguments: Arguments,
    x: Region,
    weights: Region,
    slots: Region,
    out: Region,
    slot_count: usize,
    top_k: usize,
    rows: usize,
    width: usize,
}

impl CombineRowsTask {
    pub(crate) fn new(arguments: Arguments, op: CombineRows) -> Result<Self, BackendError> {
        let CombineRows { x, by, out, rows, width } = op;
        let slot_count = slot_count(arguments, &by, rows)?;
        let top_k = by.top_k;
        let x = arguments.region("x", x, product(&[slot_count, width, 4]))?;
        let weights = arguments.region("by.weights", by.weights, product(&[slot_count, 4]))?;
        let slots = arguments.region("by.slots", by.slots, product(&[slot_count, 4]))?;
        let out = arguments.region("out", out, product(&[rows, width, 4]))?;
        for input in [&x, &weights, &slots] {
            arguments.distinct(input, &out)?;
        }
        Ok(Self { arguments, x, weights, slots, out, slot_count, top_k, rows, width })
    }

    fn add(&self, worker: &Worker<'_>, row: usize, (column, columns): (usize, usize)) -> Result<(), BackendError> {
        // SAFETY: other buffers than `out`; nobody writes them in this phase.
        let (slots, weights) = unsafe {
            let first = row * self.top_k;
            (self.slots.items::<u32>(first, self.top_k), self.weights.items::<f32>(first, self.top_k))
        };
        let mut sum = [0.0; COLUMNS];
        let sum = &mut sum[..columns];
        for (choice, (slot, weight)) in slots.iter().zip(weights).enumerate() {
            let slot = *slot as usize;
            self.arguments.require(slot < self.slot_count, || {
                format!("choice {choice} of row {row} names slot {slot} of {}", self.slot_count)
            })?;
            // SAFETY: `x` is another buffer than `out` and written by nobody in this phase.
            let x = unsafe { self.x.items::<f32>(slot * self.width + column, columns) };
            crate::simd::add_scaled(worker.isa, sum, x, *weight);
        }
        // SAFETY: these columns of this row belong to the worker that took the item.
        let out = unsafe { self.out.items_mut::<f32>(row * self.width + column, columns) };
        crate::simd::add_scaled(worker.isa, out, sum, 1.0);
        Ok(())
    }
}

impl Task for CombineRowsTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let pieces = self.width.div_ceil(COLUMNS);
        let total = self.rows * pieces;
        let chunk = worker.chunk(total);
        while let Some(range) = worker.take(chunk, total) {
            for item in range {
                let (row, column) = (item / pieces, item % pieces * COLUMNS);
                self.add(worker, row, (column, COLUMNS.min(self.width - column)))?;
            }
        }
        Ok(())
    }
}
