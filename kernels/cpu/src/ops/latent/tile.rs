//! One tile of blocked attention over latents: some heads of some rows of a sequence over the tile's tokens, a span at a time.
//! Knows tokens as they were found; not how tiles come about.
//!
//! Tokens come in parts of [`PART`]. A part's latents are widened once for all heads and rows of the tile, by channel for the
//! scores and by token for the weighted sums. Within a span the softmax goes along from part to part; spans are merged in order.
//! What a row comes to depends, to the bit, on the tokens that it sees alone: rows and heads share loads, never sums.

use crate::isa::Isa;
use crate::ops::attend::kernels::{self, HERE, Scores, Values};
use crate::ops::attend::softmax::{self, Factors, Row, Softmax};
use crate::ops::tokens::Found;
use crate::simd::vector::Vector;

/// Tokens of a part.
pub(super) const PART: usize = 64;
/// Floats from one query's scores to the next: a power of two would put all rows into a few sets of the cache.
const STRIDE: usize = PART + 16;
/// Floats that keep tokens of a widened part out of each other's cache sets.
const SKEW: usize = 16;

/// Heads of some rows, and what they see. Query `r * heads + h` is head h of row r.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) heads: usize,
    pub(super) rows: usize,
    /// Elements of a token, and of a query.
    pub(super) width: usize,
    pub(super) latent: usize,
    /// `latent` in whole vectors.
    pub(super) padded: usize,
    /// Tokens that the first row sees; each further row sees one more.
    pub(super) seen: usize,
    pub(super) scale: f32,
}

impl Tile {
    /// Tokens that the last row sees.
    pub(super) fn context(&self) -> usize {
        self.seen + self.rows - 1
    }

    /// First row that sees the token at `index`; `rows` where none does.
    fn first_seeing(&self, index: usize) -> usize {
        (index + 1).saturating_sub(self.seen).min(self.rows)
    }

    pub(super) fn queries(&self) -> usize {
        self.rows * self.heads
    }
}

/// Scratch of one worker for a tile.
pub(super) struct Work<'a> {
    /// `[queries, width]`
    pub(super) queries: &'a mut [f32],
    /// `[queries, STRIDE]`: scores, then weights.
    scores: &'a mut [f32],
    /// Of the first span, then of all.
    pub(super) own: Sums<'a>,
    /// Of a later span.
    aside: Sums<'a>,
    /// A part's tokens as floats.
    block: &'a mut [f32],
    score_factors: &'a mut [f32],
    weight_factors: &'a mut [f32],
}

/// Where queries stand after some tokens.
pub(super) struct Sums<'a> {
    /// `[queries, padded]`: unscaled sums of latents.
    pub(super) latents: &'a mut [f32],
    /// `[queries, 2]`: largest logit and sum of weights.
    pub(super) softmax: &'a mut [f32],
}

impl Sums<'_> {
    fn softmax(&self, query: usize) -> Softmax {
        Softmax { largest: self.softmax[query * 2], sum: self.softmax[query * 2 + 1] }
    }

    fn set_softmax(&mut self, query: usize, softmax: Softmax) {
        self.softmax[query * 2] = softmax.largest;
        self.softmax[query * 2 + 1] = softmax.sum;
    }
}

fn block_floats(tile: &Tile) -> usize {
    PART * tile.width.max(tile.padded + SKEW)
}

impl<'a> Work<'a> {
    pub(super) fn floats(tile: &Tile) -> usize {
        let queries = tile.queries();
        let width = (queries * tile.width).next_multiple_of(16);
        queries * (STRIDE + 2 * tile.padded + 4) + width + block_floats(tile) + 2 * PART
    }

