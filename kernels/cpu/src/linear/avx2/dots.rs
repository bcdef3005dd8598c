//! Exact dot products of a block of 32 columns with AVX2, a panel of 16 rows by T rows of activations. Knows codes and
//! activations; no scales.
//!
//! `maddubs` multiplies unsigned by signed bytes and adds pairs into 16 bits, saturating. So that nothing saturates, 8-bit codes
//! enter as |code - 128| with their sign moved to the activation: a pair is at most 2 * 128 * 127 = 32512. Of 4-bit codes a
//! whole block fits: 16 * 15 * 127 = 30480.
//!
//! The number of lines comes as an argument that the compiler cannot know: unrolled, it computes a vector of sums after the other
//! and spills the activations in between.

use std::arch::x86_64::*;

use super::super::activations::ActivationBlock;

/// One i32 a row: rows 0..8 of the panel, then rows 8..16.
pub(super) type Halves = [__m256i; 2];

/// Activations `4 * line .. 4 * line + 4` of a block in every 32-bit lane.
///
/// # Safety
/// An activation block at `x`; `line < 8`.
#[inline(always)]
pub(super) unsafe fn four(x: *const ActivationBlock, line: usize) -> __m256i {
    // SAFETY: the caller's condition: 32 bytes of `q` come first.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().add(line).read()) }
}

/// Both halves of a line of codes.
///
/// # Safety
/// 64 bytes at `codes`.
#[inline(always)]
pub(super) unsafe fn line_at(codes: *const u8) -> Halves {
    // SAFETY: the caller's condition.
    unsafe { [_mm256_loadu_si256(codes.cast()), _mm256_loadu_si256(codes.add(32).cast())] }
}

/// `pairs + codes * q`, in 16 bits.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn add_pairs(pairs: Halves, codes: Halves, q: __m256i) -> Halves {
    // SAFETY: the caller's condition.
    unsafe {
        [
            _mm256_add_epi16(pairs[0], _mm256_maddubs_epi16(codes[0], q)),
            _mm256_add_epi16(pairs[1], _mm256_maddubs_epi16(codes[1], q)),
        ]
    }
}

/// Pairs of 16 bits added up.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn widen<const T: usize>(mut pairs: [Halves; T]) -> [Halves; T] {
    // SAFETY: the caller's condition.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        for pairs in &mut pairs {
            *pairs = [_mm256_madd_epi16(pairs[0], ones), _mm256_madd_epi16(pairs[1], ones)];
        }
        pairs
    }
}

/// Of 4-bit codes.
///
/// # Safety
/// AVX2; the `lines` (4; 8 for the two below) of a block's codes at `codes`, an activation block at each of `x`.
#[inline(always)]
pub(super) unsafe fn nibbles<const T: usize>(codes: *const u8, lines: usize, x: [*const ActivationBlock; T]) -> [Halves; T] {
    // SAFETY: four lines of 64 bytes of codes, twice four times four activations.
    unsafe {
        let mask = _mm256_set1_epi8(0xf);
        let mut pairs = [[_mm256_setzero_si256(); 2]; T];
        for line in 0..lines {
            let [a, b] = line_at(codes.add(line * 64));
            let low = [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)];
            let high = [_mm256_and_si256(_mm256_srli_epi16::<4>(a), mask), _mm256_and_si256(_mm256_srli_epi16::<4>(b), mask)];
            for t in 0..T {
                pairs[t] = add_pairs(pairs[t], low, four(x[t], line));
                pairs[t] = add_pairs(pairs[t], high, four(x[t], line + 4));
            }
        }
        widen(pairs)
    }
}

/// Of 4-bit codes, a byte each.
///
/// # Safety
/// As above.
#[inline(always)]
pub(super) unsafe fn narrow<const T: usize>(codes: *const u8, lines: usize, x: [*const ActivationBlock; T]) -> [Halves; T] {
    // SAFETY: eight lines of 64 bytes of codes, eight times four activations.
    unsafe {
        let mut pairs = [[_mm256_setzero_si256(); 2]; T];
        for line in 0..lines {
            let codes = line_at(codes.add(line * 64));
            for t in 0..T {
                pairs[t] = add_pairs(pairs[t], codes, four(x[t], line));
            }
        }
        widen(pairs)
    }
}

/// Of 8-bit codes less 128 with merged activations, which cost no more than those of 8 bits: columns 0 and 2 of four, then 1 and
/// 3. A sum is at most 32 * 128 * 32385, below 2^28.
///
/// # Safety
/// As above; the odd columns are `odd` bytes behind each of `x`.
#[inline(always)]
pub(super) unsafe fn wide_merged<const T: usize>(
    codes: *const u8,
    lines: usize,
    (x, odd): ([*const ActivationBlock; T], usize),
) -> [Halves; T] {
    // SAFETY: eight lines of 64 bytes of codes, eight times two times two activations.
    unsafe {
        let centre = _mm256_set1_epi8(-128);
        let mut dots = [[_mm256_setzero_si256(); 2]; T];
        for line in 0..lines {
            let [a, b] = line_at(codes.add(line * 64));
            let signed = [_mm256_xor_si256(a, centre), _mm256_xor_si256(b, centre)];
            for h in 0..2 {
                let even_columns = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(signed[h]));
                let odd_columns = _mm256_srai_epi16::<8>(signed[h]);
                for t in 0..T {
                    let (even_x, odd_x) = (four(x[t], line), four(x[t].byte_add(odd), line));
                    dots[t][h] = _mm256_add_epi32(dots[t][h], _mm256_madd_epi16(even_columns, even_x));
                    dots[t][h] = _mm256_add_epi32(dots[t][h], _mm256_madd_epi16(odd_columns, odd_x));
                }
            }
        }
        dots
    }
}

/// Of 8-bit codes less 128.
///
/// # Safety
/// As above.
#[inline(always)]
pub(super) unsafe fn wide<const T: usize>(codes: *const u8, lines: usize, x: [*const ActivationBlock; T]) -> [Halves; T] {
    // SAFETY: eight lines of 64 bytes of codes, eight times four activations.
    unsafe {
        let (centre, ones) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(1));
        let mut dots = [[_mm256_setzero_si256(); 2]; T];
        for line in 0..lines {
            let codes = line_at(codes.add(line * 64));
            for h in 0..2 {
                let signed = _mm256_xor_si256(codes[h], centre);
                let magnitude = _mm256_abs_epi8(signed);
                for t in 0..T {
                    let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four(x[t], line), signed));
                    dots[t][h] = _mm256_add_epi32(dots[t][h], _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        dots
    }
}
