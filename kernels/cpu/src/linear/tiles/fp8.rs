//! Products of FP8 weights: e4m3 codes are widened to BF16, which holds them exactly, 128 columns of two panels at a time, and
//! multiplied with many rows; then scaled. Each row's sums over 128 columns are added up in f32.
//!
//! ```text
//! for a strip of rows:
//!   for 128 columns:  widen 2 x 4 tiles;  for tiles of rows: sums -> strip = fma(sums, scale of the 128 columns, strip)
//!   write the strip
//! ```

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::LinearTask;
use super::super::activations::QuantizedRows;
use super::super::avx512::e4m3;
use super::super::layout::{DENSE_BLOCK_COLS, DenseLayout, TILE_COLS};
use super::put::put;
use crate::simd::tiles::{Operands, PANELS, Sums, TILE_BYTES, TILE_ROWS, TileProducts};

/// Pairs of tiles of activations in a strip: what has been widened is used by that many.
const STRIP_PAIRS: usize = 4;
const PAIR_ROWS: usize = 2 * TILE_ROWS;
/// Tiles of 32 columns that share a scale.
const BLOCK_TILES: usize = DENSE_BLOCK_COLS / TILE_COLS;

/// 128 columns of two panels in BF16.
#[repr(C, align(64))]
struct Widened([[u8; BLOCK_TILES * TILE_BYTES]; PANELS]);

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
    let mut widened = Widened([[0; BLOCK_TILES * TILE_BYTES]; PANELS]);
    for panel in panels.clone().step_by(PANELS) {
        let count = PANELS.min(panels.end - panel);
        for row in (0..task.rows).step_by(STRIP_PAIRS * PAIR_ROWS) {
            let strip = Strip { panel, count, row, pairs: (task.rows - row).div_ceil(PAIR_ROWS).min(STRIP_PAIRS) };
            // SAFETY: the panels and rows exist; the rest is the caller's condition.
            unsafe { strip.multiply(task, layout, (scratch, products), &mut widened) };
        }
    }
}

/// Two panels (or the last one) and rows from `row` on.
struct Strip {
    panel: usize,
    count: usize,
    row: usize,
    pairs: usize,
}

impl Strip {
    /// # Safety
    /// The panels and rows exist; the conditions of [`super::multiply`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
    unsafe fn multiply(
        &self,
        task: &LinearTask<'_>,
        layout: &DenseLayout,
        (scratch, products): (&QuantizedRows, &impl TileProducts),
        widened: &mut Widened,
    ) {
        let part_bytes = QuantizedRows::row_bytes(layout.cols);
        let start = task.weight.storage.start().wrapping_add(self.panel * layout.panel_bytes());
        let mut strip = [[[Sums::ZERO; PANELS]; 2]; STRIP_PAIRS];
        let mut sums = [[Sums::ZERO; PANELS]; 2];
        for block in 0..layout.cols.div_ceil(DENSE_BLOCK_COLS) {
            let first = block * DENSE_BLOCK_COLS;
            for p in 0..self.count {
                // SAFETY: the panel exists, and `first` is one of its columns.
                unsafe { widen(layout, start.wrapping_add(p * layout.panel_bytes()), first, &mut widened.0[p]) };
            }
            for (pair, strip) in strip[..self.pairs].iter_mut().enumerate() {
                let row = self.row + pair * PAIR_ROWS;
                let x = scratch.row(task.scratch_row(row, 0), layout.cols).cast_const().cast::<u8>();
                let operands = Operands {
                    x: x.wrapping_add(first * 2),
                    row_bytes: task.passes() * part_bytes,
                    part_bytes,
                    parts: task.passes(),
                    rows: (task.rows - row).min(PAIR_ROWS),
                    w: [widened.0[0].as_ptr(), widened.0[self.count - 1].as_ptr()],
                    steps: (layout.cols - first).min(DENSE_BLOCK_COLS).div_ceil(TILE_COLS),
                    ahead: x,
                    ahead_bytes: 0,
                };
                // SAFETY: activations from column `first` on lie as the scratch says, with spare rows behind the last; four
                // tiles of each panel were widened.
                unsafe {
                    let targets = sums.each_mut().map(|sums| sums.each_mut().map(Sums::target));
                    let tiles = if task.rows - row > TILE_ROWS {
                        products.two(&operands, &targets);
                        2
                    } else {
                        products.one(&operands, &targets[0]);
                        1
                    };
                    for p in 0..self.count {
                        let scales = start.wrapping_add(p * layout.panel_bytes() + layout.scales_offset() + block * 64);
                        let scale = _mm512_loadu_ps(scales.cast());
                        for tile in 0..tiles {
                            for (sum, part) in strip[tile][p].0.iter_mut().zip(&sums[tile][p].0) {
                                let before = _mm512_loadu_ps(sum.as_ptr());
                                let after = _mm512_fmadd_ps(_mm512_loadu_ps(part.as_ptr()), scale, before);
                                _mm512_storeu_ps(sum.as_mut_ptr(), after);
                            }
                        }
                    }
                }
            }
        }
        for (tile, strip) in strip[..self.pairs].iter().flatten().enumerate() {
            let row = self.row + tile * TILE_ROWS;
            let rows = row..task.rows.min(row + TILE_ROWS);
            if !rows.is_empty() {
                // SAFETY: the panels and rows exist; the rest is the caller's condition.
                unsafe { put(task, (self.panel, self.count), rows, strip) };
            }
        }
    }
}

/// Up to 128 columns of a panel from `first` on, divided by 256; zeros behind the last.
///
/// # Safety
/// A panel at `panel` with a column `first`, a multiple of 128; AVX-512 F and F16C are available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn widen(layout: &DenseLayout, panel: *const u8, first: usize, to: &mut [u8; BLOCK_TILES * TILE_BYTES]) {
    let pairs = (layout.cols - first).min(DENSE_BLOCK_COLS).div_ceil(2);
    for (pair, line) in to.chunks_exact_mut(64).enumerate() {
        // SAFETY: half lines below `pairs` lie in the panel; a line has 64 bytes.
        unsafe {
            let both = match pair < pairs {
                true => _mm256_loadu_si256(panel.add((first + 2 * pair) * 16).cast()),
                false => _mm256_setzero_si256(),
            };
            let (even, odd) = (e4m3(_mm256_slli_epi16::<8>(both)), e4m3(both));
            // Four bits of mantissa: the lower half of each f32 is zero.
            let even = _mm512_srli_epi32::<16>(_mm512_castps_si512(even));
            _mm512_storeu_si512(line.as_mut_ptr().cast(), _mm512_or_si512(even, _mm512_castps_si512(odd)));
        }
    }
}
