//! Dense products: weights widened to f32, 16 output rows per vector, f32 activations.
//!
//! A tile is P panels by T rows of activations. Its sums run over 128 columns at a time, one column after the other; partial
//! sums are then added up (FP8: times the block's scale). Every tile does the same, so a row's result does not depend on it.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::LinearTask;
use super::super::ahead::Ahead;
use super::super::layout::{DENSE_BLOCK_COLS, DenseLayout, Element};
use super::store;

const F32: u8 = Element::F32 as u8;
const BF16: u8 = Element::Bf16 as u8;
const FP8: u8 = Element::Fp8 as u8;

/// Rows of activations in the widest tile: 24 sums, 4 widened weights and an activation fill the 32 registers.
const TILE_ROWS: usize = 6;
/// How far ahead [`Prefetch::Streams`] reads, in bytes.
const AHEAD_BYTES: usize = 2048;
/// Columns between two bursts of [`Prefetch::Next`], and the longest burst, in lines, that does not stall loads.
const STEP_COLS: usize = 16;
const BURST_LINES: usize = 6;

/// What a tile prefetches.
#[derive(Clone, Copy)]
enum Prefetch {
    Nothing,
    /// What it will read itself soon: for few rows, which read about as fast as memory does.
    Streams,
    /// Its share of the next panels.
    Next(Ahead),
}

/// See [`super::super::multiply`].
///
/// # Safety
/// As there; AVX-512 F, BW, VL and F16C are available.
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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn product<const ELEMENT: u8>(task: &LinearTask<'_>, layout: &DenseLayout, panels: Range<usize>) {
    let mut panel = panels.start;
    // SAFETY: panels stay in the range and rows below `task.rows`; the rest is the caller's condition.
    unsafe {
        while panel < panels.end {
            // One row reads four panels at once: four independent sums hide the latency of additions.
            let count = match panels.end - panel {
                4.. if task.rows == 1 => 4,
                2.. => 2,
                _ => 1,
            };
            match (count, task.rows) {
                (4, _) => run::<ELEMENT, 4, 1>(task, layout, panel, (0, Prefetch::Streams)),
                (2, 1) => run::<ELEMENT, 2, 1>(task, layout, panel, (0, Prefetch::Streams)),
                (_, 1) => run::<ELEMENT, 1, 1>(task, layout, panel, (0, Prefetch::Streams)),
                _ => rows::<ELEMENT>(task, layout, panel, count),
            }
            panel += count;
        }
    }
}

/// All rows of `count` panels, in tiles of nearly equal size.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn rows<const ELEMENT: u8>(task: &LinearTask<'_>, layout: &DenseLayout, panel: usize, count: usize) {
    let (tiles, steps) = (task.rows.div_ceil(TILE_ROWS), layout.cols.div_ceil(STEP_COLS));
    let mut ahead = Ahead::of(task, layout.panel_bytes(), (panel + 2, 2), tiles * steps);
    let mut row = 0;
    for tile in 0..tiles {
        let size = (task.rows - row).div_ceil(tiles - tile);
        let prefetch = match row {
            _ if ahead.lines_per_step() <= BURST_LINES => Prefetch::Next(ahead),
            0 => Prefetch::Streams,
            _ => Prefetch::Nothing,
        };
        let place = (row, prefetch);
        // SAFETY: `row + size <= task.rows`; the rest is the caller's condition.
        unsafe {
            match (count, size) {
                (2, 1) => run::<ELEMENT, 2, 1>(task, layout, panel, place),
                (2, 2) => run::<ELEMENT, 2, 2>(task, layout, panel, place),
                (2, 3) => run::<ELEMENT, 2, 3>(task, layout, panel, place),
                (2, 4) => run::<ELEMENT, 2, 4>(task, layout, panel, place),
                (2, 5) => run::<ELEMENT, 2, 5>(task, layout, panel, place),
                (2, _) => run::<ELEMENT, 2, 6>(task, layout, panel, place),
                (_, 1) => run::<ELEMENT, 1, 1>(task, layout, panel, place),
                (_, 2) => run::<ELEMENT, 1, 2>(task, layout, panel, place),
                (_, 3) => run::<ELEMENT, 1, 3>(task, layout, panel, place),
                (_, 4) => run::<ELEMENT, 1, 4>(task, layout, panel, place),
                (_, 5) => run::<ELEMENT, 1, 5>(task, layout, panel, place),
                (_, _) => run::<ELEMENT, 1, 6>(task, layout, panel, place),
            }
        }
        row += size;
        ahead.advance(steps);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn run<const ELEMENT: u8, const P: usize, const T: usize>(
    task: &LinearTask<'_>,
    layout: &DenseLayout,
    panel: usize,
    (row, prefetch): (usize, Prefetch),
) {
    // SAFETY: P panels from `panel` and T rows from `row` exist, by the callers above.
    unsafe {
        let w = task.weight.storage.start().add(panel * layout.panel_bytes());
        let x: [*const f32; T] = std::array::from_fn(|t| task.x.add((row + t) * task.x_stride));
        let sums = tile::<ELEMENT, P, T>(layout, w, x, prefetch);
        for (p, sums) in sums.into_iter().enumerate() {
            for (t, sums) in sums.into_iter().enumerate() {
                store(task, panel + p, row + t, sums);
            }
        }
    }
}

/// Sums of P panels, the first at `w`, with T rows of activations.
///
/// # Safety
/// P panels at `w` and `layout.cols` values at each of `x`.
#[inline(always)]
unsafe fn tile<const ELEMENT: u8, const P: usize, const T: usize>(
    layout: &DenseLayout,
    w: *const u8,
    x: [*const f32; T],
    prefetch: Prefetch,
) -> [[__m512; T]; P] {
    let panel_bytes = layout.panel_bytes();
    let fresh = matches!(prefetch, Prefetch::Streams);
    // SAFETY: columns stay below `layout.cols`; offsets are those of the layout.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); T]; P];
        for block in 0..layout.cols.div_ceil(DENSE_BLOCK_COLS) {
            let first = block * DENSE_BLOCK_COLS;
            let end = layout.cols.min(first + DENSE_BLOCK_COLS);
            let mut partial = [[_mm512_setzero_ps(); T]; P];
            let mut col = first;
            while col + 1 < end {
                if let Prefetch::Next(ahead) = prefetch
                    && col.is_multiple_of(STEP_COLS)
                {
                    ahead.prefetch(col / STEP_COLS);
                }
                let mut weights = [[_mm512_setzero_ps(); 2]; P];
                for (p, weights) in weights.iter_mut().enumerate() {
                    *weights = pair::<ELEMENT>(w.add(p * panel_bytes), col, fresh);
                }
                for t in 0..T {
                    let (even, odd) = (_mm512_set1_ps(x[t].add(col).read()), _mm512_set1_ps(x[t].add(col + 1).read()));
                    for p in 0..P {
                        partial[p][t] = _mm512_fmadd_ps(weights[p][0], even, partial[p][t]);
                        partial[p][t] = _mm512_fmadd_ps(weights[p][1], odd, partial[p][t]);
                    }
                }
                col += 2;
            }
            if end % 2 == 1 {
                for (p, partial) in partial.iter_mut().enumerate() {
                    let weights = last::<ELEMENT>(w.add(p * panel_bytes), end - 1);
                    for t in 0..T {
                        partial[t] = _mm512_fmadd_ps(weights, _mm512_set1_ps(x[t].add(end - 1).read()), partial[t]);
                    }
                }
            }
            for p in 0..P {
                let scale = match ELEMENT {
                    FP8 => _mm512_loadu_ps(w.add(p * panel_bytes + layout.scales_offset() + block * 64).cast()),
                    _ => _mm512_set1_ps(1.0),
                };
                for t in 0..T {
                    sums[p][t] = match ELEMENT {
                        FP8 => _mm512_fmadd_ps(partial[p][t], scale, sums[p][t]),
                        _ => _mm512_add_ps(sums[p][t], partial[p][t]),
                    };
                }
            }
        }
        sums
    }
}

