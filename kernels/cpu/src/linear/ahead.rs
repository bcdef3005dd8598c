//! Prefetching of weights: what the next tiles will read, asked for while the present ones are computed. Knows addresses alone.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use super::{LinearTask, PackedWeight};

const LINE_BYTES: usize = 64;

/// Two panels of narrow rows; more would still be under way when they are wanted.
const FIRST_BYTES: usize = 16 << 10;

/// Asks for the beginning of the panels from `panel` on.
pub(super) fn first(weight: &PackedWeight, panel: usize) {
    let from = panel.saturating_mul(weight.layout.panel_bytes());
    let bytes = weight.storage.bytes().saturating_sub(from).min(FIRST_BYTES);
    for line in 0..bytes / LINE_BYTES {
        let at = weight.storage.start().wrapping_add(from + line * LINE_BYTES);
        // SAFETY: prefetching touches nothing, and every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
}

/// What to prefetch while tiles of one or two panels are computed: the panels behind them, spread evenly over all steps of all
/// tiles, so that memory is read all the time. To the second cache level: two panels of wide rows overflow the first.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    next: *const u8,
    lines_per_step: usize,
    /// Lines that are left for this and later tiles.
    lines: usize,
}

impl Ahead {
    /// `panels`: the first panel to prefetch, which need not exist, and how many; `steps`: of all tiles together, at least 1.
    pub(super) fn of(task: &LinearTask<'_>, panel_bytes: usize, (panel, count): (usize, usize), steps: usize) -> Self {
        let lines = count * panel_bytes / LINE_BYTES;
        let next = task.weight.storage.start().wrapping_add(panel * panel_bytes);
        Self { next, lines_per_step: lines.div_ceil(steps), lines }
    }

    pub(super) fn lines_per_step(&self) -> usize {
        self.lines_per_step
    }

    /// In each step of a tile.
    #[inline(always)]
    pub(super) fn prefetch(&self, step: usize) {
        for line in 0..self.lines_per_step {
            let at = self.next.wrapping_add((step * self.lines_per_step + line) * LINE_BYTES);
            // SAFETY: prefetching touches nothing, and every x86-64 has it.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
        }
    }

    /// After a tile of `steps` steps.
    pub(super) fn advance(&mut self, steps: usize) {
        let done = (self.lines_per_step * steps).min(self.lines);
        self.next = self.next.wrapping_add(done * LINE_BYTES);
        self.lines -= done;
        if self.lines == 0 {
            self.lines_per_step = 0;
        }
    }
}
