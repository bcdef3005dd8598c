//! DispatchRows: a copy of its row for each slot. Knows not what rows hold.

use millrace_ops::{BackendError, DispatchRows};

use super::slot_count;
use crate::memory::Region;
use crate::task::{Arguments, Task, Worker, product};

pub(crate) struct DispatchRowsTask {
    arguments: Arguments,
    x: Region,
    slot_rows: Region,
    out: Region,
    slots: usize,
    rows: usize,
    width: usize,
}

impl DispatchRowsTask {
    pub(crate) fn new(arguments: Arguments, op: DispatchRows) -> Result<Self, BackendError> {
        let DispatchRows { x, by, out, rows, width } = op;
        let slots = slot_count(arguments, &by, rows)?;
        let x = arguments.region("x", x, product(&[rows, width, 4]))?;
        let slot_rows = arguments.region("by.slot_rows", by.slot_rows, product(&[slots, 4]))?;
        let out = arguments.region("out", out, product(&[slots, width, 4]))?;
        arguments.distinct(&x, &out)?;
        arguments.distinct(&slot_rows, &out)?;
        Ok(Self { arguments, x, slot_rows, out, slots, rows, width })
    }
}

impl Task for DispatchRowsTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let width = self.width;
        // SAFETY: another buffer than `out`; nobody writes it in this phase.
        let slot_rows = unsafe { self.slot_rows.items::<u32>(0, self.slots) };
        let chunk = worker.chunk(self.slots);
        while let Some(range) = worker.take(chunk, self.slots) {
            for slot in range {
                let row = slot_rows[slot] as usize;
                self.arguments.require(row < self.rows, || format!("slot {slot} names row {row} of {}", self.rows))?;
                // SAFETY: `x` is another buffer than `out` and written by nobody in this phase.
                let from = unsafe { self.x.items::<f32>(row * width, width) };
                // SAFETY: this slot belongs to the worker that took it.
                unsafe { self.out.items_mut::<f32>(slot * width, width) }.copy_from_slice(from);
            }
        }
        Ok(())
    }
}
