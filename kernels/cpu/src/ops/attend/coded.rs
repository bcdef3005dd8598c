//! Blocked attention over FP8 pages whose codes are multiplied as what they are, in a format narrower than f32: the walk over pages, rows
//! and channels. Softmax and merging of parts are those of `tile`; what codes become, and how they are multiplied, is the product's.
//!
//! Codes are finite, whatever a slot holds, so a weight of zero keeps out what a row does not see; what is not finite has a scale that
//! is not, and that is in the weights.

use std::ops::Range;

use super::blocked::{DOT_CHANNELS, DOT_TOKENS};
use super::kernels::HERE;
use super::tile::{PART, Target, Tile, merge_part, set_factors, weigh};
use super::work::{STRIDE, WEIGHT_STRIDE, Work};
use crate::simd::avx512::Avx512;
use crate::simd::vector::prefetch;

/// Query rows at once: the heads of most groups.
pub(super) const ROWS: usize = 4;
/// 16-bit numbers that a query's channel, and a weight, takes in [`super::work::Operands`].
pub(super) const NUMBERS: usize = 2;

/// Queries or weights of some rows.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// `[rows][2 * head_dim]`, or `[rows][2 * WEIGHT_STRIDE]`.
    pub(super) numbers: *const u16,
    /// Of each row, [`NUMBERS`] apart: what it is to be multiplied by in the end.
    pub(super) factors: *const f32,
}

/// Where a run of tokens or channels lies.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// First token of the part.
    pub(super) start: usize,
    /// The first of 64.
    pub(super) channel: usize,
    /// Whether what comes later is asked for.
    pub(super) asks: bool,
}

/// How codes are multiplied.
///
/// # Safety
/// For all methods: what the type needs of the machine is there, AVX-512 F, BW, DQ and VL too; tiles, work and pointers are as
/// [`attend`] has them.
pub(super) trait CodeProducts {
    /// Makes the numbers of all queries.
    unsafe fn ready_queries(tile: &Tile<'_>, work: &mut Work<'_>);
    /// Makes the numbers of the weights of the part at `start`, zeros behind what a row sees.
    unsafe fn ready_weights(tile: &Tile<'_>, start: usize, work: &mut Work<'_>);
    /// Scores of R queries with 32 tokens of a page, whose keys begin at `keys`; `ahead` from them lies what is needed later.
    unsafe fn score<const R: usize>(&self, tile: &Tile<'_>, at: (*const u8, usize), rows: Rows, to: *mut f32);
    /// Sums of R queries over a part's values of 64 channels.
    unsafe fn sum<const R: usize>(&self, tile: &Tile<'_>, run: Run, rows: Rows, to: *mut f32);
}

/// As `tile::attend`.
///
/// # Safety
/// As there, for [`Avx512`]; the product's condition.
#[inline(always)]
pub(super) unsafe fn attend<P: CodeProducts>(products: &P, tile: &Tile<'_>, parts: Range<usize>, work: &mut Work<'_>) {
    let mut part = parts.start;
    // SAFETY: this function's condition.
    unsafe {
        P::ready_queries(tile, work);
        while part < parts.end {
            let (start, target) = (part * PART, if part == parts.start { Target::Row } else { Target::Aside });
            let tokens = PART.min(tile.context() - start);
            set_factors::<Avx512>(tile, start, tokens, work);
            let mut token = 0;
            while token < tokens {
                scores(products, tile, (start, token), work);
                token += tile.page_tokens;
            }
            weigh::<Avx512>(tile, start, target, work);
            P::ready_weights(tile, start, work);
            sums(products, tile, (start, target), work);
            if target == Target::Aside {
                merge_part::<Avx512>(tile, start, work);
            }
            part += 1;
        }
    }
}

/// Scores of the page at `token` of the part at `start`, for the rows that see its first token.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn scores<P: CodeProducts>(products: &P, tile: &Tile<'_>, (start, token): (usize, usize), work: &mut Work<'_>) {
    let (page, bytes) = (tile.page(start + token), tile.page_tokens * tile.head_dim);
    if start == tile.first_token
        && !tile.asked_for
        && let Some(later) = tile.page_after(start + token, 2)
    {
        prefetch(later.keys, bytes);
    }
    let mut ahead = (page.values as usize).wrapping_sub(page.keys as usize);
    let mut query = tile.first_seeing(start + token) * tile.group;
    while query < tile.rows * tile.group {
        let count = (tile.rows * tile.group - query).min(ROWS);
        let numbers = work.operands.queries[query * NUMBERS * tile.head_dim..].as_ptr();
        let rows = Rows { numbers, factors: work.operands.factors[query * NUMBERS..].as_ptr() };
        let to = work.scores[query * STRIDE + token..].as_mut_ptr();
        let mut run = 0;
        while run < tile.page_tokens {
            // Two channels are as many lines as there are runs: each run asks for one of them.
            let at = (page.keys.wrapping_add(run), if ahead == HERE { HERE } else { ahead.wrapping_add(run) });
            // SAFETY: this function's condition; `count` queries and their scores are in `work`, and the page has 32 tokens from `run`.
            unsafe {
                let to = to.add(run);
                match count {
                    1 => products.score::<1>(tile, at, rows, to),
                    2 => products.score::<2>(tile, at, rows, to),
                    3 => products.score::<3>(tile, at, rows, to),
                    _ => products.score::<ROWS>(tile, at, rows, to),
                }
            }
            run += DOT_TOKENS;
        }
        ahead = HERE;
        query += count;
    }
}

/// Sums of the values of the part at `start` by its weights, for all rows that see its first token.
///
/// # Safety
/// As [`attend`]; the weights' numbers are in `work`.
#[inline(always)]
unsafe fn sums<P: CodeProducts>(products: &P, tile: &Tile<'_>, (start, target): (usize, Target), work: &mut Work<'_>) {
    let head_dim = tile.head_dim;
    let to = match target {
        Target::Row => &mut *work.sums,
        Target::Aside => &mut *work.part_sums,
    };
    let first = tile.first_seeing(start) * tile.group;
    let mut query = first;
    while query < tile.rows * tile.group {
        let count = (tile.rows * tile.group - query).min(ROWS);
        let numbers = work.operands.weights[query * NUMBERS * WEIGHT_STRIDE..].as_ptr();
        let rows = Rows { numbers, factors: work.operands.factors[query * NUMBERS + 1..].as_ptr() };
        let mut run = Run { start, channel: 0, asks: query == first };
        while run.channel < head_dim {
            let to = to[query * head_dim + run.channel..].as_mut_ptr();
            // SAFETY: this function's condition; `count` queries, their weights and sums are in `work`, and the channel is one of
            // `head_dim`.
            unsafe {
                match count {
                    1 => products.sum::<1>(tile, run, rows, to),
                    2 => products.sum::<2>(tile, run, rows, to),
                    3 => products.sum::<3>(tile, run, rows, to),
                    _ => products.sum::<ROWS>(tile, run, rows, to),
                }
            }
            run.channel += DOT_CHANNELS;
        }
        query += count;
    }
}
