//! Integer products with AVX2: `maddubs` multiplies unsigned by signed bytes and adds pairs into 16 bits, saturating. So that
//! nothing saturates, 8-bit codes enter as |code - 128| with their sign moved to the activation: a pair is at most
//! 2 * 128 * 127 = 32512. Of 4-bit codes a whole block fits: 16 * 15 * 127 = 30480.
//!
//! A tile is half a panel by T rows of activations. Steps and their order per block are those of the AVX-512 kernels:
//! exact integer dot, exactly less the zero point's share, then `sum = fma(scale * x.scale, dot, sum)`, then the minimum.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::LinearTask;
use super::super::activations::{ActivationBlock, QuantizedRows};
use super::super::layout::{Codes, IntLayout, Offset, PANEL_ROWS};
use super::super::scale_type::ScaleType;
use super::store;

const NIBBLES: u8 = Codes::Nibbles as u8;
const NARROW: u8 = Codes::Narrow as u8;
const WIDE: u8 = Codes::Wide as u8;
const F16: u8 = ScaleType::F16 as u8;
const BF16: u8 = ScaleType::Bf16 as u8;
const F32: u8 = ScaleType::F32 as u8;
const CENTRE: u8 = Offset::Centre as u8;
const MINIMUM: u8 = Offset::Minimum as u8;
const ZERO: u8 = Offset::Zero as u8;

/// Rows of activations in the widest tile: sums, dots and weights fit the 16 registers.
const TILE_ROWS: usize = 4;

