//! Activations to INT8, bit for bit what the portable quantizer gives: four blocks at a time where there are four, so that
//! their reductions share shuffles, else one.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::activations::{ActivationBlock, QuantizedRows, SMALLEST, Source, scale_of};
use super::super::layout::BLOCK_COLS;

/// Quantizes `rows` of `source` into the rows of `to` from `source.to_row + rows.start` on.
///
/// # Safety
/// As `activations::quantize`; AVX-512 F, BW and VL are available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(in super::super) unsafe fn quantize(source: &Source, rows: Range<usize>, to: &QuantizedRows) {
    let whole = source.cols / BLOCK_COLS;
    for row in rows {
        let blocks = to.row(source.scratch_row(row), source.cols);
        // SAFETY: offsets below `cols` stay in the row, which the caller vouches for; `to` has all its blocks.
        unsafe {
            let x = source.x.add(row * source.stride);
            for block in (0..whole / 4 * 4).step_by(4) {
                quantize_four(x.add(block * BLOCK_COLS), blocks.add(block));
            }
            for block in whole / 4 * 4..source.cols.div_ceil(BLOCK_COLS) {
                let first = block * BLOCK_COLS;
                let mask = u32::MAX >> BLOCK_COLS.saturating_sub(source.cols - first);
                blocks.add(block).write(quantize_block(x.add(first), mask));
            }
        }
    }
}

/// Quantizes four whole blocks.
///
/// # Safety
/// 128 values at `x`; `to` can hold four blocks.
#[inline(always)]
unsafe fn quantize_four(x: *const f32, to: *mut ActivationBlock) {
    // SAFETY: the caller's condition. A block is 32 bytes of codes and 16 bytes of fields, aligned to 16.
    unsafe {
        let mut values = [[_mm512_setzero_ps(); 2]; 4];
        for (i, values) in values.iter_mut().enumerate() {
            *values = [_mm512_loadu_ps(x.add(i * 32)), _mm512_loadu_ps(x.add(i * 32 + 16))];
        }
        let largest = largest_of_four(values);
        let normal = _mm_cmp_ps_mask::<_CMP_NLT_UQ>(largest, _mm_set1_ps(SMALLEST));
        let scale = _mm_maskz_mul_ps(normal, largest, _mm_set1_ps(1.0 / 127.0));
        let inverse = _mm512_castps128_ps512(_mm_maskz_div_ps(normal, _mm_set1_ps(127.0), largest));
        let mut codes = [[_mm512_setzero_si512(); 2]; 4];
        for i in 0..4 {
            let inverse = _mm512_permutexvar_ps(_mm512_set1_epi32(i as i32), inverse);
            for half in 0..2 {
                codes[i][half] = _mm512_cvtps_epi32(_mm512_mul_ps(values[i][half], inverse));
            }
        }
        let (first, second) = (two_blocks(codes[0], codes[1]), two_blocks(codes[2], codes[3]));
        let sum = sums_of_four(first, second);
        let scaled_sum = _mm_mul_ps(scale, _mm_cvtepi32_ps(sum));
        let negative = _mm_sub_epi32(_mm_setzero_si128(), sum);
        let (zero_8, zero_128) = (_mm_slli_epi32::<3>(negative), _mm_slli_epi32::<7>(negative));
        // The four fields behind the codes, transposed: one vector per block.
        let (a, b) = (_mm_castps_si128(scale), _mm_castps_si128(scaled_sum));
        let (low, high) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
        let (zero_low, zero_high) = (_mm_unpacklo_epi32(zero_8, zero_128), _mm_unpackhi_epi32(zero_8, zero_128));
        put(to, _mm512_castsi512_si256(first), _mm_unpacklo_epi64(low, zero_low));
        put(to.add(1), _mm512_extracti64x4_epi64::<1>(first), _mm_unpackhi_epi64(low, zero_low));
        put(to.add(2), _mm512_castsi512_si256(second), _mm_unpacklo_epi64(high, zero_high));
        put(to.add(3), _mm512_extracti64x4_epi64::<1>(second), _mm_unpackhi_epi64(high, zero_high));
    }
}

/// Writes a block: codes, then the fields behind them.
///
/// # Safety
/// `to` can hold a block.
#[inline(always)]
unsafe fn put(to: *mut ActivationBlock, q: __m256i, fields: __m128i) {
    // SAFETY: the caller's condition.
    unsafe {
        _mm256_storeu_si256(to.cast(), q);
        _mm_storeu_si128(to.cast::<u8>().add(32).cast(), fields);
    }
}

