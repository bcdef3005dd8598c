//! Blocked attention's products with AMX tiles, for BF16 pages. Softmax and merging of parts are those of `tile`.
//!
//! ```text
//! scores  = queries  x  keys of a part, packed:   [16 tokens][32 channels] as a tile
//! sums    = weights  x  values of a part, packed: [16 channels][32 tokens] as a tile
//!
//! queries and weights are sums of two BF16 numbers, 16 bits of the 24 of an f32; keys and values are as they are in the page
//!
//! a packed tile: 16 lines of 64 bytes; line i holds of each of 16 columns the pair (2i, 2i+1) of the 32 that are summed over
//! ```
//!
//! Keys lie in pages channel after channel, values token after token, so that either way packing interleaves two rows.
//!
//! A row does not see what lies behind it in its own sequence: its scores there are replaced and its weights zero. A value that is
//! not finite shows through a weight of zero; where sums turn out not to be finite they are made again, with zeros for such values,
//! which are then added to the rows that see them.

mod pack;

use std::arch::x86_64::*;
use std::ops::Range;

use super::split::{DEPTH, PARTS, split_queries, split_weights, whole_tokens};
use super::tile::{PART, Target as Kept, Tile, merge_part, set_factors, weigh};
use super::work::{STRIDE, WEIGHT_STRIDE, Work};
use crate::simd::amx::Configured;
use crate::simd::avx512::Avx512;
use crate::simd::tiles::{Operands, TILE_BYTES, TILE_ROWS, Target, TileProducts};
use pack::{AS_THEY_ARE, FINITE, pack_keys, pack_values};

/// Rows, and columns of one panel, of a tile; [`DEPTH`] numbers are summed over.
const ROWS: usize = TILE_ROWS;
const COLUMNS: usize = 16;
/// Numbers of a packed tile.
const TILE_NUMBERS: usize = TILE_BYTES / 2;

/// As `tile::attend`, for a tile with `Products::Tiles`.
///
/// # Safety
/// As there, for [`Avx512`]; [`crate::Isa::Amx`] is available.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn attend(tile: &Tile<'_>, parts: Range<usize>, work: &mut Work<'_>) {
    // SAFETY: this function's condition.
    unsafe {
        let configured = Configured::new();
        split_queries(tile, work);
        for part in parts.clone() {
            let (start, kept) = (part * PART, if part == parts.start { Kept::Row } else { Kept::Aside });
            set_factors::<Avx512>(tile, start, PART.min(tile.context() - start), work);
            scores(tile, start, work, &configured);
            weigh::<Avx512>(tile, start, kept, work);
            split_weights(tile, start, work);
            pack_values::<AS_THEY_ARE>(tile, start, work.operands.packed);
            sums(tile, start, kept, work, &configured);
            if !all_finite(kept_sums(work, kept), tile, start) {
                pack_values::<FINITE>(tile, start, work.operands.packed);
                sums(tile, start, kept, work, &configured);
                add_what_is_not_finite(tile, start, kept, work);
            }
            if kept == Kept::Aside {
                merge_part::<Avx512>(tile, start, work);
            }
        }
    }
}

/// Runs of up to 32 query rows that see the part at `start`: the first one, how many, and how many tokens the last of them sees.
fn runs(tile: &Tile<'_>, start: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let queries = tile.rows * tile.group;
    let seen = move |query| tile.seen(query, start);
    (tile.first_seeing(start) * tile.group..queries).step_by(2 * ROWS).map(move |first| {
        let count = (queries - first).min(2 * ROWS);
        (first, count, seen(first + count - 1))
    })
}

/// Scores of all rows that see the part at `start`.
///
/// # Safety
/// As [`attend`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn scores(tile: &Tile<'_>, start: usize, work: &mut Work<'_>, configured: &Configured) {
    let (head_dim, steps) = (tile.head_dim, tile.head_dim / DEPTH);
    // SAFETY: this function's condition.
    unsafe { pack_keys(tile, start, work.operands.packed) };
    for (first, count, seen) in runs(tile, start) {
        let queries = work.operands.queries[first * PARTS * head_dim..].as_ptr();
        for token in (0..seen).step_by(2 * COLUMNS) {
            let panel = |p| work.operands.packed[(token / COLUMNS + p) * steps * TILE_NUMBERS..].as_ptr().cast();
            let operands = Operands {
                x: queries.cast(),
                row_bytes: PARTS * head_dim * 2,
                part_bytes: head_dim * 2,
                parts: PARTS,
                rows: count,
                w: [panel(0), panel(1)],
                steps,
                ahead: queries.cast(),
                ahead_bytes: 0,
            };
            let scores = work.scores[first * STRIDE + token..].as_mut_ptr();
            // SAFETY: `count` queries from `first` and spare rows behind them are in `work`, as are their scores; both blocks of
            // tokens were packed.
            unsafe { multiply(&operands, (scores, STRIDE), configured) };
        }
    }
}

