//! AVX2 kernels, with AVX-VNNI where integer products can use it: activations to INT8 and what integer and dense products share. Called through `super::super` only, after the
//! instruction set was checked.

mod dense;
mod dots;
mod dots_vnni;
mod int;

use std::arch::x86_64::*;
use std::ops::Range;

use millrace_ops::LinearMode;

use super::LinearTask;
use super::activations::{ActivationBlock, QuantizedRows, Source, remainder_scale_of, scale_of};
use super::layout::{BLOCK_COLS, PANEL_ROWS};

pub(super) use dense::multiply_dense;
pub(super) use int::multiply_int;

/// Output rows of one vector: half a panel.
const HALF_ROWS: usize = PANEL_ROWS / 2;

/// Quantizes `rows` of `source` into the rows of `to` from `source.to_row + rows.start` on; bit for bit what `activations::quantize` gives.
///
/// # Safety
/// As there; AVX2 is available.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn quantize(source: &Source, rows: Range<usize>, to: &QuantizedRows) {
    for row in rows {
        let blocks = to.row(source.scratch_row(row), source.cols);
        for block in 0..source.cols.div_ceil(BLOCK_COLS) {
            let mut padded = [0.0; BLOCK_COLS];
            // SAFETY: the block is in the row, which the caller vouches for; `to` has all its blocks.
            unsafe { blocks.add(block).write(quantize_block(values_of(source, (row, block), &mut padded))) };
        }
    }
}

/// The 32 values of a block, in `padded` where the row has fewer left.
///
/// # Safety
/// `source` holds the row, and the block begins in it.
#[inline(always)]
unsafe fn values_of(source: &Source, (row, block): (usize, usize), padded: &mut [f32; BLOCK_COLS]) -> *const f32 {
    let first = block * BLOCK_COLS;
    let count = BLOCK_COLS.min(source.cols - first);
    // SAFETY: `count` values are left in the row, by this function's condition; `padded` has room for them.
    unsafe {
        let x = source.x.add(row * source.stride + first);
        if count == BLOCK_COLS {
            return x;
        }
        std::ptr::copy_nonoverlapping(x, padded.as_mut_ptr(), count);
    }
    padded.as_ptr()
}

/// What `activations::quantize_remainders` gives, bit for bit where rows are finite.
///
/// # Safety
/// As there; AVX2 is available.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn quantize_remainders(source: &Source, rows: Range<usize>, to: &QuantizedRows) {
    for row in rows {
        let coarse = to.row(source.scratch_row(row), source.cols);
        let blocks = to.row(source.scratch_row(row) + 1, source.cols);
        for block in 0..source.cols.div_ceil(BLOCK_COLS) {
            let mut padded = [0.0; BLOCK_COLS];
            // SAFETY: the block is in the row, which the caller vouches for; both rows of `to` have all their blocks.
            unsafe {
                let x = values_of(source, (row, block), &mut padded);
                blocks.add(block).write(quantize_remainder(&*coarse.add(block), x));
            }
        }
    }
}

/// # Safety
/// 32 values at `x`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn quantize_remainder(coarse: &ActivationBlock, x: *const f32) -> ActivationBlock {
    let (scale, inverse) = remainder_scale_of(coarse.scale);
    let (least, most) = (_mm256_set1_ps(-127.0), _mm256_set1_ps(127.0));
    let mut codes = [_mm256_setzero_si256(); 4];
    for (i, codes) in codes.iter_mut().enumerate() {
        // SAFETY: 32 codes and, by this function's condition, as many values.
        let (q, x) = unsafe { (_mm_loadl_epi64(coarse.q.as_ptr().add(i * 8).cast()), _mm256_loadu_ps(x.add(i * 8))) };
        let held = _mm256_mul_ps(_mm256_set1_ps(coarse.scale), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)));
        let left = _mm256_mul_ps(_mm256_sub_ps(x, held), _mm256_set1_ps(inverse));
        *codes = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(left, least), most));
    }
    block_of(codes, scale)
}

/// # Safety
/// 32 values at `x`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn quantize_block(x: *const f32) -> ActivationBlock {
    let sign = _mm256_set1_epi32(i32::MIN);
    let (mut values, mut largest) = ([_mm256_setzero_ps(); 4], _mm256_setzero_si256());
    for (i, value) in values.iter_mut().enumerate() {
        // SAFETY: the caller's condition.
        *value = unsafe { _mm256_loadu_ps(x.add(i * 8)) };
        largest = _mm256_max_epu32(largest, _mm256_andnot_si256(sign, _mm256_castps_si256(*value)));
    }
    let (scale, inverse) = scale_of(f32::from_bits(largest_lane(largest)));
    let mut codes = [_mm256_setzero_si256(); 4];
    for i in 0..4 {
        codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], _mm256_set1_ps(inverse)));
    }
    block_of(codes, scale)
}

/// The block of 32 codes, each at most 127 in size where `scale` is finite.
#[inline]
#[target_feature(enable = "avx2")]
fn block_of([a, b, c, d]: [__m256i; 4], scale: f32) -> ActivationBlock {
    let sum = lane_sum(_mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d)));
    // Packing works within 128-bit halves; the permutation puts the groups of four back in order.
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    let q = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let mut block = ActivationBlock {
        q: [0; BLOCK_COLS],
        scale,
        scaled_sum: scale * sum as f32,
        zero_8: sum.wrapping_mul(-8),
        zero_128: sum.wrapping_mul(-128),
    };
    // SAFETY: `q` has 32 bytes.
    unsafe { _mm256_storeu_si256(block.q.as_mut_ptr().cast(), q) };
    block
}

#[inline]
#[target_feature(enable = "avx2")]
fn largest_lane(v: __m256i) -> u32 {
    let v = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_max_epu32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_max_epu32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v))).cast_unsigned()
}

#[inline]
#[target_feature(enable = "avx2")]
fn lane_sum(v: __m256i) -> i32 {
    let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
}

/// Writes one row's part of half panel `half` (8 output columns) to the output.
///
/// # Safety
/// The condition on `out` and `bias` of `super::multiply`; AVX2 is available.
#[inline(always)]
unsafe fn store(task: &LinearTask<'_>, half: usize, row: usize, sums: __m256) {
    let first = half * HALF_ROWS;
    let count = task.weight.rows.saturating_sub(first);
    // SAFETY: columns stay below `weight.rows`, the length of a row of `out` and of `bias`.
    unsafe {
        let out = task.out.wrapping_add(row * task.out_stride + first);
        if count >= HALF_ROWS {
            let mut value = sums;
            if let Some(bias) = task.bias {
                value = _mm256_add_ps(value, _mm256_loadu_ps(bias.add(first)));
            }
            if task.mode == LinearMode::Add {
                value = _mm256_add_ps(_mm256_loadu_ps(out), value);
            }
            _mm256_storeu_ps(out, value);
            return;
        }
        let mut values = [0.0; HALF_ROWS];
        _mm256_storeu_ps(values.as_mut_ptr(), sums);
        for (i, value) in values.into_iter().enumerate().take(count) {
            let value = task.bias.map_or(value, |bias| value + *bias.add(first + i));
            *out.add(i) = if task.mode == LinearMode::Add { *out.add(i) + value } else { value };
        }
    }
}
