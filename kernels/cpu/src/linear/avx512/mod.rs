//! AVX-512 kernels, and what integer and dense products share. Called through `super` only, after the instruction set was
//! checked.
//!
//! Instruction sets are enabled on the functions that tiles are called from. What is inside a tile is `inline(always)` and has
//! neither closures nor iterator chains: those are functions without the instruction set, which vectors would have to pass
//! through memory wherever the compiler decides not to inline them.

mod dense;
mod int;
mod quantize;

use std::arch::x86_64::*;

use millrace_ops::LinearMode;

use super::LinearTask;
use super::layout::PANEL_ROWS;

pub(super) use dense::{e4m3, multiply_dense};
pub(super) use int::multiply_int;
pub(super) use quantize::quantize;

/// Writes one row's part of a panel to the output.
///
/// # Safety
/// The condition on `out` and `bias` of `super::multiply`; AVX-512 F is available.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(task: &LinearTask<'_>, panel: usize, row: usize, sums: __m512) {
    let first = panel * PANEL_ROWS;
    let mask = u16::MAX >> PANEL_ROWS.saturating_sub(task.weight.rows - first);
    // SAFETY: the mask keeps columns below `weight.rows`, the length of a row of `out` and of `bias`.
    unsafe {
        let out = task.out.add(row * task.out_stride + first);
        let mut value = sums;
        if let Some(bias) = task.bias {
            value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, bias.add(first)));
        }
        if task.mode == LinearMode::Add {
            value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
        }
        _mm512_mask_storeu_ps(out, mask, value);
    }
}
