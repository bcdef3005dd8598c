//! The dot products of [`super::dots`] with AVX-VNNI, whose `dpbusd` adds four products of unsigned codes and signed activations to
//! 32 bits at once: nothing saturates, so 8-bit codes enter as they are. Knows codes and activations; no scales.

use std::arch::x86_64::*;

use super::super::activations::ActivationBlock;
use super::dots::{Halves, four, line_at};

/// `dots + codes * q`, in 32 bits.
///
/// # Safety
/// AVX-VNNI.
#[inline(always)]
unsafe fn add_products(dots: Halves, codes: Halves, q: __m256i) -> Halves {
    // SAFETY: the caller's condition.
    unsafe { [_mm256_dpbusd_avx_epi32(dots[0], codes[0], q), _mm256_dpbusd_avx_epi32(dots[1], codes[1], q)] }
}

/// Of 4-bit codes.
///
/// # Safety
/// AVX2 and AVX-VNNI; the `lines` (4; 8 for the one below) of a block's codes at `codes`, an activation block at each of `x`.
#[inline(always)]
pub(super) unsafe fn nibbles<const T: usize>(codes: *const u8, lines: usize, x: [*const ActivationBlock; T]) -> [Halves; T] {
    // SAFETY: four lines of 64 bytes of codes, twice four times four activations.
    unsafe {
        let mask = _mm256_set1_epi8(0xf);
        let mut dots = [[_mm256_setzero_si256(); 2]; T];
        for line in 0..lines {
            let [a, b] = line_at(codes.add(line * 64));
            let low = [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)];
            let high = [_mm256_and_si256(_mm256_srli_epi16::<4>(a), mask), _mm256_and_si256(_mm256_srli_epi16::<4>(b), mask)];
            for t in 0..T {
                dots[t] = add_products(dots[t], low, four(x[t], line));
                dots[t] = add_products(dots[t], high, four(x[t], line + 4));
            }
        }
        dots
    }
}

/// Of codes of a byte each, 4-bit or 8-bit. A sum is at most 32 * 255 * 127, below 2^20.
///
/// # Safety
/// As above.
#[inline(always)]
pub(super) unsafe fn bytes<const T: usize>(codes: *const u8, lines: usize, x: [*const ActivationBlock; T]) -> [Halves; T] {
    // SAFETY: eight lines of 64 bytes of codes, eight times four activations.
    unsafe {
        let mut dots = [[_mm256_setzero_si256(); 2]; T];
        for line in 0..lines {
            let codes = line_at(codes.add(line * 64));
            for t in 0..T {
                dots[t] = add_products(dots[t], codes, four(x[t], line));
            }
        }
        dots
    }
}
