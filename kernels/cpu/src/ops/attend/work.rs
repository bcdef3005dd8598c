//! Scratch of blocked attention: the buffers of one worker, cut out of one run of floats. Knows sizes, no arithmetic.

use super::tile::PART;

/// Floats from one query row's scores to the next: a power of two would put all rows into a few sets of the cache.
pub(super) const STRIDE: usize = PART + 16;
/// BF16 numbers from one query row's weights to the next: an odd number of lines.
pub(super) const WEIGHT_STRIDE: usize = PART + 32;
/// Query rows that scratch has behind the last one: products in tiles compute 16 rows at a time, whatever is in them.
const SPARE_QUERIES: usize = 15;

/// Scratch of one worker for tiles of up to `queries` query rows (row r, head g at `r * group + g`), and spare rows behind them.
pub(super) struct Work<'a> {
    /// `[queries, head_dim]`
    pub(super) queries: &'a mut [f32],
    /// `[queries, STRIDE]`: scores, then weights.
    pub(super) scores: &'a mut [f32],
    /// `[queries, head_dim]`: sums of the part at hand, where it is not the first.
    pub(super) part_sums: &'a mut [f32],
    /// `[queries, head_dim]`
    pub(super) sums: &'a mut [f32],
    /// `[queries, 2]`: largest and sum.
    pub(super) softmax: &'a mut [f32],
    pub(super) part_softmax: &'a mut [f32],
    /// A page's keys or values as floats.
    pub(super) block: &'a mut [f32],
    pub(super) score_factors: &'a mut [f32],
    pub(super) weight_factors: &'a mut [f32],
    /// What products in narrower formats than f32 read.
    pub(super) operands: Operands<'a>,
}

/// Queries and weights in two parts of BF16 each (`halves`: in FP16, each twice), and a part's keys or values (`amx`).
pub(super) struct Operands<'a> {
    /// `[queries][2 parts][head_dim]`
    pub(super) queries: &'a mut [u16],
    /// `[queries][2 parts][WEIGHT_STRIDE]`
    pub(super) weights: &'a mut [u16],
    /// `[PART * head_dim]`
    pub(super) packed: &'a mut [u16],
    /// `[queries][2]`: what a query's scores and sums are multiplied by (`halves`).
    pub(super) factors: &'a mut [f32],
}

impl<'a> Work<'a> {
    pub(super) fn floats(queries: usize, head_dim: usize, page_tokens: usize) -> usize {
        let padded = queries + SPARE_QUERIES;
        padded * (4 * head_dim + STRIDE + WEIGHT_STRIDE) + queries * 6 + page_tokens * head_dim + 2 * PART + PART * head_dim / 2
    }

    /// Cuts `scratch`, of [`Self::floats`] floats.
    pub(super) fn new(scratch: &'a mut [f32], queries: usize, head_dim: usize, page_tokens: usize) -> Self {
        let padded = queries + SPARE_QUERIES;
        // Vectors' widths divide all sizes but the last, so each slice begins aligned.
        let (scores, rest) = scratch.split_at_mut(padded * STRIDE);
        let (score_factors, rest) = rest.split_at_mut(PART);
        let (weight_factors, rest) = rest.split_at_mut(PART);
        let (block, rest) = rest.split_at_mut(page_tokens * head_dim);
        let (queries_part, rest) = rest.split_at_mut(padded * head_dim);
        let (part_sums, rest) = rest.split_at_mut(padded * head_dim);
        let (sums, rest) = rest.split_at_mut(padded * head_dim);
        let (split, rest) = rest.split_at_mut(padded * head_dim);
        let (weights, rest) = rest.split_at_mut(padded * WEIGHT_STRIDE);
        let (packed, rest) = rest.split_at_mut(PART * head_dim / 2);
        let (softmax, rest) = rest.split_at_mut(queries * 2);
        let (part_softmax, factors) = rest.split_at_mut(queries * 2);
        let operands = Operands { queries: halves(split), weights: halves(weights), packed: halves(packed), factors };
        let queries = queries_part;
        Self { queries, scores, part_sums, sums, softmax, part_softmax, block, score_factors, weight_factors, operands }
    }
}

/// Floats as twice as many 16-bit numbers with any contents.
fn halves(floats: &mut [f32]) -> &mut [u16] {
    // SAFETY: every f32 is two u16 of smaller alignment, and any bits are a number of either type.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), floats.len() * 2) }
}
