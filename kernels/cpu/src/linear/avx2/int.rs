//! Integer products with AVX2, by the dot products of AVX-VNNI where the processor has them: a tile is a panel of 16 rows by T quantized rows of activations, its sums in registers. Both
//! passes over a row of activations are in one tile, so that codes are unpacked once.
//!
//! Steps and their order per block are those of the AVX-512 kernels, but for zero points of codes around a centre, which are
//! added to the dot at its end (exact): integer dot, less the zero point's share, then `sum = fma(scale * x.scale, dot, sum)`,
//! then the minimum.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::LinearTask;
use super::super::activations::{ActivationBlock, QuantizedRows};
use super::super::ahead::Ahead;
use super::super::form::ActivationForm;
use super::super::layout::{Codes, IntLayout, Offset, PANEL_ROWS};
use super::super::scale_type::ScaleType;
use super::{dots, dots_vnni, store};

const NIBBLES: u8 = Codes::Nibbles as u8;
const NARROW: u8 = Codes::Narrow as u8;
const WIDE: u8 = Codes::Wide as u8;
/// Wide codes and merged activations.
const WIDE_MERGED: u8 = 3;
const F16: u8 = ScaleType::F16 as u8;
const BF16: u8 = ScaleType::Bf16 as u8;
const F32: u8 = ScaleType::F32 as u8;
const CENTRE: u8 = Offset::Centre as u8;
const MINIMUM: u8 = Offset::Minimum as u8;
const ZERO: u8 = Offset::Zero as u8;

/// Rows of activations in the widest tile: 8 dots, a line of codes and an activation fit the 16 registers.
const TILE_ROWS: usize = 4;

/// With more tiles than these, the machine sees by itself that panels follow each other, and prefetching them only takes time.
const PREFETCHING_TILES: usize = 4;

/// What a kernel needs to know of a weight.
struct Shape {
    blocks: usize,
    /// Lines of a block's codes.
    lines: usize,
    panel_bytes: usize,
    scales_offset: usize,
    scale_bytes: usize,
    span: usize,
    /// Bytes from one row of quantized activations to the next.
    row_bytes: usize,
}

/// The first row of a tile, and its panel.
struct Place<'a> {
    panel: usize,
    row: usize,
    scratch: &'a QuantizedRows,
    ahead: Ahead,
}