/// The largest magnitude of each of four blocks, compared as integers so that NaN counts as larger than infinity.
///
/// # Safety
/// The instruction set of [`quantize`]. The same for those below.
#[inline(always)]
unsafe fn largest_of_four(x: [[__m512; 2]; 4]) -> __m128 {
    // SAFETY: this function's condition.
    unsafe {
        let mut most = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            most[i] = _mm512_max_epu32(magnitude(x[i][0]), magnitude(x[i][1]));
        }
        // Quarters of 128 bits: [a0 a1 b0 b1], [c0 c1 d0 d1], then [a b c d].
        let (ab, cd) = (fold(most[0], most[1]), fold(most[2], most[3]));
        let (even, odd) = (_mm512_shuffle_i32x4::<0b10_00_10_00>(ab, cd), _mm512_shuffle_i32x4::<0b11_01_11_01>(ab, cd));
        let quarters = _mm512_max_epu32(even, odd);
        let quarters = _mm512_max_epu32(quarters, _mm512_shuffle_epi32::<0b01_00_11_10>(quarters));
        let quarters = _mm512_max_epu32(quarters, _mm512_shuffle_epi32::<0b10_11_00_01>(quarters));
        let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
        _mm_castsi128_ps(_mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, quarters)))
    }
}

#[inline(always)]
unsafe fn magnitude(v: __m512) -> __m512i {
    // SAFETY: as `largest_of_four`.
    unsafe { _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fff_ffff)) }
}

/// The larger of the halves of `a`, then those of `b`.
#[inline(always)]
unsafe fn fold(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: as `largest_of_four`.
    unsafe {
        let (low, high) = (_mm512_shuffle_i32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b));
        _mm512_max_epu32(low, high)
    }
}

/// Two blocks of 32-bit codes as bytes, one after the other.
#[inline(always)]
unsafe fn two_blocks(a: [__m512i; 2], b: [__m512i; 2]) -> __m512i {
    // SAFETY: as `largest_of_four`.
    unsafe {
        // Packing works within 128-bit quarters: quarter i holds words i of the four inputs, four codes each.
        let packed = _mm512_packs_epi16(_mm512_packs_epi32(a[0], a[1]), _mm512_packs_epi32(b[0], b[1]));
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), packed)
    }
}

/// Sums of the codes of four blocks; see [`byte_sum`].
#[inline(always)]
unsafe fn sums_of_four(first: __m512i, second: __m512i) -> __m128i {
    // SAFETY: as `largest_of_four`.
    unsafe {
        let (flip, zero) = (_mm512_set1_epi8(-128), _mm512_setzero_si512());
        let ab = _mm512_sad_epu8(_mm512_xor_si512(first, flip), zero);
        let cd = _mm512_sad_epu8(_mm512_xor_si512(second, flip), zero);
        let pairs = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
        // 64-bit lanes: [a c][a c][b d][b d]
        let sums = _mm512_add_epi32(pairs, _mm512_shuffle_i32x4::<0b10_11_00_01>(pairs, pairs));
        let firsts = _mm512_setr_epi32(0, 8, 2, 10, 0, 8, 2, 10, 0, 8, 2, 10, 0, 8, 2, 10);
        let sums = _mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, sums));
        _mm_sub_epi32(sums, _mm_set1_epi32(128 * 32))
    }
}

/// Quantizes one block.
///
/// # Safety
/// `x` holds the elements that `mask` names.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn quantize_block(x: *const f32, mask: u32) -> ActivationBlock {
    // SAFETY: masked lanes are not touched; `wrapping_add` makes no claim about where the second half lies.
    let (low, high) =
        unsafe { (_mm512_maskz_loadu_ps(mask as u16, x), _mm512_maskz_loadu_ps((mask >> 16) as u16, x.wrapping_add(16))) };
    // SAFETY: the instruction set is enabled.
    let most = unsafe { _mm512_max_epu32(magnitude(low), magnitude(high)) };
    let largest = _mm512_reduce_max_epu32(most);
    let (scale, inverse) = scale_of(f32::from_bits(largest));
    let codes = |v: __m512| _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(inverse)));
    let q = _mm256_set_m128i(_mm512_cvtsepi32_epi8(codes(high)), _mm512_cvtsepi32_epi8(codes(low)));
    let sum = byte_sum(q);
    let mut block =
        ActivationBlock { q: [0; BLOCK_COLS], scale, scaled_sum: scale * sum as f32, zero_8: sum * -8, zero_128: sum * -128 };
    // SAFETY: `q` has 32 bytes.
    unsafe { _mm256_storeu_si256(block.q.as_mut_ptr().cast(), q) };
    block
}

/// Sum of 32 signed bytes: sums of eight, as unsigned with 128 added to each, then across.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn byte_sum(q: __m256i) -> i32 {
    let sums = _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 128 * 32
}
