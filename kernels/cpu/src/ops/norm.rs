//! RmsNorm. Knows rows of floats.

use millrace_ops::{BackendError, RmsNorm};

use super::fused::RowTask;
use crate::isa::Isa;
use crate::linear::REDUNDANT_ROWS;
use crate::memory::Region;
use crate::task::{Arguments, Task, Worker, product};

pub(crate) struct RmsNormTask {
    x: Region,
    weight: Region,
    out: Region,
    rows: usize,
    width: usize,
    eps: f32,
}

impl RmsNormTask {
    pub(crate) fn new(arguments: Arguments, op: RmsNorm) -> Result<Self, BackendError> {
        let RmsNorm { x, weight, out, rows, width, eps } = op;
        let bytes = product(&[rows, width, 4]);
        let weight = arguments.region("weight", weight, product(&[width, 4]))?;
        let out = arguments.region("out", out, bytes)?;
        arguments.distinct(&weight, &out)?;
        arguments.require(width > 0, || "rows of width 0".into())?;
        Ok(Self { x: arguments.region("x", x, bytes)?, weight, out, rows, width, eps })
    }
}

impl Task for RmsNormTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let width = self.width;
        let in_place = self.x.same_memory(&self.out);
        // SAFETY: nobody writes the weight in this phase (it is another buffer than `out`).
        let weight = unsafe { self.weight.items::<f32>(0, width) };
        let chunk = worker.chunk(self.rows);
        while let Some(range) = worker.take(chunk, self.rows) {
            for row in range {
                // SAFETY: row `row` of `out` (and of `x`, where they are one) belongs to the worker that took it.
                let out = unsafe { self.out.items_mut::<f32>(row * width, width) };
                if !in_place {
                    // SAFETY: nobody writes `x`, which is another buffer.
                    out.copy_from_slice(unsafe { self.x.items(row * width, width) });
                }
                crate::simd::rms_norm(worker.isa, out, weight, self.eps);
            }
        }
        Ok(())
    }
}

impl RowTask for RmsNormTask {
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
        // SAFETY: this function's condition; the weight is another buffer than the output.
        let (x, weight) = unsafe { (self.x.items(row * self.width, self.width), self.weight.items::<f32>(0, self.width)) };
        out.copy_from_slice(x);
        crate::simd::rms_norm(isa, out, weight, self.eps);
    }

    fn redundant_rows(&self) -> usize {
        REDUNDANT_ROWS
    }
}