/// See [`super::super::multiply`].
///
/// # Safety
/// As there; AVX2, FMA and F16C are available.
pub(in super::super) unsafe fn multiply_int(
    task: &LinearTask<'_>,
    layout: &IntLayout,
    panels: Range<usize>,
    scratch: &QuantizedRows,
) {
    // SAFETY: this function's conditions are theirs.
    unsafe {
        match layout.codes {
            Codes::Nibbles => by_scale::<NIBBLES>(task, layout, panels, scratch),
            Codes::Narrow => by_scale::<NARROW>(task, layout, panels, scratch),
            Codes::Wide => by_scale::<WIDE>(task, layout, panels, scratch),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn by_scale<const CODES: u8>(task: &LinearTask<'_>, layout: &IntLayout, panels: Range<usize>, scratch: &QuantizedRows) {
    // SAFETY: this function's conditions are theirs.
    unsafe {
        match (layout.offset, layout.scale) {
            (Offset::Centre, ScaleType::F16) => product::<CODES, F16, CENTRE>(task, layout, panels, scratch),
            (Offset::Centre, ScaleType::Bf16) => product::<CODES, BF16, CENTRE>(task, layout, panels, scratch),
            (Offset::Centre, ScaleType::F32) => product::<CODES, F32, CENTRE>(task, layout, panels, scratch),
            // Minima have F16 scales, zero points 4-bit codes.
            (Offset::Minimum, _) => product::<CODES, F16, MINIMUM>(task, layout, panels, scratch),
            (Offset::Zero, ScaleType::F16) => product::<NIBBLES, F16, ZERO>(task, layout, panels, scratch),
            (Offset::Zero, ScaleType::Bf16) => product::<NIBBLES, BF16, ZERO>(task, layout, panels, scratch),
            (Offset::Zero, ScaleType::F32) => product::<NIBBLES, F32, ZERO>(task, layout, panels, scratch),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<const CODES: u8, const SCALE: u8, const OFFSET: u8>(
    task: &LinearTask<'_>,
    layout: &IntLayout,
    panels: Range<usize>,
    scratch: &QuantizedRows,
) {
    let tiles = task.rows.div_ceil(TILE_ROWS);
    for panel in panels {
        let mut row = 0;
        for tile in 0..tiles {
            let size = (task.rows - row).div_ceil(tiles - tile);
            for half in [panel * 2, panel * 2 + 1] {
                // SAFETY: `row + size <= task.rows`; the rest is the caller's condition.
                unsafe {
                    match size {
                        1 => run::<CODES, SCALE, OFFSET, 1>(task, layout, half, (row, scratch)),
                        2 => run::<CODES, SCALE, OFFSET, 2>(task, layout, half, (row, scratch)),
                        3 => run::<CODES, SCALE, OFFSET, 3>(task, layout, half, (row, scratch)),
                        _ => run::<CODES, SCALE, OFFSET, 4>(task, layout, half, (row, scratch)),
                    }
                }
            }
            row += size;
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<const CODES: u8, const SCALE: u8, const OFFSET: u8, const T: usize>(
    task: &LinearTask<'_>,
    layout: &IntLayout,
    half: usize,
    (row, scratch): (usize, &QuantizedRows),
) {
    // SAFETY: the panel exists and T rows from `row` are quantized, by the callers above.
    unsafe {
        let panel = task.weight.storage.start().add(half / 2 * layout.panel_bytes());
        let x = |pass: usize| -> [*const ActivationBlock; T] {
            std::array::from_fn(|t| scratch.row(task.scratch_row(row + t, pass), task.weight.cols).cast_const())
        };
        let mut sums = tile::<CODES, SCALE, OFFSET, T>(layout, panel, half % 2, x(0));
        for pass in 1..task.passes() {
            let rest = tile::<CODES, SCALE, OFFSET, T>(layout, panel, half % 2, x(pass));
            for t in 0..T {
                sums[t] = _mm256_add_ps(sums[t], rest[t]);
            }
        }
        for (t, sums) in sums.into_iter().enumerate() {
            store(task, half, row + t, sums);
        }
    }
}

/// Sums of one half of a panel with T rows of activations.
///
/// # Safety
/// A panel at `panel` and `layout.blocks` activation blocks at each of `x`.
#[inline(always)]
unsafe fn tile<const CODES: u8, const SCALE: u8, const OFFSET: u8, const T: usize>(
    layout: &IntLayout,
    panel: *const u8,
    half: usize,
    x: [*const ActivationBlock; T],
) -> [__m256; T] {
    let code_bytes = if CODES == NIBBLES { 256 } else { 512 };
    let scale_size = if SCALE == F32 { 4 } else { 2 };
    let beside_size = if OFFSET == MINIMUM { 2 } else { 1 };
    let (mut scales_at, mut left) = (layout.scales_offset(), layout.span);
    // SAFETY: offsets stay within the panel and activation blocks that the caller vouches for.
    unsafe {
        let mut sums = [_mm256_setzero_ps(); T];
        for block in 0..layout.blocks {
            let mut x = x;
            for x in &mut x {
                *x = x.add(block);
            }
            let codes = panel.add(block * code_bytes + half * 32);
            let dots = match CODES {
                NIBBLES => nibble_dots(codes, x),
                NARROW => narrow_dots(codes, x),
                _ => wide_dots(codes, x),
            };
            let scale = load_scales::<SCALE>(panel.add(scales_at + half * 8 * scale_size));
            let beside = panel.add(scales_at + PANEL_ROWS * scale_size + half * 8 * beside_size);
            let zero = if OFFSET == ZERO { load_zeros(beside) } else { _mm256_setzero_ps() };
            for t in 0..T {
                let start = match (CODES, OFFSET) {
                    (WIDE, MINIMUM) => -(*x[t]).zero_128,
                    (WIDE, _) | (_, MINIMUM | ZERO) => 0,
                    _ => (*x[t]).zero_8,
                };
                let mut dot = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[t], _mm256_set1_epi32(start)));
                if OFFSET == ZERO {
                    dot = _mm256_fnmadd_ps(zero, _mm256_set1_ps((*x[t]).sum() as f32), dot);
                }
                let scale = _mm256_mul_ps(scale, _mm256_set1_ps((*x[t]).scale));
                sums[t] = _mm256_fmadd_ps(scale, dot, sums[t]);
            }
            if OFFSET == MINIMUM {
                let minimum = _mm256_cvtph_ps(_mm_loadu_si128(beside.cast()));
                for t in 0..T {
                    sums[t] = _mm256_fmadd_ps(minimum, _mm256_set1_ps((*x[t]).scaled_sum), sums[t]);
                }
            }
            left -= 1;
            if left == 0 {
                (scales_at, left) = (scales_at + layout.scale_bytes(), layout.span);
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

/// Activations `4 * line .. 4 * line + 4` of a block in every 32-bit lane.
///
/// # Safety
/// An activation block at `x`; `line < 8`.
#[inline(always)]
unsafe fn four(x: *const ActivationBlock, line: usize) -> __m256i {
    // SAFETY: the caller's condition: 32 bytes of `q` come first.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().add(line).read()) }
}

/// # Safety
/// A block's codes at `codes` (this half), activation blocks at `x`. The same for the two below.
#[inline(always)]
unsafe fn nibble_dots<const T: usize>(codes: *const u8, x: [*const ActivationBlock; T]) -> [__m256i; T] {
    // SAFETY: four lines of 64 bytes, of which this half reads 32.
    unsafe {
        let mask = _mm256_set1_epi8(0xf);
        let mut pairs = [_mm256_setzero_si256(); T];
        for line in 0..4 {
            let both = _mm256_loadu_si256(codes.add(line * 64).cast());
            let (low, high) = (_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask));
            for t in 0..T {
                pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(low, four(x[t], line)));
                pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(high, four(x[t], line + 4)));
            }
        }
        for pairs in &mut pairs {
            *pairs = _mm256_madd_epi16(*pairs, _mm256_set1_epi16(1));
        }
        pairs
    }
}

#[inline(always)]
unsafe fn narrow_dots<const T: usize>(codes: *const u8, x: [*const ActivationBlock; T]) -> [__m256i; T] {
    // SAFETY: eight lines of 64 bytes, of which this half reads 32.
    unsafe {
        let mut pairs = [_mm256_setzero_si256(); T];
        for line in 0..8 {
            let codes = _mm256_loadu_si256(codes.add(line * 64).cast());
            for t in 0..T {
                pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(codes, four(x[t], line)));
            }
        }
        for pairs in &mut pairs {
            *pairs = _mm256_madd_epi16(*pairs, _mm256_set1_epi16(1));
        }
        pairs
    }
}

/// Dots with `code - 128`.
#[inline(always)]
unsafe fn wide_dots<const T: usize>(codes: *const u8, x: [*const ActivationBlock; T]) -> [__m256i; T] {
    // SAFETY: eight lines of 64 bytes, of which this half reads 32.
    unsafe {
        let mut dots = [_mm256_setzero_si256(); T];
        for line in 0..8 {
            let codes = _mm256_loadu_si256(codes.add(line * 64).cast());
            let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
            let magnitude = _mm256_abs_epi8(signed);
            for t in 0..T {
                let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four(x[t], line), signed));
                dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
        }
        dots
    }
}
