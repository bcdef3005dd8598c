//! SiluMul: the gate of a gated feed-forward layer. Knows rows of floats.

use millrace_ops::{BackendError, SiluMul};

use super::fused::RowTask;
use crate::isa::Isa;
use crate::memory::Region;
use crate::task::{Arguments, Task, Worker, product};

/// Columns that one work item covers: enough to be worth taking, few enough that one row feeds several workers.
const COLUMNS: usize = 512;
/// With more rows it is dearer that each worker makes all of them for the product that follows than to share and wait.
const REDUNDANT_ROWS: usize = 2;

pub(crate) struct SiluMulTask {
    x: Region,
    out: Region,
    rows: usize,
    width: usize,
}

impl SiluMulTask {
    pub(crate) fn new(arguments: Arguments, op: SiluMul) -> Result<Self, BackendError> {
        let SiluMul { x, out, rows, width } = op;
        let x = arguments.region("x", x, product(&[rows, width, 8]))?;
        let out = arguments.region("out", out, product(&[rows, width, 4]))?;
        arguments.distinct(&x, &out)?;
        Ok(Self { x, out, rows, width })
    }
}

impl Task for SiluMulTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let width = self.width;
        let pieces = width.div_ceil(COLUMNS);
        let total = self.rows * pieces;
        let chunk = worker.chunk(total);
        while let Some(range) = worker.take(chunk, total) {
            for item in range {
                let (row, column) = (item / pieces, item % pieces * COLUMNS);
                let columns = COLUMNS.min(width - column);
                // SAFETY: `x` is another buffer than `out` and written by nobody in this phase.
                let gate = unsafe { self.x.items::<f32>(row * 2 * width + column, columns) };
                // SAFETY: as above.
                let up = unsafe { self.x.items::<f32>(row * 2 * width + width + column, columns) };
                // SAFETY: these columns of this row belong to the worker that took the item.
                let out = unsafe { self.out.items_mut::<f32>(row * width + column, columns) };
                crate::simd::silu_mul(worker.isa, gate, up, out);
            }
        }
        Ok(())
    }
}

impl RowTask for SiluMulTask {
    fn shape(&self) -> (usize, usize) {
        (self.rows, self.width)
    }

    fn input(&self) -> &Region {
        &self.x
    }

    fn output(&self) -> &Region {
        &self.out
    }

    unsafe fn row(&self, row: usize, isa: Isa, out: &mut [f32]) {
        // SAFETY: this function's condition.
        let both = unsafe { self.x.items::<f32>(row * 2 * self.width, 2 * self.width) };
        let (gate, up) = both.split_at(self.width);
        crate::simd::silu_mul(isa, gate, up, out);
    }

    fn redundant_rows(&self) -> usize {
        REDUNDANT_ROWS
    }
}
