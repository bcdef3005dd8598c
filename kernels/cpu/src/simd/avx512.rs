//! AVX-512 F, BW and VL. Knows no algorithm.

use std::arch::x86_64::*;

use super::vector::{MOST_LANES, Vector};

#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// A mask of the first `count` lanes.
#[inline(always)]
fn first_mask(count: usize) -> __mmask16 {
    if count >= 16 { u16::MAX } else { (1u16 << count) - 1 }
}

// Every method relies on the trait's condition alone: the machine has AVX-512, and pointers hold what the method reads.
impl Vector for Avx512 {
    const LANES: usize = 16;
    const SCORE_ROWS: usize = 8;
    const VALUE_ROWS: usize = 6;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: the trait's condition; masked lanes are not read.
        Self(unsafe { _mm512_maskz_loadu_ps(first_mask(count), from) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))) })
    }

    #[inline(always)]
    unsafe fn load_fp8(from: *const u8) -> Self {
        // Sign-extended and shifted, a code is an f16 with the sign in both upper bits; the lower of them is cleared.
        // SAFETY: the trait's condition.
        unsafe {
            let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
            Self(_mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(0xbfff_u16 as i16))))
        }
    }

    #[inline(always)]
    unsafe fn load_fp8_or_nan(from: *const u8) -> Self {
        // As above; the f16 that stands for the NaN code gets all exponent bits.
        // SAFETY: the trait's condition.
        unsafe {
            let codes = _mm_loadu_si128(from.cast());
            let nan = _mm_cmpeq_epi8_mask(_mm_and_si128(codes, _mm_set1_epi8(0x7f)), _mm_set1_epi8(0x7f));
            let wide =
                _mm256_and_si256(_mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes)), _mm256_set1_epi16(0xbfff_u16 as i16));
            Self(_mm512_cvtph_ps(_mm256_mask_blend_epi16(nan, wide, _mm256_set1_epi16(0x7e00))))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the trait's condition.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: the trait's condition; masked lanes are not written.
        unsafe { _mm512_mask_storeu_ps(to, first_mask(count), self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_scalef_ps(_mm512_set1_ps(1.0), self.0) })
    }

    #[inline(always)]
    unsafe fn below(self, bound: Self, then: Self, otherwise: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, bound.0), otherwise.0, then.0) })
    }

    #[inline(always)]
    unsafe fn first(self, count: usize, fill: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm512_mask_blend_ps(first_mask(count), fill.0, self.0) })
    }

    #[inline(always)]
    unsafe fn any_nan_or_inf(self) -> bool {
        // SAFETY: the trait's condition.
        unsafe { _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, _mm512_set1_ps(f32::INFINITY)) != 0 }
    }

    #[inline(always)]
    unsafe fn transpose(rows: &mut [Self; MOST_LANES]) {
        // SAFETY: the trait's condition.
        unsafe {
            let r = *rows;
            let mut i = 0;
            while i < 16 {
                // Of rows i..i + 4: in 128-bit lane l, columns 4 * l .. 4 * l + 4 in turn.
                let (a, b) = (_mm512_unpacklo_ps(r[i].0, r[i + 1].0), _mm512_unpackhi_ps(r[i].0, r[i + 1].0));
                let (c, d) = (_mm512_unpacklo_ps(r[i + 2].0, r[i + 3].0), _mm512_unpackhi_ps(r[i + 2].0, r[i + 3].0));
                let (ac, bd) = ((_mm512_castps_pd(a), _mm512_castps_pd(c)), (_mm512_castps_pd(b), _mm512_castps_pd(d)));
                rows[i] = Self(_mm512_castpd_ps(_mm512_unpacklo_pd(ac.0, ac.1)));
                rows[i + 1] = Self(_mm512_castpd_ps(_mm512_unpackhi_pd(ac.0, ac.1)));
                rows[i + 2] = Self(_mm512_castpd_ps(_mm512_unpacklo_pd(bd.0, bd.1)));
                rows[i + 3] = Self(_mm512_castpd_ps(_mm512_unpackhi_pd(bd.0, bd.1)));
                i += 4;
            }
            let q = *rows;
            let mut j = 0;
            while j < 4 {
                // Lanes 0 and 2, then 1 and 3, of two quads each; then the same again.
                let even = _mm512_shuffle_f32x4::<0x88>(q[j].0, q[4 + j].0);
                let odd = _mm512_shuffle_f32x4::<0xdd>(q[j].0, q[4 + j].0);
                let later_even = _mm512_shuffle_f32x4::<0x88>(q[8 + j].0, q[12 + j].0);
                let later_odd = _mm512_shuffle_f32x4::<0xdd>(q[8 + j].0, q[12 + j].0);
                rows[j] = Self(_mm512_shuffle_f32x4::<0x88>(even, later_even));
                rows[4 + j] = Self(_mm512_shuffle_f32x4::<0x88>(odd, later_odd));
                rows[8 + j] = Self(_mm512_shuffle_f32x4::<0xdd>(even, later_even));
                rows[12 + j] = Self(_mm512_shuffle_f32x4::<0xdd>(odd, later_odd));
                j += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the trait's condition.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the trait's condition.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}