fn kept_sums<'a>(work: &'a mut Work<'_>, kept: Kept) -> &'a mut [f32] {
    match kept {
        Kept::Row => work.sums,
        Kept::Aside => work.part_sums,
    }
}

/// Whether the sums of all rows that see the part at `start` are finite.
#[target_feature(enable = "avx512f,avx512bw")]
fn all_finite(sums: &[f32], tile: &Tile<'_>, start: usize) -> bool {
    let row = tile.group * tile.head_dim;
    let exponent = _mm512_set1_epi32(0x7f80_0000);
    let mut not_finite = 0;
    for sums in sums[tile.first_seeing(start) * row..tile.rows * row].chunks_exact(16) {
        // SAFETY: each chunk is a vector.
        let bits = unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) };
        not_finite |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
    }
    not_finite == 0
}

/// Sums of the values of the part at `start`, which were packed, by the weights, which were split.
///
/// # Safety
/// As [`attend`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn sums(tile: &Tile<'_>, start: usize, kept: Kept, work: &mut Work<'_>, configured: &Configured) {
    let (head_dim, whole) = (tile.head_dim, whole_tokens(tile, start));
    for (first, count, seen) in runs(tile, start) {
        let weights = work.operands.weights[first * PARTS * WEIGHT_STRIDE..].as_ptr();
        for channel in (0..head_dim).step_by(2 * COLUMNS) {
            let panel = |p| work.operands.packed[(channel / COLUMNS + p) * (whole / DEPTH) * TILE_NUMBERS..].as_ptr().cast();
            let operands = Operands {
                x: weights.cast(),
                row_bytes: PARTS * WEIGHT_STRIDE * 2,
                part_bytes: WEIGHT_STRIDE * 2,
                parts: PARTS,
                rows: count,
                w: [panel(0), panel(1)],
                steps: seen.div_ceil(DEPTH),
                ahead: weights.cast(),
                ahead_bytes: 0,
            };
            let sums = kept_sums(work, kept)[first * head_dim + channel..].as_mut_ptr();
            // SAFETY: as in `scores`.
            unsafe { multiply(&operands, (sums, head_dim), configured) };
        }
    }
}

/// Products of up to 32 rows with 32 columns, into rows `stride` floats apart.
///
/// # Safety
/// `operands` as in [`TileProducts::two`]; their rows up to a multiple of 16 can be written.
unsafe fn multiply(operands: &Operands, (to, stride): (*mut f32, usize), configured: &Configured) {
    let target = |row: usize, column: usize| Target { start: to.wrapping_add(row * stride + column), row_bytes: stride * 4 };
    let first = [target(0, 0), target(0, COLUMNS)];
    // SAFETY: this function's condition.
    unsafe {
        if operands.rows > ROWS {
            configured.two(operands, &[first, [target(ROWS, 0), target(ROWS, COLUMNS)]]);
        } else {
            configured.one(operands, &first);
        }
    }
}

/// Adds the values of the part at `start` that are not finite, which were packed as zeros, to the rows that see them.
///
/// # Safety
/// As [`attend`].
#[cold]
unsafe fn add_what_is_not_finite(tile: &Tile<'_>, start: usize, kept: Kept, work: &mut Work<'_>) {
    let Work { scores, sums, part_sums, .. } = work;
    let sums = if kept == Kept::Row { sums } else { part_sums };
    for token in 0..PART.min(tile.context() - start) {
        let slot = (start + token) % tile.page_tokens;
        for channel in 0..tile.head_dim {
            let at = tile.page(start + token).values.cast::<u16>().wrapping_add(slot * tile.head_dim + channel);
            // SAFETY: the page has this token's channels.
            let value = f32::from_bits(u32::from(unsafe { at.read() }) << 16);
            if value.is_finite() {
                continue;
            }
            for query in tile.first_seeing(start + token) * tile.group..tile.rows * tile.group {
                sums[query * tile.head_dim + channel] += scores[query * STRIDE + token] * value;
            }
        }
    }
}