    /// Cuts `scratch`, of [`Self::floats`] floats.
    pub(super) fn new(scratch: &'a mut [f32], tile: &Tile) -> Self {
        // All sizes but the last two are whole vectors, so each slice begins aligned.
        let queries = tile.queries();
        let (scores, rest) = scratch.split_at_mut(queries * STRIDE);
        let (score_factors, rest) = rest.split_at_mut(PART);
        let (weight_factors, rest) = rest.split_at_mut(PART);
        let (block, rest) = rest.split_at_mut(block_floats(tile));
        let (asked, rest) = rest.split_at_mut((queries * tile.width).next_multiple_of(16));
        let (own, rest) = rest.split_at_mut(queries * tile.padded);
        let (aside, rest) = rest.split_at_mut(queries * tile.padded);
        let (own_softmax, rest) = rest.split_at_mut(queries * 2);
        let (aside_softmax, _) = rest.split_at_mut(queries * 2);
        score_factors.fill(tile.scale * std::f32::consts::LOG2_E);
        weight_factors.fill(1.0);
        Self {
            queries: asked,
            scores,
            own: Sums { latents: own, softmax: own_softmax },
            aside: Sums { latents: aside, softmax: aside_softmax },
            block,
            score_factors,
            weight_factors,
        }
    }
}

/// Which sums a part adds to.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Target {
    Own,
    Aside,
}

/// What is to be computed with vectors.
pub(super) enum Call<'a> {
    /// Begins a span at the token at `start`: nothing seen yet.
    Begin { target: Target, start: usize },
    /// Adds a part that begins with the token at `start`.
    Part { found: &'a Found, target: Target, start: usize },
    /// Merges the span aside, which began with the token at `start`, into the own sums.
    Merge { start: usize },
    /// Merges a span of all queries from shared scratch: their sums, then their softmax.
    MergeStored { latents: &'a [f32], softmax: &'a [f32] },
    /// Divides the own sums by their weights.
    Finish,
}

