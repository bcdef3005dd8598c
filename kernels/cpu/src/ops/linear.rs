//! Linear: matrix products over the packed weights of [`crate::linear`]. Divides them among workers; knows no weight layout.

use millrace_ops::{BackendError, Linear, LinearMode, WeightMemory};

use crate::linear::{ActivationForm, LinearTask, PackedWeight, QuantizedRows, REDUNDANT_ROWS, multiply, quantize};
use crate::memory::Region;
use crate::ops::weights::Prepared;
use crate::pool::Compute;
use crate::task::{Arguments, Task, Worker, product};

/// How activations are quantized before the product, where the weight wants it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantizing {
    None,
    /// Each worker quantizes all rows for itself: cheaper than a barrier where rows are few.
    Redundant,
    /// A phase of its own.
    Shared,
}

struct LinearOp {
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
    quantizing: Quantizing,
}

/// Checks a product and makes it ready.
pub(crate) fn lower(arguments: Arguments, op: Linear, compute: Compute) -> Result<Box<dyn Task>, BackendError> {
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
    Ok(Box::new(LinearOp { arguments, x, weight, form, bias, out, rows, quantized_rows, cols, width, mode, quantizing }))
}

impl LinearOp {
    fn task<'a>(&self, weight: &'a PackedWeight) -> LinearTask<'a> {
        // The sizes were checked by `lower`; these only turn regions into addresses.
        let x = self.x.address_of::<f32>(self.rows * self.cols);
        let out = self.out.address_of::<f32>(self.rows * self.width);
        let bias = self.bias.as_ref().map(|bias| bias.address_of::<f32>(self.width).cast_const());
        let (x_stride, out_stride) = (self.cols, self.width);
        let (form, rows, mode) = (self.form, self.rows, self.mode);
        LinearTask { weight, form, x, x_stride, rows, quantized_row: 0, out, out_stride, bias, mode }
    }

    fn quantize_shared(&self, task: &LinearTask<'_>, worker: &Worker<'_>) {
        let chunk = worker.chunk(self.rows);
        while let Some(rows) = worker.take(chunk, self.rows) {
            // SAFETY: `x` is written by nobody in this phase; the shared scratch was reserved for `quantized` of this task;
            // these rows of it belong to the worker that took them.
            unsafe { quantize(task, rows, worker.quantized) };
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
        let weight = self.weight.packed(self.arguments)?;
        let task = self.task(weight);
        if phase == 0 && self.quantizing == Quantizing::Shared {
            self.quantize_shared(&task, worker);
            return Ok(());
        }
        let chunk = weight.chunk_panels(worker.workers);
        let panels = weight.panel_count();
        let Some(mut range) = worker.take(chunk, panels) else { return Ok(()) };
        if self.quantizing == Quantizing::Redundant {
            worker.scratch.quantized.reserve(self.quantized_rows, self.cols).map_err(|why| self.arguments.invalid(why))?;
            // SAFETY: `x` is written by nobody in this phase; the scratch is this worker's own, with room reserved above.
            unsafe { quantize(&task, 0..self.rows, &worker.scratch.quantized) };
        }
        let quantized: &QuantizedRows =
            if self.quantizing == Quantizing::Redundant { &worker.scratch.quantized } else { worker.quantized };
        loop {
            // SAFETY: addresses and sizes were checked by `lower`; `x`, bias and scratch are written by nobody in this phase;
            // these columns of `out` belong to the worker that took the panels.
            unsafe { multiply(&task, range, quantized) };
            match worker.take(chunk, panels) {
                Some(next) => range = next,
                None => return Ok(()),
            }
        }
    }
}
