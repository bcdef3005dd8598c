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

pub(super) use dense::multiply_dense;
pub(super) use int::multiply_int;
pub(super) use quantize::quantize;

/// What to prefetch while tiles of two panels are computed: the next two panels, spread evenly over all steps of all tiles, so
/// that memory is read all the time. To the second cache level: two panels of wide rows overflow the first.
#[derive(Clone, Copy)]
struct Ahead {
    next: *const u8,
    lines_per_step: usize,
    /// Lines that are left for this and later tiles.
    lines: usize,
}

impl Ahead {
    /// `panel`: the first of the two to prefetch, which need not exist; `steps`: of all tiles together, at least 1.
    fn of(task: &LinearTask<'_>, panel_bytes: usize, panel: usize, steps: usize) -> Self {
        let lines = 2 * panel_bytes / 64;
        let next = task.weight.storage.start().wrapping_add(panel * panel_bytes);
        Self { next, lines_per_step: lines.div_ceil(steps), lines }
    }

    /// In each step of a tile.
    #[inline(always)]
    fn prefetch(&self, step: usize) {
        for line in 0..self.lines_per_step {
            let at = self.next.wrapping_add((step * self.lines_per_step + line) * 64);
            // SAFETY: prefetching touches nothing, and every x86-64 has it.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
        }
    }

    /// After a tile of `steps` steps.
    fn advance(&mut self, steps: usize) {
        let done = (self.lines_per_step * steps).min(self.lines);
        self.next = self.next.wrapping_add(done * 64);
        self.lines -= done;
        if self.lines == 0 {
            self.lines_per_step = 0;
        }
    }
}

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
