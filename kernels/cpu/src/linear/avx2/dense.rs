//! Dense products: weights widened to f32, 8 output rows (half a panel) per vector, f32 activations.
//!
//! A tile is H half panels by T rows of activations; sums run as in the AVX-512 kernels (128 columns, then added up).

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::LinearTask;
use super::super::layout::{DENSE_BLOCK_COLS, DenseLayout, Element};
use super::store;

const F32: u8 = Element::F32 as u8;
const BF16: u8 = Element::Bf16 as u8;
const FP8: u8 = Element::Fp8 as u8;

/// Rows of activations in the widest tile: 8 partial sums, 4 widened weights and an activation fit the 16 registers.
const TILE_ROWS: usize = 4;

/// See [`super::super::multiply`].
///
/// # Safety
/// As there; AVX2, FMA and F16C are available.
pub(in super::super) unsafe fn multiply_dense(task: &LinearTask<'_>, layout: &DenseLayout, panels: Range<usize>) {
    // SAFETY: this function's conditions are theirs.
    unsafe {
        match layout.element {
            Element::F32 => product::<F32>(task, layout, panels),
            Element::Bf16 => product::<BF16>(task, layout, panels),
            Element::Fp8 => product::<FP8>(task, layout, panels),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<const ELEMENT: u8>(task: &LinearTask<'_>, layout: &DenseLayout, panels: Range<usize>) {
    let tiles = task.rows.div_ceil(TILE_ROWS);
    let mut panel = panels.start;
    while panel < panels.end {
        // SAFETY: panels stay in the range and rows below `task.rows`; the rest is the caller's condition.
        unsafe {
            // One row reads two panels at once: four independent sums hide the latency of additions.
            if task.rows == 1 && panels.end - panel >= 2 {
                run::<ELEMENT, 4, 1>(task, layout, panel, 0);
                panel += 2;
                continue;
            }
            let mut row = 0;
            for tile in 0..tiles {
                let size = (task.rows - row).div_ceil(tiles - tile);
                match size {
                    1 => run::<ELEMENT, 2, 1>(task, layout, panel, row),
                    2 => run::<ELEMENT, 2, 2>(task, layout, panel, row),
                    3 => run::<ELEMENT, 2, 3>(task, layout, panel, row),
                    _ => run::<ELEMENT, 2, 4>(task, layout, panel, row),
                }
                row += size;
            }
        }
        panel += 1;
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<const ELEMENT: u8, const H: usize, const T: usize>(
    task: &LinearTask<'_>,
    layout: &DenseLayout,
    panel: usize,
    row: usize,
) {
    // SAFETY: the panels and T rows from `row` exist, by the caller above.
    unsafe {
        let w = task.weight.storage.start().add(panel * layout.panel_bytes());
        let x: [*const f32; T] = std::array::from_fn(|t| task.x.add((row + t) * task.x_stride));
        let sums = tile::<ELEMENT, H, T>(layout, w, x);
        for (h, sums) in sums.into_iter().enumerate() {
            for (t, sums) in sums.into_iter().enumerate() {
                store(task, panel * 2 + h, row + t, sums);
            }
        }
    }
}

/// Sums of H half panels, the first at `w`, with T rows of activations.
///
/// # Safety
/// H / 2 panels at `w` and `layout.cols` values at each of `x`.
#[inline(always)]
unsafe fn tile<const ELEMENT: u8, const H: usize, const T: usize>(
    layout: &DenseLayout,
    w: *const u8,
    x: [*const f32; T],
) -> [[__m256; T]; H] {
    let panel_bytes = layout.panel_bytes();
    // SAFETY: columns stay below `layout.cols`; offsets are those of the layout.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); T]; H];
        for block in 0..layout.cols.div_ceil(DENSE_BLOCK_COLS) {
            let first = block * DENSE_BLOCK_COLS;
            let end = layout.cols.min(first + DENSE_BLOCK_COLS);
            let mut partial = [[_mm256_setzero_ps(); T]; H];
            let mut col = first;
            while col + 1 < end {
                let mut weights = [[_mm256_setzero_ps(); 2]; H];
                for (h, weights) in weights.iter_mut().enumerate() {
                    *weights = pair::<ELEMENT>(w.add(h / 2 * panel_bytes), h % 2, col);
                }
                for t in 0..T {
                    let (even, odd) = (_mm256_set1_ps(x[t].add(col).read()), _mm256_set1_ps(x[t].add(col + 1).read()));
                    for h in 0..H {
                        partial[h][t] = _mm256_fmadd_ps(weights[h][0], even, partial[h][t]);
                        partial[h][t] = _mm256_fmadd_ps(weights[h][1], odd, partial[h][t]);
                    }
                }
                col += 2;
            }
            for h in 0..H {
                let panel = w.add(h / 2 * panel_bytes);
                if end % 2 == 1 {
                    let weights = last::<ELEMENT>(panel, h % 2, end - 1);
                    for t in 0..T {
                        partial[h][t] = _mm256_fmadd_ps(weights, _mm256_set1_ps(x[t].add(end - 1).read()), partial[h][t]);
                    }
                }
                for t in 0..T {
                    sums[h][t] = match ELEMENT {
                        FP8 => {
                            let scales = panel.add(layout.scales_offset() + block * 64 + h % 2 * 32);
                            _mm256_fmadd_ps(partial[h][t], _mm256_loadu_ps(scales.cast()), sums[h][t])
                        }
                        _ => _mm256_add_ps(sums[h][t], partial[h][t]),
                    };
                }
            }
        }
        sums
    }
}

/// Columns `col` (even) and `col + 1` of half a panel, as f32 (FP8: divided by 256).
///
/// # Safety
/// The panel has both columns.
#[inline(always)]
unsafe fn pair<const ELEMENT: u8>(panel: *const u8, half: usize, col: usize) -> [__m256; 2] {
    // SAFETY: the caller's condition.
    unsafe {
        match ELEMENT {
            F32 => {
                let lines = panel.add(col * 64 + half * 32);
                [_mm256_loadu_ps(lines.cast()), _mm256_loadu_ps(lines.add(64).cast())]
            }
            BF16 => {
                let both = _mm256_loadu_si256(panel.add(col * 32 + half * 32).cast());
                let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
                [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(odd)]
            }
            _ => {
                let both = _mm_loadu_si128(panel.add(col * 16 + half * 16).cast());
                [e4m3(_mm_slli_epi16::<8>(both)), e4m3(both)]
            }
        }
    }
}

/// The last column of half a panel with an odd number of columns; see [`pair`].
///
/// # Safety
/// The panel has that column.
#[inline(always)]
unsafe fn last<const ELEMENT: u8>(panel: *const u8, half: usize, col: usize) -> __m256 {
    // SAFETY: the caller's condition; in BF16 and FP8 panels the missing partner is padding.
    unsafe {
        match ELEMENT {
            F32 => _mm256_loadu_ps(panel.add(col * 64 + half * 32).cast()),
            _ => pair::<ELEMENT>(panel, half, col)[0],
        }
    }
}

/// e4m3 codes in the upper bytes of 16-bit lanes, as f32 divided by 256; see the AVX-512 form.
///
/// # Safety
/// AVX2 and F16C are available.
#[inline(always)]
unsafe fn e4m3(codes: __m128i) -> __m256 {
    // SAFETY: the caller's condition.
    unsafe {
        let half = _mm_and_si128(_mm_srai_epi16::<1>(codes), _mm_set1_epi16(0xbf80_u16 as i16));
        _mm256_cvtph_ps(half)
    }
}
