//! A product together with the operation that makes its activations: norm and quantize, or gate and quantize, in one phase. What the
//! operation writes is the same, to the bit, as without. Knows neither the product nor the row operation from inside.
//!
//! ```text
//! few rows     every worker:  row operation and quantizing of all rows, for itself; then products        one phase
//! more         its share of rows: row operation, quantizing; barrier; products                           two
//! ```

use millrace_ops::{BackendError, Op};

use super::linear::{LinearOp, Quantizing, Run};
use super::norm::RmsNormTask;
use super::silu::SiluMulTask;
use crate::isa::Isa;
use crate::memory::Region;
use crate::pool::Compute;
use crate::task::{Arguments, Task, Worker};

/// An operation that makes each row of its output from one row of its input.
pub(super) trait RowTask: Send + Sync {
    /// Rows, and columns of each.
    fn shape(&self) -> (usize, usize);

    fn input(&self) -> &Region;

    fn output(&self) -> &Region;

    /// Makes row `row` into `out`, which is not the output's own memory.
    ///
    /// # Safety
    /// Nobody writes the inputs meanwhile.
    unsafe fn row(&self, row: usize, isa: Isa, out: &mut [f32]);

    /// Most rows that are cheaper made by each worker for itself than shared.
    fn redundant_rows(&self) -> usize;
}

struct FusedTask {
    rows: Box<dyn RowTask>,
    linear: LinearOp,
}

/// Whether a product may be done together with `op` before it.
pub(crate) fn makes_rows(op: &Op) -> bool {
    matches!(op, Op::RmsNorm(_) | Op::SiluMul(_))
}

/// The product `op` together with `before`, where it quantizes what that makes; `None` where the two do not fit, or something is wrong
/// with one of them, which is told where it stands alone.
pub(crate) fn fuse(before: &Op, op: &Op, compute: Compute) -> Option<Box<dyn Task>> {
    let Op::Linear(linear) = op else { return None };
    let made = match before {
        Op::RmsNorm(norm) => &norm.out,
        Op::SiluMul(gate) => &gate.out,
        _ => return None,
    };
    if !Region::of(made.clone())?.same_memory(&Region::of(linear.x.clone())?) {
        return None;
    }
    let arguments = |op: &Op| Arguments { operation: op.name() };
    let rows: Result<Box<dyn RowTask>, BackendError> = match before.clone() {
        Op::RmsNorm(norm) => RmsNormTask::new(arguments(before), norm).map(|task| Box::new(task) as _),
        Op::SiluMul(gate) => SiluMulTask::new(arguments(before), gate).map(|task| Box::new(task) as _),
        _ => return None,
    };
    let (rows, mut linear) = (rows.ok()?, LinearOp::new(arguments(op), linear.clone(), compute).ok()?);
    let apart = !rows.input().same_memory(rows.output()) && !rows.input().same_memory(linear.output());
    if rows.shape() != linear.input_shape() || linear.quantizing == Quantizing::None || !apart {
        return None;
    }
    if rows.shape().0 > rows.redundant_rows() {
        linear.quantizing = Quantizing::Shared;
    }
    Some(Box::new(FusedTask { rows, linear }))
}

impl Task for FusedTask {
    fn phases(&self) -> usize {
        self.linear.phases()
    }

    fn quantized(&self) -> Option<(usize, usize)> {
        self.linear.quantized()
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        match (phase, self.linear.quantizing) {
            (0, Quantizing::Shared) => self.share(worker),
            (_, Quantizing::Shared | Quantizing::None) => self.linear.multiply(worker),
            (_, Quantizing::Redundant) => self.alone(worker),
        }
    }
}

impl FusedTask {
    /// Makes and quantizes a share of the rows.
    fn share(&self, worker: &Worker<'_>) -> Result<(), BackendError> {
        let (rows, width) = self.rows.shape();
        let chunk = worker.chunk(rows);
        while let Some(range) = worker.take(chunk, rows) {
            for row in range.clone() {
                // SAFETY: row `row` of the output belongs to the worker that took it.
                let out = unsafe { self.rows.output().items_mut::<f32>(row * width, width) };
                // SAFETY: the input is another buffer, which nobody writes in this phase.
                unsafe { self.rows.row(row, worker.isa, out) };
            }
            self.linear.quantize_rows(range, worker)?;
        }
        Ok(())
    }

    /// Makes and quantizes all rows in this worker's own scratch, then multiplies; whoever comes first writes the rows.
    fn alone(&self, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let (rows, width) = self.rows.shape();
        // Not who has the first panels: another worker may take them behind its own, when it has done all this.
        let (panels, writes) = (self.linear.first_panels(worker)?, worker.take(1, 1).is_some());
        if panels.is_none() && !writes {
            return Ok(());
        }
        let isa = worker.isa;
        let run = Run { barrier: worker.barrier, index: worker.index, workers: worker.workers };
        let (made, quantized) = worker.scratch.floats_and_quantized(rows * width)?;
        for (row, made) in made.chunks_exact_mut(width).enumerate() {
            // SAFETY: the input is written by nobody in this phase: it is not the product's output.
            unsafe { self.rows.row(row, isa, made) };
        }
        if writes {
            // SAFETY: the output is written here only, and read by nobody in this phase.
            unsafe { self.rows.output().items_mut::<f32>(0, rows * width) }.copy_from_slice(made);
        }
        let Some(panels) = panels else { return Ok(()) };
        // SAFETY: all rows are in this worker's scratch.
        unsafe { self.linear.multiply_redundantly(made.as_ptr(), panels, quantized, run) }
    }
}

#[cfg(test)]
mod tests;
