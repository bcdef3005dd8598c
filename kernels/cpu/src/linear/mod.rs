//! Linear layers: weights packed into panels, and products of panel ranges with rows of activations.
//!
//! Every worker of a pool calls the same functions with its own share; barriers between phases are the caller's:
//!
//! ```text
//! forms in the scratch (integer weights, tiles)                  floats
//!   quantize rows   each worker its share, or all rows              -
//!                   into its own scratch where they are few
//!   barrier         unless the scratch is the worker's own          -
//!   multiply        panel ranges, each worker its share first    multiply
//! ```
//!
//! A row's result does not depend, to the bit, on the rows beside it or on how panels are split, for one [`Isa`].
//! It does not know threads, queues or operations.

mod activations;
#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod form;
mod layout;
mod pack;
mod quantize;
mod scalar;
mod scale_type;
mod source;
mod storage;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod weight;

use std::ops::Range;

use millrace_ops::LinearMode;

pub use activations::QuantizedRows;
pub use form::{ActivationForm, StepRows};
pub use layout::PANEL_ROWS;
pub use weight::{CpuCompute, PackedWeight, chunk_panels};

use crate::Isa;
use layout::PanelLayout;

/// Up to this many rows it is cheaper that each worker quantizes all of them for itself than to share and wait.
pub const REDUNDANT_ROWS: usize = 4;

/// One product: `out[r] (+)= weight * x[r] (+ bias)`, f32, row-major.
#[derive(Clone, Copy)]
pub struct LinearTask<'a> {
    pub weight: &'a PackedWeight,
    /// [`PackedWeight::form`] of the weight.
    pub form: ActivationForm,
    /// `rows` rows of `weight.cols()` values, `x_stride` apart.
    pub x: *const f32,
    pub x_stride: usize,
    pub rows: usize,
    /// Which row of the scratch the first of them is; 0 but where products share a scratch. See [`LinearTask::passes`].
    pub quantized_row: usize,
    /// `rows` rows of `weight.rows()` values, `out_stride` apart.
    pub out: *mut f32,
    pub out_stride: usize,
    /// `weight.rows()` values.
    pub bias: Option<*const f32>,
    pub mode: LinearMode,
}

// SAFETY: the pointers are only followed by the unsafe functions below, whose conditions cover threads.
unsafe impl Send for LinearTask<'_> {}
// SAFETY: as above.
unsafe impl Sync for LinearTask<'_> {}

impl LinearTask<'_> {
    /// How many rows of the scratch each row takes: itself and, where there are two, what quantizing it left over.
    pub fn passes(&self) -> usize {
        self.form.passes()
    }

    /// Where row `row` lies quantized.
    fn scratch_row(&self, row: usize, pass: usize) -> usize {
        (self.quantized_row + row) * self.passes() + pass
    }
}

/// Asks for the first panels from `panel` on, before a product of few rows begins there. Changes nothing; does nothing where there are
/// none, or no way to ask.
pub fn prefetch(weight: &PackedWeight, panel: usize) {
    #[cfg(target_arch = "x86_64")]
    ahead::first(weight, panel);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (weight, panel);
}

/// Quantizes `rows` of the task's activations, and what that leaves over where the product has more passes, into the rows of `to`
/// from `(task.quantized_row + rows.start) * task.passes()` on. Only for forms in the scratch.
///
/// # Safety
/// `task.x` can be read; `to` has room for `(task.quantized_row + task.rows) * task.passes()` rows of `weight.cols()`; nobody else
/// accesses the rows that are filled meanwhile.
pub unsafe fn quantize(task: &LinearTask<'_>, rows: Range<usize>, to: &QuantizedRows) {
    let source = activations::Source {
        x: task.x,
        stride: task.x_stride,
        cols: task.weight.cols,
        to_row: task.quantized_row,
        to_step: task.passes(),
    };
    #[cfg(target_arch = "x86_64")]
    if task.form.tiles() {
        // SAFETY: this function's conditions are its own; the instruction set was checked when the weight was packed.
        unsafe { tiles::split(&source, rows, to) };
        return;
    }
    // SAFETY: this function's conditions are theirs; the instruction set was checked when the weight was packed.
    unsafe {
        match task.weight.isa {
            Isa::Scalar => activations::quantize(&source, rows.clone(), to),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => avx2::quantize(&source, rows.clone(), to),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Fp16 | Isa::Amx => avx512::quantize(&source, rows.clone(), to),
            #[cfg(not(target_arch = "x86_64"))]
            _ => activations::quantize(&source, rows.clone(), to),
        }
        if task.passes() > 1 {
            match task.weight.isa {
                Isa::Scalar => activations::quantize_remainders(&source, rows.clone(), to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Fp16 | Isa::Amx => {
                    avx2::quantize_remainders(&source, rows.clone(), to)
                }
                #[cfg(not(target_arch = "x86_64"))]
                _ => activations::quantize_remainders(&source, rows.clone(), to),
            }
            if task.form == ActivationForm::Merged {
                activations::merge(&source, rows, to);
            }
        }
    }
}

/// Computes all rows of the output columns `16 * panels.start .. 16 * panels.end`.
///
/// # Safety
/// `task`'s pointers are valid for what they are said to hold; `scratch` holds all rows as [`quantize()`] leaves them, where the
/// form is in it;
/// nobody writes either meanwhile, nor accesses those columns of `out`.
pub unsafe fn multiply(task: &LinearTask<'_>, panels: Range<usize>, scratch: &QuantizedRows) {
    let panels = panels.start..panels.end.min(task.weight.panel_count());
    if panels.is_empty() || task.rows == 0 {
        return;
    }
    // SAFETY: this function's conditions are theirs; the instruction set was checked when the weight was packed.
    unsafe {
        match (task.weight.isa, &task.weight.layout) {
            #[cfg(target_arch = "x86_64")]
            (_, PanelLayout::Dense(layout)) if task.form.tiles() => {
                tiles::multiply(task, layout, panels, scratch);
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Fp16 | Isa::Amx, PanelLayout::Int(layout)) => {
                avx512::multiply_int(task, layout, panels, scratch)
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Fp16 | Isa::Amx, PanelLayout::Dense(layout)) => {
                avx512::multiply_dense(task, layout, panels)
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, PanelLayout::Int(layout)) => avx2::multiply_int::<false>(task, layout, panels, scratch),
            #[cfg(target_arch = "x86_64")]
            (Isa::AvxVnni, PanelLayout::Int(layout)) => avx2::multiply_int::<true>(task, layout, panels, scratch),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2 | Isa::AvxVnni, PanelLayout::Dense(layout)) => avx2::multiply_dense(task, layout, panels),
            (_, PanelLayout::Int(layout)) => scalar::multiply_int(task, layout, panels, scratch),
            (_, PanelLayout::Dense(layout)) => scalar::multiply_dense(task, layout, panels),
        }
    }
}
