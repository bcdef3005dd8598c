//! Integer products with VNNI: unsigned weight codes times signed activations, 16 output rows per vector.
//!
//! A tile is P panels by T rows of the scratch, its sums in registers; both passes over a row are in one tile, so that codes are
//! unpacked once, and their sums are added up in the end. Per block of 32 columns every tile does the same,
//! so a row's result does not depend on the tile it is in:
//!
//! ```text
//! dot  = sum of code * q (i32, exact; begins with -centre * sum(q) where zero is the centre of the codes)
//! dot  = dot - zero * sum(q) (f32, exact: all three are below 2^17)          weights with zero points only
//! sum  = fma(scale * x.scale, dot, sum)
//! sum  = fma(minimum, x.scaled_sum, sum)                                      weights with minima only
//! ```

use std::arch::x86_64::*;
use std::mem::offset_of;
use std::ops::Range;

use super::super::LinearTask;
use super::super::activations::{ActivationBlock, QuantizedRows};
use super::super::ahead::Ahead;
use super::super::layout::{Codes, IntLayout, Offset, PANEL_ROWS};
use super::super::scale_type::ScaleType;
use super::store;

/// What a kernel needs to know of a weight.
struct Shape {
    blocks: usize,
    panel_bytes: usize,
    scales_offset: usize,
    scale_bytes: usize,
    span: usize,
    /// Where an activation block holds `-centre * sum(q)`.
    zero_offset: usize,
}

const F16: u8 = ScaleType::F16 as u8;
const BF16: u8 = ScaleType::Bf16 as u8;
const F32: u8 = ScaleType::F32 as u8;
const CENTRE: u8 = Offset::Centre as u8;
const MINIMUM: u8 = Offset::Minimum as u8;
const ZERO: u8 = Offset::Zero as u8;

/// Rows of activations in the widest tile of two panels: 12 sums and 12 dots leave room for codes and scales in 32 registers.
const TILE_ROWS: usize = 6;