/// Columns `col` (even) and `col + 1` of a panel, as f32 (FP8: divided by 256); `fresh` panels are prefetched.
///
/// # Safety
/// The panel has both columns.
#[inline(always)]
unsafe fn pair<const ELEMENT: u8>(panel: *const u8, col: usize, fresh: bool) -> [__m512; 2] {
    // SAFETY: the caller's condition; prefetching touches nothing.
    unsafe {
        match ELEMENT {
            F32 => {
                let lines = panel.add(col * 64);
                if fresh {
                    _mm_prefetch::<_MM_HINT_T0>(lines.wrapping_add(AHEAD_BYTES).cast());
                    _mm_prefetch::<_MM_HINT_T0>(lines.wrapping_add(AHEAD_BYTES + 64).cast());
                }
                [_mm512_loadu_ps(lines.cast()), _mm512_loadu_ps(lines.add(64).cast())]
            }
            BF16 => {
                let line = panel.add(col * 32);
                if fresh {
                    _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD_BYTES).cast());
                }
                let both = _mm512_loadu_si512(line.cast());
                let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
                [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(odd)]
            }
            _ => {
                let half_line = panel.add(col * 16);
                if fresh && col.is_multiple_of(4) {
                    _mm_prefetch::<_MM_HINT_T0>(half_line.wrapping_add(AHEAD_BYTES).cast());
                }
                let both = _mm256_loadu_si256(half_line.cast());
                [e4m3(_mm256_slli_epi16::<8>(both)), e4m3(both)]
            }
        }
    }
}

/// The last column of a panel with an odd number of columns; see [`pair`].
///
/// # Safety
/// The panel has that column.
#[inline(always)]
unsafe fn last<const ELEMENT: u8>(panel: *const u8, col: usize) -> __m512 {
    // SAFETY: the caller's condition; in BF16 and FP8 panels the missing partner is padding.
    unsafe {
        match ELEMENT {
            F32 => _mm512_loadu_ps(panel.add(col * 64).cast()),
            _ => pair::<ELEMENT>(panel, col, false)[0],
        }
    }
}

/// e4m3 codes in the upper bytes of 16-bit lanes, as f32 divided by 256: placed into f16 (bias 15 against 7) they read 2^8 too
/// small, subnormals included.
///
/// # Safety
/// AVX-512 F is available.
#[inline(always)]
pub(in super::super) unsafe fn e4m3(codes: __m256i) -> __m512 {
    // SAFETY: the caller's condition.
    unsafe {
        // An arithmetic shift copies the sign into the exponent's top bit, which the mask clears.
        let half = _mm256_and_si256(_mm256_srai_epi16::<1>(codes), _mm256_set1_epi16(0xbf80_u16 as i16));
        _mm512_cvtph_ps(half)
    }
}
