//! One tile of blocked attention: some rows of a sequence with the query heads that share a KV head, over the tile's context in
//! parts of [`PART`] tokens. Knows pages as addresses; not how tiles come about.
//!
//! A part is exact in itself (one softmax over its tokens); parts are merged in order. So a row's result depends on its context
//! alone, whoever computes which part. Slots that a row does not see may hold anything: scores of theirs are replaced, values
//! never loaded.

use std::ops::Range;

use super::element::{Bf16, Element, Fp8};
use super::kernels::{self, HERE, Scores, Values};
use super::softmax::{self, Factors, Row, Softmax};
use super::work::{STRIDE, Work};
use crate::simd::vector::{Vector, prefetch};
use millrace_ops::KvFormat;

/// Tokens of a part.
pub(super) const PART: usize = 256;
/// From this number of query rows on it pays to widen a page once for all.
const WIDEN_ROWS: usize = 12;

/// A page's blocks of one layer and head.
#[derive(Clone, Copy)]
pub(super) struct PageBlocks {
    pub(super) keys: *const u8,
    pub(super) values: *const u8,
    /// BF16 bits per token; FP8 only.
    pub(super) key_scales: *const u16,
    pub(super) value_scales: *const u16,
}

/// A tile and where its numbers are.
pub(super) struct Tile<'a> {
    /// Pages of the positions from `first_token` on, up to the last row's.
    pub(super) pages: &'a [PageBlocks],
    pub(super) first_token: usize,
    pub(super) format: KvFormat,
    pub(super) page_tokens: usize,
    pub(super) head_dim: usize,
    pub(super) group: usize,
    pub(super) rows: usize,
    /// Position of the first row.
    pub(super) position: usize,
    pub(super) scale: f32,
    pub(super) products: Products,
    /// Bytes from the keys of these heads to those of the heads that the worker takes next, of the same pages; [`HERE`]: none.
    pub(super) next_head: usize,
    /// Whether the worker had this one's keys asked for so.
    pub(super) asked_for: bool,
}

/// What products of keys and values are computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Products {
    /// f32 vectors.
    Vectors,
    /// Tiles of BF16 (`amx`).
    Tiles,
    /// Dot products of BF16 (`dots`).
    Dots,
    /// FP16 (`halves`).
    Halves,
}

/// Which of a row's two sets of sums a part goes to.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Target {
    /// The row's own.
    Row,
    /// Aside, to be merged.
    Aside,
}

impl Tile<'_> {
    pub(super) fn page(&self, position: usize) -> PageBlocks {
        self.pages[(position - self.first_token) / self.page_tokens]
    }

    pub(super) fn context(&self) -> usize {
        self.position + self.rows
    }

    /// First row that sees `position`.
    pub(super) fn first_seeing(&self, position: usize) -> usize {
        position.saturating_sub(self.position).min(self.rows)
    }

    /// Tokens of the part at `start` that a query sees, which sees its first.
    pub(super) fn seen(&self, query: usize, start: usize) -> usize {
        PART.min(self.position + query / self.group + 1 - start)
    }

    pub(super) fn parts(&self) -> usize {
        self.context().div_ceil(PART)
    }

    /// Where keys lie whose time comes a part after that of the values at `token` of the part at `start`, in bytes from those: pages
    /// lie anywhere, in blocks too short for the machine to see a stream. So a page's values are asked for with its scores, and its
    /// keys with the values of a page a part before it, of this head or the one before; where there is none, two pages before it.
    #[inline(always)]
    pub(super) fn keys_a_part_on(&self, start: usize, token: usize) -> usize {
        let values = self.page(start + token).values as usize;
        match self.page_after(start + token, PART / self.page_tokens) {
            Some(page) => (page.keys as usize).wrapping_sub(values),
            None if self.next_head == HERE => HERE,
            None => (self.pages[token / self.page_tokens].keys as usize).wrapping_add(self.next_head).wrapping_sub(values),
        }
    }

    /// The page so many pages after that of `position`.
    #[inline(always)]
    pub(super) fn page_after(&self, position: usize, pages: usize) -> Option<&PageBlocks> {
        self.pages.get((position - self.first_token) / self.page_tokens + pages)
    }
}

/// Computes `parts` of the tile; sums and softmax of its rows are then in `work`.
///
/// # Safety
/// [`Vector`]'s condition; pages hold what the tile says and nobody writes them; `work` was made for the tile.
#[inline(always)]
pub(super) unsafe fn attend<V: Vector>(tile: &Tile<'_>, parts: Range<usize>, work: &mut Work<'_>) {
    let first = parts.start;
    for part in parts {
        let target = if part == first { Target::Row } else { Target::Aside };
        // SAFETY: this function's condition; the element type is that of the format.
        unsafe {
            match tile.format {
                KvFormat::F32 => attend_part::<V, f32>(tile, part * PART, target, work),
                KvFormat::Bf16 => attend_part::<V, Bf16>(tile, part * PART, target, work),
                KvFormat::Fp8 => attend_part::<V, Fp8>(tile, part * PART, target, work),
            }
        }
        if target == Target::Aside {
            // SAFETY: as above.
            unsafe { merge_part::<V>(tile, part * PART, work) }
        }
    }
}