/// See [`super::super::multiply`].
///
/// # Safety
/// As there; AVX2, FMA and F16C are available, and AVX-VNNI for `VNNI`.
pub(in super::super) unsafe fn multiply_int<const VNNI: bool>(
    task: &LinearTask<'_>,
    layout: &IntLayout,
    panels: Range<usize>,
    scratch: &QuantizedRows,
) {
    // SAFETY: this function's conditions are theirs.
    unsafe {
        match layout.codes {
            Codes::Nibbles => by_scale::<VNNI, NIBBLES>(task, layout, panels, scratch),
            Codes::Narrow => by_scale::<VNNI, NARROW>(task, layout, panels, scratch),
            Codes::Wide if task.form == ActivationForm::Merged => by_scale::<VNNI, WIDE_MERGED>(task, layout, panels, scratch),
            Codes::Wide => by_scale::<VNNI, WIDE>(task, layout, panels, scratch),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn by_scale<const VNNI: bool, const CODES: u8>(
    task: &LinearTask<'_>,
    layout: &IntLayout,
    panels: Range<usize>,
    scratch: &QuantizedRows,
) {
    // SAFETY: this function's conditions are theirs.
    unsafe {
        match (layout.offset, layout.scale) {
            (Offset::Centre, ScaleType::F16) => product::<VNNI, CODES, F16, CENTRE>(task, layout, panels, scratch),
            (Offset::Centre, ScaleType::Bf16) => product::<VNNI, CODES, BF16, CENTRE>(task, layout, panels, scratch),
            (Offset::Centre, ScaleType::F32) => product::<VNNI, CODES, F32, CENTRE>(task, layout, panels, scratch),
            // Minima have F16 scales, zero points 4-bit codes.
            (Offset::Minimum, _) => product::<VNNI, CODES, F16, MINIMUM>(task, layout, panels, scratch),
            (Offset::Zero, ScaleType::F16) => product::<VNNI, NIBBLES, F16, ZERO>(task, layout, panels, scratch),
            (Offset::Zero, ScaleType::Bf16) => product::<VNNI, NIBBLES, BF16, ZERO>(task, layout, panels, scratch),
            (Offset::Zero, ScaleType::F32) => product::<VNNI, NIBBLES, F32, ZERO>(task, layout, panels, scratch),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<const VNNI: bool, const CODES: u8, const SCALE: u8, const OFFSET: u8>(
    task: &LinearTask<'_>,
    layout: &IntLayout,
    panels: Range<usize>,
    scratch: &QuantizedRows,
) {
    let shape = Shape {
        blocks: layout.blocks,
        lines: std::hint::black_box(layout.code_bytes() / 64),
        panel_bytes: layout.panel_bytes(),
        scales_offset: layout.scales_offset(),
        scale_bytes: layout.scale_bytes(),
        span: layout.span,
        row_bytes: QuantizedRows::row_bytes(task.weight.cols),
    };
    // Merged rows count as one.
    let passes = if CODES == WIDE_MERGED { 1 } else { task.passes() };
    let tiles = (task.rows * passes).div_ceil(TILE_ROWS);
    for panel in panels {
        let ahead = if tiles <= PREFETCHING_TILES { 1 } else { 0 };
        let ahead = Ahead::of(task, shape.panel_bytes, (panel + 1, ahead), tiles * shape.blocks);
        let mut place = Place { panel, row: 0, scratch, ahead };
        for tile in 0..tiles {
            // Tiles of nearly equal size.
            let rows = (task.rows - place.row).div_ceil(tiles - tile);
            // SAFETY: the panel is in the range and `place.row + rows <= task.rows`; the rest is the caller's condition.
            unsafe {
                match (passes, rows) {
                    (1, 1) => run::<VNNI, CODES, SCALE, OFFSET, 1, 1>(task, &shape, &place),
                    (1, 2) => run::<VNNI, CODES, SCALE, OFFSET, 2, 1>(task, &shape, &place),
                    (1, 3) => run::<VNNI, CODES, SCALE, OFFSET, 3, 1>(task, &shape, &place),
                    (1, _) => run::<VNNI, CODES, SCALE, OFFSET, 4, 1>(task, &shape, &place),
                    (_, 1) => run::<VNNI, CODES, SCALE, OFFSET, 2, 2>(task, &shape, &place),
                    (_, _) => run::<VNNI, CODES, SCALE, OFFSET, 4, 2>(task, &shape, &place),
                }
            }
            place.row += rows;
            place.ahead.advance(shape.blocks);
        }
    }
}

/// Computes and stores one tile: T quantized rows, of which each row of activations has PASSES.
///
/// # Safety
/// A panel and T quantized rows from `place`; the conditions of [`multiply_int`].
#[inline(always)]
unsafe fn run<const VNNI: bool, const CODES: u8, const SCALE: u8, const OFFSET: u8, const T: usize, const PASSES: usize>(
    task: &LinearTask<'_>,
    shape: &Shape,
    place: &Place<'_>,
) {
    // SAFETY: the caller's condition.
    unsafe {
        if VNNI {
            run_vnni::<CODES, SCALE, OFFSET, T, PASSES>(task, shape, place);
        } else {
            run_avx2::<CODES, SCALE, OFFSET, T, PASSES>(task, shape, place);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<const CODES: u8, const SCALE: u8, const OFFSET: u8, const T: usize, const PASSES: usize>(
    task: &LinearTask<'_>,
    shape: &Shape,
    place: &Place<'_>,
) {
    // SAFETY: the caller's condition.
    unsafe { whole_tile::<false, CODES, SCALE, OFFSET, T, PASSES>(task, shape, place) }
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn run_vnni<const CODES: u8, const SCALE: u8, const OFFSET: u8, const T: usize, const PASSES: usize>(
    task: &LinearTask<'_>,
    shape: &Shape,
    place: &Place<'_>,
) {
    // SAFETY: the caller's condition.
    unsafe { whole_tile::<true, CODES, SCALE, OFFSET, T, PASSES>(task, shape, place) }
}

/// # Safety
/// As [`run`]; the caller has the features enabled.
#[inline(always)]
unsafe fn whole_tile<
    const VNNI: bool,
    const CODES: u8,
    const SCALE: u8,
    const OFFSET: u8,
    const T: usize,
    const PASSES: usize,
>(
    task: &LinearTask<'_>,
    shape: &Shape,
    place: &Place<'_>,
) {
    // SAFETY: the caller's condition.
    unsafe {
        let w = task.weight.storage.start().add(place.panel * shape.panel_bytes);
        let mut x = [std::ptr::null::<ActivationBlock>(); T];
        for (t, x) in x.iter_mut().enumerate() {
            *x = place.scratch.row(task.scratch_row(place.row + t / PASSES, t % PASSES), task.weight.cols);
        }
        let sums = tile::<VNNI, CODES, SCALE, OFFSET, T>(shape, w, x, place.ahead);
        for row in 0..T / PASSES {
            let mut sum = sums[row * PASSES];
            for rest in &sums[row * PASSES + 1..(row + 1) * PASSES] {
                sum = [_mm256_add_ps(sum[0], rest[0]), _mm256_add_ps(sum[1], rest[1])];
            }
            store(task, place.panel * 2, place.row + row, sum[0]);
            store(task, place.panel * 2 + 1, place.row + row, sum[1]);
        }
    }
}

/// Sums of the panel at `w` with T rows of activations.
///
/// # Safety
/// A panel at `w` and `shape.blocks` activation blocks at each of `x`.
#[inline(always)]
unsafe fn tile<const VNNI: bool, const CODES: u8, const SCALE: u8, const OFFSET: u8, const T: usize>(
    shape: &Shape,
    w: *const u8,
    x: [*const ActivationBlock; T],
    ahead: Ahead,
) -> [[__m256; 2]; T] {
    let code_bytes = if CODES == NIBBLES { 256 } else { 512 };
    let scale_size = if SCALE == F32 { 4 } else { 2 };
    let beside_size = if OFFSET == MINIMUM { 2 } else { 1 };
    let (mut scales_at, mut left) = (shape.scales_offset, shape.span);
    // SAFETY: offsets stay within the panel and activation blocks that the caller vouches for.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; T];
        for block in 0..shape.blocks {
            ahead.prefetch(block);
            let mut x = x;
            for x in &mut x {
                *x = x.add(block);
            }
            let codes = w.add(block * code_bytes);
            let dots = match CODES {
                NIBBLES if VNNI => dots_vnni::nibbles(codes, shape.lines, x),
                NARROW | WIDE if VNNI => dots_vnni::bytes(codes, shape.lines, x),
                NIBBLES => dots::nibbles(codes, shape.lines, x),
                NARROW => dots::narrow(codes, shape.lines, x),
                WIDE_MERGED => dots::wide_merged(codes, shape.lines, (x, shape.row_bytes)),
                _ => dots::wide(codes, shape.lines, x),
            };
            for h in 0..2 {
                let scale = load_scales::<SCALE>(w.add(scales_at + h * 8 * scale_size));
                let beside = w.add(scales_at + PANEL_ROWS * scale_size + h * 8 * beside_size);
                let zero = if OFFSET == ZERO { load_zeros(beside) } else { _mm256_setzero_ps() };
                for t in 0..T {
                    let start = match (CODES, OFFSET) {
                        (WIDE, CENTRE) if VNNI => (*x[t]).zero_128,
                        (WIDE, _) if VNNI => 0,
                        (WIDE | WIDE_MERGED, MINIMUM) => -(*x[t]).zero_128,
                        (WIDE | WIDE_MERGED, _) | (_, MINIMUM | ZERO) => 0,
                        _ => (*x[t]).zero_8,
                    };
                    let mut dot = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[t][h], _mm256_set1_epi32(start)));
                    if OFFSET == ZERO {
                        dot = _mm256_fnmadd_ps(zero, _mm256_set1_ps((*x[t]).sum() as f32), dot);
                    }
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps((*x[t]).scale));
                    sums[t][h] = _mm256_fmadd_ps(scale, dot, sums[t][h]);
                }
                if OFFSET == MINIMUM {
                    let minimum = _mm256_cvtph_ps(_mm_loadu_si128(beside.cast()));
                    for t in 0..T {
                        sums[t][h] = _mm256_fmadd_ps(minimum, _mm256_set1_ps((*x[t]).scaled_sum), sums[t][h]);
                    }
                }
            }
            left -= 1;
            if left == 0 {
                (scales_at, left) = (scales_at + shape.scale_bytes, shape.span);
            }
        }
        sums
    }
}

/// # Safety
/// 8 scales at `at`.
#[inline(always)]
unsafe fn load_scales<const SCALE: u8>(at: *const u8) -> __m256 {
    // SAFETY: the caller's condition.
    unsafe {
        match SCALE {
            F32 => _mm256_loadu_ps(at.cast()),
            BF16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())))),
            _ => _mm256_cvtph_ps(_mm_loadu_si128(at.cast())),
        }
    }
}

/// # Safety
/// 8 zeros at `at`.
#[inline(always)]
unsafe fn load_zeros(at: *const u8) -> __m256 {
    // SAFETY: the caller's condition.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()))) }
}
