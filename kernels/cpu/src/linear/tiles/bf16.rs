//! Products of BF16 weights: two panels at a time, sums over all columns in the tiles.
//!
//! ```text
//! for a block of rows:  for two panels:  for 32 rows: four tiles of sums, columns after columns
//! ```

use std::ops::Range;

use millrace_ops::LinearMode;

use super::super::LinearTask;
use super::super::activations::QuantizedRows;
use super::super::layout::{DenseLayout, PANEL_ROWS, TILE_COLS};
use super::put::put;
use crate::simd::tiles::{Operands, PANELS, PREFETCH_BYTES, Sums, TILE_ROWS, Target, TileProducts};

/// Activations that are multiplied with all panels of a call before the next are: they stay in the second cache level beside the
/// panels, which are read again for each such block.
const BLOCK_BYTES: usize = 512 << 10;

/// See [`super::multiply`].
///
/// # Safety
/// As there.
pub(super) unsafe fn multiply(
    task: &LinearTask<'_>,
    layout: &DenseLayout,
    panels: Range<usize>,
    scratch: &QuantizedRows,
    products: &impl TileProducts,
) {
    let pair_bytes = 2 * TILE_ROWS * task.passes() * QuantizedRows::row_bytes(layout.cols);
    let block = (BLOCK_BYTES / pair_bytes).max(1) * 2 * TILE_ROWS;
    for row in (0..task.rows).step_by(block) {
        let rows = row..task.rows.min(row + block);
        for panel in panels.clone().step_by(PANELS) {
            let place = Place { panel, count: PANELS.min(panels.end - panel), rows: rows.clone() };
            // SAFETY: the panels and rows exist; the rest is the caller's condition.
            unsafe { place.multiply(task, layout, scratch, products) };
        }
    }
}

/// Two panels (or the last one) and the rows that meet them.
struct Place {
    panel: usize,
    count: usize,
    rows: Range<usize>,
}

impl Place {
    /// # Safety
    /// The panels and rows exist; the conditions of [`super::multiply`].
    unsafe fn multiply(
        &self,
        task: &LinearTask<'_>,
        layout: &DenseLayout,
        scratch: &QuantizedRows,
        products: &impl TileProducts,
    ) {
        let (panel_bytes, part_bytes) = (layout.panel_bytes(), QuantizedRows::row_bytes(layout.cols));
        let steps = layout.cols.div_ceil(TILE_COLS);
        let start = task.weight.storage.start().wrapping_add(self.panel * panel_bytes);
        let mut ahead = start.wrapping_add(PANELS * panel_bytes);
        let end = ahead.wrapping_add(PANELS * panel_bytes);
        // Whole panels of whole tiles are stored where they belong.
        let direct = task.mode == LinearMode::Store
            && task.bias.is_none()
            && self.count == PANELS
            && (self.panel + PANELS) * PANEL_ROWS <= task.weight.rows;
        let mut buffer = [[Sums::ZERO; PANELS]; 2];
        for row in self.rows.clone().step_by(2 * TILE_ROWS) {
            let left = self.rows.end - row;
            let operands = Operands {
                x: scratch.row(task.scratch_row(row, 0), layout.cols).cast_const().cast(),
                row_bytes: task.passes() * part_bytes,
                part_bytes,
                parts: task.passes(),
                rows: left.min(2 * TILE_ROWS),
                // A panel without a second one is its own.
                w: [start, start.wrapping_add((self.count - 1) * panel_bytes)],
                steps,
                ahead,
                ahead_bytes: if ahead < end { PREFETCH_BYTES } else { 0 },
            };
            ahead = ahead.wrapping_add(operands.ahead_bytes * steps);
            let mut sums = [[None; PANELS]; 2];
            for (tile, sums) in sums.iter_mut().enumerate() {
                if direct && left >= (tile + 1) * TILE_ROWS {
                    *sums = [0, 1].map(|p| Some(place_of(task, self.panel + p, row + tile * TILE_ROWS)));
                }
            }
            let mut targets = buffer.each_mut().map(|buffer| buffer.each_mut().map(Sums::target));
            for (target, sums) in targets.iter_mut().flatten().zip(sums.iter().flatten()) {
                *target = sums.unwrap_or(*target);
            }
            // SAFETY: both panels have `steps` tiles, filled up by the layout; tiles of activations begin below `task.rows`, and
            // the scratch has spare rows behind the last; a tile of sums that is stored directly has 16 rows and columns there.
            unsafe {
                if left > TILE_ROWS {
                    products.two(&operands, &targets);
                } else {
                    products.one(&operands, &targets[0]);
                }
                for (tile, (sums, buffer)) in sums.iter().zip(&buffer).enumerate().take(left.div_ceil(TILE_ROWS)) {
                    if sums[0].is_none() {
                        let first = row + tile * TILE_ROWS;
                        put(task, (self.panel, self.count), first..self.rows.end.min(first + TILE_ROWS), buffer);
                    }
                }
            }
        }
    }
}

/// Where 16 rows of a panel's output lie.
fn place_of(task: &LinearTask<'_>, panel: usize, row: usize) -> Target {
    let start = task.out.wrapping_add(row * task.out_stride + panel * PANEL_ROWS);
    Target { start, row_bytes: task.out_stride * size_of::<f32>() }
}
