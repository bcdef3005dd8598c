//! From tiles of sums to the output: bias, residual, and what of a tile exists. Knows no tiles.

use std::arch::x86_64::*;
use std::ops::Range;

use millrace_ops::LinearMode;

use super::super::LinearTask;
use super::super::layout::PANEL_ROWS;
use crate::simd::tiles::{PANELS, Sums};

/// Writes `rows` of `count` panels from `panel` on; the first of them is the first of `sums`.
///
/// # Safety
/// The panels and rows exist, at most 16 rows; the condition on `out` and `bias` of [`super::super::multiply`]; AVX-512 F is
/// available.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn put(task: &LinearTask<'_>, (panel, count): (usize, usize), rows: Range<usize>, sums: &[Sums; PANELS]) {
    for (panel, sums) in (panel..panel + count).zip(sums) {
        let first = panel * PANEL_ROWS;
        let mask = u16::MAX >> PANEL_ROWS.saturating_sub(task.weight.rows - first);
        // SAFETY: the mask keeps columns below `weight.rows`, the length of a row of `out` and of `bias`.
        unsafe {
            let bias = match task.bias {
                Some(bias) => _mm512_maskz_loadu_ps(mask, bias.add(first)),
                None => _mm512_setzero_ps(),
            };
            let mut out = task.out.add(rows.start * task.out_stride + first);
            for sums in &sums.0[..rows.len()] {
                let mut value = _mm512_loadu_ps(sums.as_ptr());
                if task.bias.is_some() {
                    value = _mm512_add_ps(value, bias);
                }
                if task.mode == LinearMode::Add {
                    value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
                }
                _mm512_mask_storeu_ps(out, mask, value);
                out = out.wrapping_add(task.out_stride);
            }
        }
    }
}
