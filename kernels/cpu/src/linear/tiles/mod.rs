//! Products in BF16: BF16 weights, and FP8 weights widened to BF16, times activations in parts of BF16. Either AMX tiles multiply, or
//! dot products of AVX-512 BF16.
//!
//! A row of f32 activations becomes one row of BF16, or two whose sum it is ([`split()`]), one below the other in the scratch. A
//! tile of activations is one part of 16 rows by 32 columns; it meets a tile of weights as it lies in memory:
//!
//! ```text
//! part of 16 rows, columns 32j ..         tile j of a panel: 16 lines of
//! [x0][x1]..[x15]                    x    [row 0: columns 2k, 2k+1]..[row 15]       added to 16 x 16 sums, f32
//! ```
//!
//! A row of sums depends on its own row of activations alone, in whatever place of whatever tile, so a row's result does not
//! depend on those beside it. Tiles treat subnormal numbers as zeros.

mod bf16;
mod fp8;
mod put;
mod split;

use std::ops::Range;

use super::LinearTask;
use super::activations::QuantizedRows;
use super::layout::{DenseLayout, Element};
use crate::Isa;
use crate::simd::amx::Configured;
use crate::simd::dots::Dots;
use crate::simd::tiles::TileProducts;

pub(super) use split::split;

/// See [`super::multiply`].
///
/// # Safety
/// As there; [`Isa::Avx512Bf16`] is available, and the weight's form is one of tiles.
pub(super) unsafe fn multiply(task: &LinearTask<'_>, layout: &DenseLayout, panels: Range<usize>, scratch: &QuantizedRows) {
    // SAFETY: the caller's condition; the weight's instruction set was checked when it was packed.
    unsafe {
        match task.weight.isa {
            Isa::Amx => multiply_with(task, layout, panels, scratch, &Configured::new()),
            _ => multiply_with(task, layout, panels, scratch, &Dots::new()),
        }
    }
}

/// # Safety
/// As [`multiply`].
unsafe fn multiply_with(
    task: &LinearTask<'_>,
    layout: &DenseLayout,
    panels: Range<usize>,
    scratch: &QuantizedRows,
    products: &impl TileProducts,
) {
    // SAFETY: this function's condition.
    unsafe {
        match layout.element {
            Element::Fp8 => fp8::multiply(task, layout, panels, scratch, products),
            _ => bf16::multiply(task, layout, panels, scratch, products),
        }
    }
}