/// # Safety
/// The machine has `isa`; found tokens lie in pages that nobody writes; `work` was made for the tile.
pub(super) unsafe fn dispatch(isa: Isa, tile: &Tile, call: Call<'_>, work: &mut Work<'_>) {
    // SAFETY: this function's condition.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Fp16 | Isa::Amx => with_avx512(tile, call, work),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => with_avx2(tile, call, work),
            // `lower` gives other sets the plain form.
            _ => unreachable!("blocked attention without vectors"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn with_avx512(tile: &Tile, call: Call<'_>, work: &mut Work<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's condition.
    unsafe { with::<crate::simd::avx512::Avx512>(tile, call, work) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn with_avx2(tile: &Tile, call: Call<'_>, work: &mut Work<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's condition.
    unsafe { with::<crate::simd::avx2::Avx2>(tile, call, work) }
}

/// # Safety
/// [`Vector`]'s condition; else as [`dispatch`].
#[inline(always)]
unsafe fn with<V: Vector>(tile: &Tile, call: Call<'_>, work: &mut Work<'_>) {
    // SAFETY: this function's condition.
    unsafe {
        match call {
            Call::Begin { target, start } => {
                begin(tile, start, if target == Target::Own { &mut work.own } else { &mut work.aside })
            }
            Call::Part { found, target, start } => part::<V>(tile, found, (target, start), work),
            Call::Merge { start } => {
                for query in tile.first_seeing(start) * tile.heads..tile.queries() {
                    let later = &work.aside;
                    let row = (later.latents[query * tile.padded..].as_ptr(), later.softmax(query));
                    merge::<V>(tile, query, row, &mut work.own);
                }
            }
            Call::MergeStored { latents, softmax } => {
                for query in 0..tile.queries() {
                    let softmax = Softmax { largest: softmax[query * 2], sum: softmax[query * 2 + 1] };
                    merge::<V>(tile, query, (latents[query * tile.padded..].as_ptr(), softmax), &mut work.own);
                }
            }
            Call::Finish => {
                for query in 0..tile.queries() {
                    let softmax = work.own.softmax(query);
                    let sums = work.own.latents[query * tile.padded..][..tile.padded].as_mut_ptr();
                    softmax::finish::<V>(Row { sums, softmax }, sums, tile.padded);
                }
            }
        }
    }
}

/// Rows that see none of the span keep what they have.
fn begin(tile: &Tile, start: usize, sums: &mut Sums<'_>) {
    let first = tile.first_seeing(start) * tile.heads;
    sums.latents[first * tile.padded..tile.queries() * tile.padded].fill(0.0);
    for query in first..tile.queries() {
        sums.set_softmax(query, Softmax { largest: f32::NEG_INFINITY, sum: 0.0 });
    }
}

/// # Safety
/// As [`with`].
#[inline(always)]
unsafe fn part<V: Vector>(tile: &Tile, found: &Found, (target, start): (Target, usize), work: &mut Work<'_>) {
    let (heads, padded, tokens) = (tile.heads, tile.padded, found.count());
    let first = tile.first_seeing(start);
    // SAFETY: this function's condition; rows and tokens are within the tile and a part, so within `work`.
    unsafe {
        found.by_channel::<V>(work.block.as_mut_ptr(), PART);
        kernels::scores::<V, f32>(Scores {
            keys: work.block.as_ptr(),
            page_tokens: PART,
            head_dim: tile.width,
            queries: work.queries[first * heads * tile.width..].as_ptr(),
            scores: work.scores[first * heads * STRIDE..].as_mut_ptr(),
            stride: STRIDE,
            rows: (tile.rows - first) * heads,
            tokens,
            ahead: HERE,
        });
        let sums = if target == Target::Own { &mut work.own } else { &mut work.aside };
        let factors = Factors { scores: work.score_factors.as_ptr(), weights: work.weight_factors.as_ptr() };
        for query in first * heads..tile.queries() {
            let seen = tokens.min(tile.seen + query / heads - start);
            let before = sums.softmax(query);
            let scores = work.scores[query * STRIDE..].as_mut_ptr();
            let part = softmax::softmax::<V>(scores, factors, seen, before.largest);
            let faded = softmax::fade::<V>(sums.latents[query * padded..].as_mut_ptr(), (before.largest, part.largest), padded);
            sums.set_softmax(query, Softmax { largest: part.largest, sum: before.sum * faded + part.sum });
        }
        found.by_token::<V>(tile.latent, work.block.as_mut_ptr(), padded + SKEW);
        // Rows on the diagonal see fewer tokens, each one more than the row before it; the rest see all.
        let full = tile.first_seeing(start + tokens - 1);
        let mut row = first;
        while row < tile.rows {
            let (rows, tokens) = if row < full { (1, tile.seen + row - start) } else { (tile.rows - row, tokens) };
            kernels::values::<V, f32>(Values {
                values: work.block.as_ptr(),
                value_stride: padded + SKEW,
                head_dim: padded,
                weights: work.scores[row * heads * STRIDE..].as_ptr(),
                stride: STRIDE,
                sums: sums.latents[row * heads * padded..].as_mut_ptr(),
                rows: rows * heads,
                tokens,
                ahead: HERE,
            });
            row += rows;
        }
    }
}

/// Merges a later span of `query`.
///
/// # Safety
/// [`Vector`]'s condition; `latents` holds `tile.padded` sums.
#[inline(always)]
unsafe fn merge<V: Vector>(tile: &Tile, query: usize, (latents, softmax): (*const f32, Softmax), own: &mut Sums<'_>) {
    let so_far = own.softmax(query);
    let sums = own.latents[query * tile.padded..][..tile.padded].as_mut_ptr();
    // SAFETY: this function's condition; `merge` only reads the later row.
    let merged = unsafe {
        let later = Row { sums: latents.cast_mut(), softmax };
        softmax::merge::<V>(Row { sums, softmax: so_far }, later, tile.padded)
    };
    own.set_softmax(query, merged);
}