/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn attend_part<V: Vector, E: Element>(tile: &Tile<'_>, start: usize, target: Target, work: &mut Work<'_>) {
    let tokens = PART.min(tile.context() - start);
    let (head_dim, group, page_tokens) = (tile.head_dim, tile.group, tile.page_tokens);
    // SAFETY: this function's condition; rows and tokens are within the tile, so within `work`.
    unsafe {
        set_factors::<V>(tile, start, tokens, work);
        let mut token = 0;
        while token < tokens {
            let count = page_tokens.min(tokens - token);
            let row = tile.first_seeing(start + token);
            let page = tile.page(start + token);
            if start == tile.first_token
                && !tile.asked_for
                && let Some(later) = tile.page_after(start + token, 2)
            {
                prefetch(later.keys, page_tokens * head_dim * size_of::<E>());
            }
            let task = Scores::<E> {
                keys: page.keys.cast(),
                page_tokens,
                head_dim,
                queries: work.queries.as_ptr().add(row * group * head_dim),
                scores: work.scores.as_mut_ptr().add(row * group * STRIDE + token),
                stride: STRIDE,
                rows: (tile.rows - row) * group,
                tokens: count,
                ahead: (page.values as usize).wrapping_sub(page.keys as usize),
            };
            page_scores::<V, E>(task, work.block);
            token += page_tokens;
        }
        weigh::<V>(tile, start, target, work);
        add_values::<V, E>(tile, start, target, work);
    }
}

/// Turns the scores of a part into weights.
///
/// # Safety
/// As [`attend`]; the part's scores and factors are in `work`.
#[inline(always)]
pub(super) unsafe fn weigh<V: Vector>(tile: &Tile<'_>, start: usize, target: Target, work: &mut Work<'_>) {
    let softmax = match target {
        Target::Row => &mut *work.softmax,
        Target::Aside => &mut *work.part_softmax,
    };
    let factors = Factors { scores: work.score_factors.as_ptr(), weights: work.weight_factors.as_ptr() };
    for query in tile.first_seeing(start) * tile.group..tile.rows * tile.group {
        let scores = work.scores[query * STRIDE..][..STRIDE].as_mut_ptr();
        // SAFETY: this function's condition; a row's scores were just cut out, and a part has at most `PART` tokens.
        let part = unsafe { softmax::softmax::<V>(scores, factors, tile.seen(query, start), f32::NEG_INFINITY) };
        softmax[query * 2] = part.largest;
        softmax[query * 2 + 1] = part.sum;
    }
}

/// Sums of a part's values by the weights in `work`.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn add_values<V: Vector, E: Element>(tile: &Tile<'_>, start: usize, target: Target, work: &mut Work<'_>) {
    let tokens = PART.min(tile.context() - start);
    let (row_floats, page_tokens) = (tile.group * tile.head_dim, tile.page_tokens);
    let sums = match target {
        Target::Row => &mut *work.sums,
        Target::Aside => &mut *work.part_sums,
    };
    sums[tile.first_seeing(start) * row_floats..tile.rows * row_floats].fill(0.0);
    let mut token = 0;
    while token < tokens {
        let count = page_tokens.min(tokens - token);
        // SAFETY: this function's condition; these tokens are the part's.
        unsafe { page_values::<V, E>(tile, (start, token, count), (work.scores, sums), work.block) };
        token += page_tokens;
    }
}

/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn page_scores<V: Vector, E: Element>(task: Scores<E>, block: &mut [f32]) {
    // SAFETY: this function's condition; `block` holds a page.
    unsafe {
        if task.rows < WIDEN_ROWS || E::WIDE {
            kernels::scores::<V, E>(task);
            return;
        }
        let Scores { keys, page_tokens, head_dim, queries, scores, stride, rows, tokens, ahead } = task;
        prefetch(keys.cast::<u8>().wrapping_add(ahead), page_tokens * head_dim * size_of::<E>());
        kernels::widen::<V, E>(keys, block.as_mut_ptr(), page_tokens * head_dim);
        let keys = block.as_ptr();
        kernels::scores::<V, f32>(Scores { keys, page_tokens, head_dim, queries, scores, stride, rows, tokens, ahead: HERE });
    }
}

