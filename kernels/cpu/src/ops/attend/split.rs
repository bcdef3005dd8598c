//! Queries and weights of the softmax as sums of two BF16 numbers, 16 bits of the 24 of an f32. Knows no products.

use std::arch::x86_64::*;

use super::tile::{PART, Tile};
use super::work::{STRIDE, WEIGHT_STRIDE, Work};
use crate::simd::tiles::{rounded, widened};

/// BF16 numbers that a query's channel, and a weight, is the sum of.
pub(super) const PARTS: usize = 2;
/// What numbers of tokens of a part are rounded up to.
pub(super) const DEPTH: usize = 32;

/// Tokens of the part at `start`, rounded up.
pub(super) fn whole_tokens(tile: &Tile<'_>, start: usize) -> usize {
    PART.min(tile.context() - start).next_multiple_of(DEPTH)
}

/// # Safety
/// AVX-512 F, VL and BF16 are available; `work` was made for the tile.
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
pub(super) unsafe fn split_queries(tile: &Tile<'_>, work: &mut Work<'_>) {
    let head_dim = tile.head_dim;
    let rows = work.queries.chunks_exact(head_dim).zip(work.operands.queries.chunks_exact_mut(PARTS * head_dim));
    for (query, parts) in rows.take(tile.rows * tile.group) {
        let (high, low) = parts.split_at_mut(head_dim);
        for ((query, high), low) in query.chunks_exact(16).zip(high.chunks_exact_mut(16)).zip(low.chunks_exact_mut(16)) {
            // SAFETY: each chunk is a vector, `head_dim` being a multiple of 32.
            unsafe { put_parts(_mm512_loadu_ps(query.as_ptr()), high.as_mut_ptr(), low.as_mut_ptr()) };
        }
    }
}

/// Weights of the part at `start`, zeros behind what a row sees.
///
/// # Safety
/// As [`split_queries`]; the part's weights are in `work`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn split_weights(tile: &Tile<'_>, start: usize, work: &mut Work<'_>) {
    let whole = whole_tokens(tile, start);
    for query in tile.first_seeing(start) * tile.group..tile.rows * tile.group {
        let (weights, seen) = (&work.scores[query * STRIDE..][..whole], tile.seen(query, start));
        let parts = &mut work.operands.weights[query * PARTS * WEIGHT_STRIDE..][..PARTS * WEIGHT_STRIDE];
        let (high, low) = parts.split_at_mut(WEIGHT_STRIDE);
        let parts = high.chunks_exact_mut(16).zip(low.chunks_exact_mut(16));
        for (i, (weights, (high, low))) in weights.chunks_exact(16).zip(parts).enumerate() {
            let mask = (0xffff_u32 >> 16_usize.saturating_sub(seen.saturating_sub(i * 16))) as u16;
            // SAFETY: each chunk is a vector.
            unsafe { put_parts(_mm512_maskz_loadu_ps(mask, weights.as_ptr()), high.as_mut_ptr(), low.as_mut_ptr()) };
        }
    }
}

/// # Safety
/// `high` and `low` have room for 16 numbers; AVX-512 F, VL and BF16 are available.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
unsafe fn put_parts(x: __m512, high: *mut u16, low: *mut u16) {
    let nearest = rounded(x);
    // SAFETY: this function's condition.
    unsafe {
        _mm256_storeu_si256(high.cast(), nearest);
        _mm256_storeu_si256(low.cast(), rounded(_mm512_sub_ps(x, widened(nearest))));
    }
}
