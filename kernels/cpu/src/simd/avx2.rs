//! AVX2 with FMA and F16C. Knows no algorithm.

use std::arch::x86_64::*;

use super::vector::{MOST_LANES, Vector};

#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

/// Sixteen words of which the eight from `8 - count` on are a mask of the first `count` lanes.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn first_mask(count: usize) -> __m256i {
    // SAFETY: 8 words from word `8 - count` in 0..=8 lie within the 16.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - count.min(8)).cast()) }
}

// Every method relies on the trait's condition alone: the machine has AVX2, FMA and F16C, and pointers hold what is read.
impl Vector for Avx2 {
    const LANES: usize = 8;
    const SCORE_ROWS: usize = 6;
    const VALUE_ROWS: usize = 3;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: the trait's condition; masked lanes are not read.
        Self(unsafe { _mm256_maskload_ps(from, first_mask(count)) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())))) })
    }

    #[inline(always)]
    unsafe fn load_fp8(from: *const u8) -> Self {
        // Sign-extended and shifted, a code is an f16 with the sign in both upper bits; the lower of them is cleared.
        // SAFETY: the trait's condition.
        unsafe {
            let wide = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast())));
            Self(_mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(0xbfff_u16 as i16))))
        }
    }

    #[inline(always)]
    unsafe fn load_fp8_or_nan(from: *const u8) -> Self {
        // As above; the f16 that stands for the NaN code gets all exponent bits.
        // SAFETY: the trait's condition.
        unsafe {
            let codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast()));
            let nan = _mm_cmpeq_epi16(_mm_and_si128(codes, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7f));
            let wide = _mm_and_si128(_mm_slli_epi16::<7>(codes), _mm_set1_epi16(0xbfff_u16 as i16));
            Self(_mm256_cvtph_ps(_mm_or_si128(wide, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)))))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the trait's condition.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: the trait's condition; masked lanes are not written.
        unsafe { _mm256_maskstore_ps(to, first_mask(count), self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        })
    }

    #[inline(always)]
    unsafe fn below(self, bound: Self, then: Self, otherwise: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_blendv_ps(otherwise.0, then.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, bound.0)) })
    }

    #[inline(always)]
    unsafe fn first(self, count: usize, fill: Self) -> Self {
        // SAFETY: the trait's condition.
        Self(unsafe { _mm256_blendv_ps(fill.0, self.0, _mm256_castsi256_ps(first_mask(count))) })
    }

    #[inline(always)]
    unsafe fn any_nan_or_inf(self) -> bool {
        // SAFETY: the trait's condition.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(self.0, _mm256_set1_ps(f32::INFINITY))) != 0 }
    }

    #[inline(always)]
    unsafe fn transpose(rows: &mut [Self; MOST_LANES]) {
        // SAFETY: the trait's condition.
        unsafe {
            let r = *rows;
            let mut i = 0;
            while i < 8 {
                // Of rows i..i + 4: in 128-bit lane l, columns 4 * l .. 4 * l + 4 in turn.
                let (a, b) = (_mm256_unpacklo_ps(r[i].0, r[i + 1].0), _mm256_unpackhi_ps(r[i].0, r[i + 1].0));
                let (c, d) = (_mm256_unpacklo_ps(r[i + 2].0, r[i + 3].0), _mm256_unpackhi_ps(r[i + 2].0, r[i + 3].0));
                let (ac, bd) = ((_mm256_castps_pd(a), _mm256_castps_pd(c)), (_mm256_castps_pd(b), _mm256_castps_pd(d)));
                rows[i] = Self(_mm256_castpd_ps(_mm256_unpacklo_pd(ac.0, ac.1)));
                rows[i + 1] = Self(_mm256_castpd_ps(_mm256_unpackhi_pd(ac.0, ac.1)));
                rows[i + 2] = Self(_mm256_castpd_ps(_mm256_unpacklo_pd(bd.0, bd.1)));
                rows[i + 3] = Self(_mm256_castpd_ps(_mm256_unpackhi_pd(bd.0, bd.1)));
                i += 4;
            }
            let q = *rows;
            let mut j = 0;
            while j < 4 {
                rows[j] = Self(_mm256_permute2f128_ps::<0x20>(q[j].0, q[4 + j].0));
                rows[4 + j] = Self(_mm256_permute2f128_ps::<0x31>(q[j].0, q[4 + j].0));
                j += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the trait's condition.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the trait's condition.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}