/// Adds the values of a page's first `count` tokens, which begin at `token` of the part at `start`.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn page_values<V: Vector, E: Element>(
    tile: &Tile<'_>,
    (start, token, count): (usize, usize, usize),
    (weights, sums): (&[f32], &mut [f32]),
    block: &mut [f32],
) {
    let (head_dim, group) = (tile.head_dim, tile.group);
    let (first, full) = (tile.first_seeing(start + token), tile.first_seeing(start + token + count - 1));
    // SAFETY: this function's condition; `block` holds a page.
    unsafe {
        let stored: *const E = tile.page(start + token).values.cast();
        let mut ahead = tile.keys_a_part_on(start, token);
        let wide = (tile.rows - first) * group >= WIDEN_ROWS && !E::WIDE;
        if wide {
            prefetch(stored.cast::<u8>().wrapping_add(ahead), tile.page_tokens * head_dim * size_of::<E>());
            kernels::widen::<V, E>(stored, block.as_mut_ptr(), count * head_dim);
        }
        // Rows on the diagonal see fewer tokens, each one more than the row before it; the rest see all.
        let mut row = first;
        while row < tile.rows {
            let (rows, tokens) = if row < full { (1, tile.position + row + 1 - start - token) } else { (tile.rows - row, count) };
            let weights = weights.as_ptr().add(row * group * STRIDE + token);
            let sums = sums.as_mut_ptr().add(row * group * head_dim);
            let (stride, value_stride, rows_g) = (STRIDE, head_dim, rows * group);
            if wide {
                let values = block.as_ptr();
                let task = Values { values, value_stride, head_dim, weights, stride, sums, rows: rows_g, tokens, ahead: HERE };
                kernels::values::<V, f32>(task);
            } else {
                let values = stored;
                kernels::values::<V, E>(Values {
                    values,
                    value_stride,
                    head_dim,
                    weights,
                    stride,
                    sums,
                    rows: rows_g,
                    tokens,
                    ahead,
                });
            }
            ahead = HERE;
            row += rows;
        }
    }
}

/// What scores and weights of this part's tokens are multiplied by: scale and the base of the logits, and FP8 scales with the
/// 256 that [`Vector::load_fp8`] leaves out.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
pub(super) unsafe fn set_factors<V: Vector>(tile: &Tile<'_>, start: usize, tokens: usize, work: &mut Work<'_>) {
    let scale = tile.scale * std::f32::consts::LOG2_E;
    if tile.format != KvFormat::Fp8 {
        work.score_factors.fill(scale);
        work.weight_factors.fill(1.0);
        return;
    }
    // SAFETY: this function's condition; a page's scales are whole vectors, and parts whole pages.
    unsafe {
        let (key, value) = (V::splat(scale * 256.0), V::splat(256.0));
        let mut token = 0;
        while token < tokens {
            let page = tile.page(start + token);
            let slot = (start + token) % tile.page_tokens;
            V::load_bf16(page.key_scales.add(slot)).mul(key).store(work.score_factors.as_mut_ptr().add(token));
            V::load_bf16(page.value_scales.add(slot)).mul(value).store(work.weight_factors.as_mut_ptr().add(token));
            token += V::LANES;
        }
    }
}

/// # Safety
/// As [`attend`].
#[inline(always)]
pub(super) unsafe fn merge_part<V: Vector>(tile: &Tile<'_>, start: usize, work: &mut Work<'_>) {
    for query in tile.first_seeing(start) * tile.group..tile.rows * tile.group {
        let later = Softmax { largest: work.part_softmax[query * 2], sum: work.part_softmax[query * 2 + 1] };
        // SAFETY: this function's condition; `query` is below the rows that `work` was made for.
        unsafe {
            let later = Row { sums: work.part_sums.as_mut_ptr().add(query * tile.head_dim), softmax: later };
            merge_into::<V>(work.sums, work.softmax, (query, later), tile.head_dim);
        }
    }
}

/// Merges a later part of `query` into its sums.
///
/// # Safety
/// [`Vector`]'s condition; `later` holds `head_dim` sums.
#[inline(always)]
pub(super) unsafe fn merge_into<V: Vector>(sums: &mut [f32], softmax: &mut [f32], (query, later): (usize, Row), head_dim: usize) {
    let so_far = Softmax { largest: softmax[query * 2], sum: softmax[query * 2 + 1] };
    let sums = &mut sums[query * head_dim..][..head_dim];
    // SAFETY: this function's condition; `sums` was just cut to `head_dim`.
    let merged = unsafe { softmax::merge::<V>(Row { sums: sums.as_mut_ptr(), softmax: so_far }, later, head_dim) };
    softmax[query * 2] = merged.largest;
    softmax[query * 2 + 1] = merged.sum;
}

/// Divides the sums of `query` by its weights, into `out`.
///
/// # Safety
/// [`Vector`]'s condition.
#[inline(always)]
pub(super) unsafe fn finish<V: Vector>(work: &mut Work<'_>, query: usize, out: &mut [f32]) {
    let softmax = Softmax { largest: work.softmax[query * 2], sum: work.softmax[query * 2 + 1] };
    let sums = &mut work.sums[query * out.len()..][..out.len()];
    // SAFETY: this function's condition; both hold `out.len()` floats.
    unsafe { softmax::finish::<V>(Row { sums: sums.as_mut_ptr(), softmax }, out.as_mut_ptr(), out.len()) }
}
