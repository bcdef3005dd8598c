//! Linear: matrix products over the packed weights of [`crate::linear`]. Divides them among workers; knows no weight layout.

use std::ops::Range;

use millrace_ops::{BackendError, Linear, LinearMode, WeightMemory};

use crate::barrier::Barrier;
use crate::linear::{ActivationForm, LinearTask, PackedWeight, QuantizedRows, REDUNDANT_ROWS, multiply, prefetch, quantize};
use crate::memory::Region;
use crate::ops::weights::Prepared;
use crate::pool::Compute;
use crate::task::{Arguments, Task, Worker, product};

/// How activations are quantized before the product, where the weight wants it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantizing {
    None,
    /// Each worker quantizes all rows for itself: cheaper than a barrier where rows are few.
    Redundant,
    /// A phase of its own.
    Shared,
}

pub(super) struct LinearOp {
    arguments: Arguments,
    x: Region,
    weight: Prepared,
    form: ActivationForm,
    bias: Option<Region>,
    out: Region,
    rows: usize,
    /// Rows of the scratch that they take.
    quantized_rows: usize,
    cols: usize,
    width: usize,
    mode: LinearMode,
    pub(super) quantizing: Quantizing,
}

/// Checks a product and makes it ready.
pub(crate) fn lower(arguments: Arguments, op: Linear, compute: Compute) -> Result<Box<dyn Task>, BackendError> {
    Ok(Box::new(LinearOp::new(arguments, op, compute)?))
}

impl LinearOp {
    pub(super) fn new(arguments: Arguments, op: Linear, compute: Compute) -> Result<Self, BackendError> {
        let Linear { x, weight, bias, out, rows, mode } = op;
        let weight = Prepared::new(arguments, weight)?;
        let packed = weight.packed(arguments)?;
        let (cols, width) = (packed.cols(), packed.rows());
        let x = arguments.region("x", x, product(&[rows, cols, 4]))?;
        let out = arguments.region("out", out, product(&[rows, width, 4]))?;
        arguments.distinct(&x, &out)?;
        let bias = bias.map(|bias| arguments.region("bias", bias, product(&[width, 4]))).transpose()?;
        if let Some(bias) = &bias {
            arguments.distinct(bias, &out)?;
        }
        let form = packed.form(compute.step_rows());
        let quantizing = match form.in_scratch() {
            false => Quantizing::None,
            true if rows <= REDUNDANT_ROWS => Quantizing::Redundant,
            true => Quantizing::Shared,
        };
        let quantized_rows = product(&[rows, form.passes()]);
        Ok(Self { arguments, x, weight, form, bias, out, rows, quantized_rows, cols, width, mode, quantizing })
    }

    /// Rows and columns of the activations.
    pub(super) fn input_shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    pub(super) fn output(&self) -> &Region {
        &self.out
    }

    /// The product with the activations at `x`.
    fn task<'a>(&self, weight: &'a PackedWeight, x: *const f32) -> LinearTask<'a> {
        // The sizes were checked by `new`; these only turn regions into addresses.
        let out = self.out.address_of::<f32>(self.rows * self.width);
        let bias = self.bias.as_ref().map(|bias| bias.address_of::<f32>(self.width).cast_const());
        let (x_stride, out_stride) = (self.cols, self.width);
        let (form, rows, mode) = (self.form, self.rows, self.mode);
        LinearTask { weight, form, x, x_stride, rows, quantized_row: 0, out, out_stride, bias, mode }
    }

    /// Where the activations lie.
    fn x(&self) -> *const f32 {
        self.x.address_of::<f32>(self.rows * self.cols)
    }

    /// Quantizes rows that this worker took into the shared scratch.
    pub(super) fn quantize_rows(&self, rows: Range<usize>, worker: &Worker<'_>) -> Result<(), BackendError> {
        let weight = self.weight.packed(self.arguments)?;
        // SAFETY: these rows of `x` are written by nobody but this worker in this phase; the shared scratch was reserved for
        // `quantized` of this task; these rows of it belong to the worker that took them.
        unsafe { quantize(&self.task(weight, self.x()), rows, worker.quantized) };
        Ok(())
    }

    /// The first panels for a worker; none where others have them all.
    pub(super) fn first_panels(&self, worker: &Worker<'_>) -> Result<Option<Range<usize>>, BackendError> {
        let weight = self.weight.packed(self.arguments)?;
        let panels = worker.barrier.take_near(worker.index, weight.chunk_panels(worker.workers), weight.panel_count());
        if let Some(panels) = &panels {
            // Memory is busy while the activations are made.
            prefetch(weight, panels.start);
        }
        Ok(panels)
    }

    /// The phase after shared quantizing, or the only one.
    pub(super) fn multiply(&self, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let Some(panels) = self.first_panels(worker)? else { return Ok(()) };
        let run = Run { barrier: worker.barrier, index: worker.index, workers: worker.workers };
        if self.quantizing == Quantizing::Redundant {
            // SAFETY: `x` holds all rows and is written by nobody in this phase.
            return unsafe { self.multiply_redundantly(self.x(), panels, &mut worker.scratch.quantized, run) };
        }
        let weight = self.weight.packed(self.arguments)?;
        multiply_all(&self.task(weight, self.x()), panels, worker.quantized, run);
        Ok(())
    }

    /// Quantizes all rows at `x` into the worker's own scratch and multiplies `panels`, then what is left of them.
    ///
    /// # Safety
    /// `x` holds all rows, and nobody writes them in this phase.
    pub(super) unsafe fn multiply_redundantly(
        &self,
        x: *const f32,
        panels: Range<usize>,
        own: &mut QuantizedRows,
        run: Run<'_>,
    ) -> Result<(), BackendError> {
        let weight = self.weight.packed(self.arguments)?;
        let task = self.task(weight, x);
        own.reserve(self.quantized_rows, self.cols).map_err(|why| self.arguments.invalid(why))?;
        // SAFETY: this function's condition; the scratch is this worker's own, with room reserved above.
        unsafe { quantize(&task, 0..self.rows, own) };
        multiply_all(&task, panels, own, run);
        Ok(())
    }
}

/// Who takes panels of a product, and where from.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) barrier: &'a Barrier,
    pub(super) index: usize,
    pub(super) workers: usize,
}

/// Multiplies `panels`, then whatever of the others nobody has taken. Activations are written by nobody in this phase.
fn multiply_all(task: &LinearTask<'_>, mut panels: Range<usize>, quantized: &QuantizedRows, run: Run<'_>) {
    let chunk = task.weight.chunk_panels(run.workers);
    loop {
        // SAFETY: addresses and sizes were checked by `new`; `x`, bias and scratch are written by nobody in this phase; these columns
        // of `out` belong to the worker that took the panels.
        unsafe { multiply(task, panels, quantized) };
        match run.barrier.take_near(run.index, chunk, task.weight.panel_count()) {
            Some(next) => panels = next,
            None => return,
        }
    }
}

impl Task for LinearOp {
    fn phases(&self) -> usize {
        if self.quantizing == Quantizing::Shared { 2 } else { 1 }
    }

    fn quantized(&self) -> Option<(usize, usize)> {
        (self.quantizing == Quantizing::Shared).then_some((self.quantized_rows, self.cols))
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        if phase == 0 && self.quantizing == Quantizing::Shared {
            let chunk = worker.chunk(self.rows);
            while let Some(rows) = worker.take(chunk, self.rows) {
                self.quantize_rows(rows, worker)?;
            }
            return Ok(());
        }
        self.multiply(worker)
    }
}