/// See [`super::super::multiply`].
///
/// # Safety
/// As there; AVX-512 F, BW, VL and VNNI are available.
pub(in super::super) unsafe fn multiply_int(
    task: &LinearTask<'_>,
    layout: &IntLayout,
    panels: Range<usize>,
    scratch: &QuantizedRows,
) {
    // SAFETY: this function's conditions are theirs.
    unsafe {
        if layout.codes == Codes::Nibbles {
            by_scale::<true>(task, layout, panels, scratch);
        } else {
            by_scale::<false>(task, layout, panels, scratch);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn by_scale<const NIBBLES: bool>(
    task: &LinearTask<'_>,
    layout: &IntLayout,
    panels: Range<usize>,
    scratch: &QuantizedRows,
) {
    // SAFETY: this function's conditions are theirs.
    unsafe {
        match (layout.offset, layout.scale) {
            (Offset::Centre, ScaleType::F16) => product::<NIBBLES, F16, CENTRE>(task, layout, panels, scratch),
            (Offset::Centre, ScaleType::Bf16) => product::<NIBBLES, BF16, CENTRE>(task, layout, panels, scratch),
            (Offset::Centre, ScaleType::F32) => product::<NIBBLES, F32, CENTRE>(task, layout, panels, scratch),
            // Minima have F16 scales, zero points 4-bit codes.
            (Offset::Minimum, _) => product::<NIBBLES, F16, MINIMUM>(task, layout, panels, scratch),
            (Offset::Zero, ScaleType::F16) => product::<true, F16, ZERO>(task, layout, panels, scratch),
            (Offset::Zero, ScaleType::Bf16) => product::<true, BF16, ZERO>(task, layout, panels, scratch),
            (Offset::Zero, ScaleType::F32) => product::<true, F32, ZERO>(task, layout, panels, scratch),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn product<const NIBBLES: bool, const SCALE: u8, const OFFSET: u8>(
    task: &LinearTask<'_>,
    layout: &IntLayout,
    panels: Range<usize>,
    scratch: &QuantizedRows,
) {
    let shape = Shape {
        blocks: layout.blocks,
        panel_bytes: layout.panel_bytes(),
        scales_offset: layout.scales_offset(),
        scale_bytes: layout.scale_bytes(),
        span: layout.span,
        zero_offset: match layout.codes {
            Codes::Wide => offset_of!(ActivationBlock, zero_128),
            Codes::Nibbles | Codes::Narrow => offset_of!(ActivationBlock, zero_8),
        },
    };
    let passes = task.passes();
    let tiles = (task.rows * passes).div_ceil(TILE_ROWS);
    for panel in panels.clone().step_by(2) {
        let ahead = Ahead::of(task, shape.panel_bytes, (panel + 2, 2), tiles * shape.blocks);
        let mut place = Place { panel, row: 0, scratch, ahead };
        for tile in 0..tiles {
            // Tiles of nearly equal size.
            let rows = (task.rows - place.row).div_ceil(tiles - tile);
            // SAFETY: the panels are in the range, `place.row + rows <= task.rows`; the rest is the caller's condition.
            unsafe {
                match (panels.end - panel, rows * passes) {
                    (1, 1) => run::<NIBBLES, SCALE, OFFSET, 1, 1>(task, &shape, &place),
                    (1, 2) => run::<NIBBLES, SCALE, OFFSET, 1, 2>(task, &shape, &place),
                    (1, 3) => run::<NIBBLES, SCALE, OFFSET, 1, 3>(task, &shape, &place),
                    (1, 4) => run::<NIBBLES, SCALE, OFFSET, 1, 4>(task, &shape, &place),
                    (1, 5) => run::<NIBBLES, SCALE, OFFSET, 1, 5>(task, &shape, &place),
                    (1, _) => run::<NIBBLES, SCALE, OFFSET, 1, 6>(task, &shape, &place),
                    (_, 1) => run::<NIBBLES, SCALE, OFFSET, 2, 1>(task, &shape, &place),
                    (_, 2) => run::<NIBBLES, SCALE, OFFSET, 2, 2>(task, &shape, &place),
                    (_, 3) => run::<NIBBLES, SCALE, OFFSET, 2, 3>(task, &shape, &place),
                    (_, 4) => run::<NIBBLES, SCALE, OFFSET, 2, 4>(task, &shape, &place),
                    (_, 5) => run::<NIBBLES, SCALE, OFFSET, 2, 5>(task, &shape, &place),
                    (_, _) => run::<NIBBLES, SCALE, OFFSET, 2, 6>(task, &shape, &place),
                }
            }
            place.row += rows;
            place.ahead.advance(shape.blocks);
        }
    }
}

/// The first panel and row of a tile.
struct Place<'a> {
    panel: usize,
    row: usize,
    scratch: &'a QuantizedRows,
    ahead: Ahead,
}

/// Computes and stores one tile.
///
/// # Safety
/// P panels and T rows of the scratch from `place`, all passes of each row; the conditions of [`multiply_int`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn run<const NIBBLES: bool, const SCALE: u8, const OFFSET: u8, const P: usize, const T: usize>(
    task: &LinearTask<'_>,
    shape: &Shape,
    place: &Place<'_>,
) {
    let passes = task.passes();
    // SAFETY: the caller's condition.
    unsafe {
        let w = task.weight.storage.start().add(place.panel * shape.panel_bytes);
        let mut x = [std::ptr::null(); T];
        for (t, x) in x.iter_mut().enumerate() {
            *x = place.scratch.row(task.scratch_row(place.row, t), task.weight.cols).cast_const();
        }
        let sums = tile::<NIBBLES, SCALE, OFFSET, P, T>(shape, w, x, place.ahead);
        for (p, sums) in sums.iter().enumerate() {
            for (row, sums) in sums.chunks_exact(passes).enumerate() {
                let mut sum = sums[0];
                for rest in &sums[1..] {
                    sum = _mm512_add_ps(sum, *rest);
                }
                store(task, place.panel + p, place.row + row, sum);
            }
        }
    }
}

/// Sums of P panels, the first at `w`, with T rows of activations.
///
/// # Safety
/// P panels at `w` and `shape.blocks` activation blocks at each of `x`.
#[inline(always)]
unsafe fn tile<const NIBBLES: bool, const SCALE: u8, const OFFSET: u8, const P: usize, const T: usize>(
    shape: &Shape,
    w: *const u8,
    x: [*const ActivationBlock; T],
    ahead: Ahead,
) -> [[__m512; T]; P] {
    let code_bytes = if NIBBLES { 256 } else { 512 };
    let (mut scales_at, mut left) = (shape.scales_offset, shape.span);
    // SAFETY: offsets stay within the panels and activation blocks that the caller vouches for.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); T]; P];
        for block in 0..shape.blocks {
            ahead.prefetch(block);
            let mut x = x;
            let mut dots = [[_mm512_setzero_si512(); T]; P];
            for t in 0..T {
                x[t] = x[t].add(block);
                if OFFSET == CENTRE {
                    let start = _mm512_set1_epi32(x[t].cast::<u8>().add(shape.zero_offset).cast::<i32>().read());
                    for dots in &mut dots {
                        dots[t] = start;
                    }
                }
            }
            let mut codes = [w; P];
            for (p, codes) in codes.iter_mut().enumerate() {
                *codes = w.add(p * shape.panel_bytes + block * code_bytes);
            }
            let dots = if NIBBLES { nibble_dots(dots, codes, x) } else { byte_dots(dots, codes, x) };
            for p in 0..P {
                let scales = w.add(p * shape.panel_bytes + scales_at);
                let scale = load_scales::<SCALE>(scales);
                let beside = scales.add(PANEL_ROWS * if SCALE == F32 { 4 } else { 2 });
                let zero = if OFFSET == ZERO { load_zeros(beside) } else { _mm512_setzero_ps() };
                for t in 0..T {
                    let mut dot = _mm512_cvtepi32_ps(dots[p][t]);
                    if OFFSET == ZERO {
                        dot = _mm512_fnmadd_ps(zero, _mm512_set1_ps((*x[t]).sum() as f32), dot);
                    }
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps((*x[t]).scale));
                    sums[p][t] = _mm512_fmadd_ps(scale, dot, sums[p][t]);
                }
                if OFFSET == MINIMUM {
                    let minimum = _mm512_cvtph_ps(_mm256_loadu_si256(beside.cast()));
                    for t in 0..T {
                        sums[p][t] = _mm512_fmadd_ps(minimum, _mm512_set1_ps((*x[t]).scaled_sum), sums[p][t]);
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

/// Adds the products of a block's 8-bit codes to `dots`.
///
/// # Safety
/// A block's codes at each of `codes`, an activation block at each of `x`. The same for the next one.
#[inline(always)]
unsafe fn byte_dots<const P: usize, const T: usize>(
    mut dots: [[__m512i; T]; P],
    codes: [*const u8; P],
    x: [*const ActivationBlock; T],
) -> [[__m512i; T]; P] {
    for line in 0..8 {
        // SAFETY: eight lines of codes, eight times four activations.
        unsafe {
            let mut lines = [_mm512_setzero_si512(); P];
            for p in 0..P {
                lines[p] = _mm512_loadu_si512(codes[p].add(line * 64).cast());
            }
            for t in 0..T {
                let q = four(x[t], line);
                for p in 0..P {
                    dots[p][t] = _mm512_dpbusd_epi32(dots[p][t], lines[p], q);
                }
            }
        }
    }
    dots
}

/// Adds the products of a block's 4-bit codes to `dots`.
#[inline(always)]
unsafe fn nibble_dots<const P: usize, const T: usize>(
    mut dots: [[__m512i; T]; P],
    codes: [*const u8; P],
    x: [*const ActivationBlock; T],
) -> [[__m512i; T]; P] {
    for line in 0..4 {
        // SAFETY: four lines of codes, twice four times four activations.
        unsafe {
            let mask = _mm512_set1_epi8(0xf);
            let (mut low, mut high) = ([_mm512_setzero_si512(); P], [_mm512_setzero_si512(); P]);
            for p in 0..P {
                let both = _mm512_loadu_si512(codes[p].add(line * 64).cast());
                (low[p], high[p]) = (_mm512_and_si512(both, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask));
            }
            for t in 0..T {
                let (q_low, q_high) = (four(x[t], line), four(x[t], line + 4));
                for p in 0..P {
                    dots[p][t] = _mm512_dpbusd_epi32(dots[p][t], low[p], q_low);
                    dots[p][t] = _mm512_dpbusd_epi32(dots[p][t], high[p], q_high);
                }
            }
        }
    }
    dots
}

/// Activations `4 * line .. 4 * line + 4` of a block in every 32-bit lane.
///
/// # Safety
/// An activation block at `x`; `line < 8`.
#[inline(always)]
unsafe fn four(x: *const ActivationBlock, line: usize) -> __m512i {
    // SAFETY: the caller's condition: 32 bytes of `q` come first.
    unsafe { _mm512_set1_epi32(x.cast::<i32>().add(line).read()) }
}

/// # Safety
/// 16 scales at `at`.
#[inline(always)]
unsafe fn load_scales<const SCALE: u8>(at: *const u8) -> __m512 {
    // SAFETY: the caller's condition.
    unsafe {
        match SCALE {
            F32 => _mm512_loadu_ps(at.cast()),
            BF16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())))),
            _ => _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())),
        }
    }
}

/// # Safety
/// 16 zeros at `at`.
#[inline(always)]
unsafe fn load_zeros(at: *const u8) -> __m512 {
    // SAFETY: the caller's condition.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()))) }
}
