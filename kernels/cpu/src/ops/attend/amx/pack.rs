//! Keys and values of pages as tiles want them. Knows no product.

use std::arch::x86_64::*;

use super::super::split::{DEPTH, whole_tokens};
use super::super::tile::{PART, Tile};
use super::{COLUMNS, ROWS, TILE_NUMBERS};

/// How values are packed.
pub(super) const AS_THEY_ARE: u8 = 0;
pub(super) const FINITE: u8 = 1;

/// Two rows of 16 numbers, interleaved.
///
/// # Safety
/// 16 numbers at each; AVX-512 F is available.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn interleaved(even: *const u16, odd: *const u16) -> __m512i {
    // SAFETY: this function's condition.
    let (even, odd) = unsafe { (_mm256_loadu_si256(even.cast()), _mm256_loadu_si256(odd.cast())) };
    _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(odd)))
}

/// Keys of the part at `start`, up to whole tiles: `[block of 16 tokens][tile of 32 channels]`. Slots of pages behind the context
/// hold anything, blocks without a page zeros.
///
/// # Safety
/// As [`super::attend`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn pack_keys(tile: &Tile<'_>, start: usize, packed: &mut [u16]) {
    let (tokens, page_tokens) = (PART.min(tile.context() - start), tile.page_tokens);
    let blocks = packed.chunks_exact_mut(tile.head_dim / DEPTH * TILE_NUMBERS);
    for (block, to) in blocks.take(whole_tokens(tile, start) / COLUMNS).enumerate() {
        let token = block * COLUMNS;
        if token >= tokens {
            to.fill(0);
            continue;
        }
        let keys = tile.page(start + token).keys.cast::<u16>().wrapping_add((start + token) % page_tokens);
        for (pair, line) in to.chunks_exact_mut(TILE_NUMBERS / ROWS).enumerate() {
            // SAFETY: channels `2 * pair` and the next are the page's, 16 tokens of each from the block's first on; a line is a
            // vector.
            unsafe {
                let even = keys.add(2 * pair * page_tokens);
                _mm512_storeu_si512(line.as_mut_ptr().cast(), interleaved(even, even.add(page_tokens)));
            }
        }
    }
}

/// Values of the part at `start`, up to whole tiles: `[block of 16 channels][tile of 32 tokens]`, zeros behind the context, and for
/// what is not finite where `VALUES` is [`FINITE`].
///
/// # Safety
/// As [`super::attend`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn pack_values<const VALUES: u8>(tile: &Tile<'_>, start: usize, packed: &mut [u16]) {
    let (tokens, head_dim) = (PART.min(tile.context() - start), tile.head_dim);
    let whole = whole_tokens(tile, start);
    let exponent = _mm512_set1_epi16(0x7f80);
    let zeros = [0u16; COLUMNS];
    for token in (0..whole).step_by(2) {
        let line = token / DEPTH * TILE_NUMBERS + token % DEPTH / 2 * (TILE_NUMBERS / ROWS);
        // A page holds pairs of tokens; behind the context there is nothing.
        let row = match token < tokens {
            true => tile.page(start + token).values.cast::<u16>().wrapping_add((start + token) % tile.page_tokens * head_dim),
            false => std::ptr::null(),
        };
        let even = |block: usize| if token < tokens { row.wrapping_add(block * COLUMNS) } else { zeros.as_ptr() };
        let odd = |block: usize| match token + 1 < tokens {
            true => row.wrapping_add(head_dim + block * COLUMNS),
            false => zeros.as_ptr(),
        };
        for block in 0..head_dim / COLUMNS {
            let to = &mut packed[block * (whole / DEPTH) * TILE_NUMBERS + line..][..TILE_NUMBERS / ROWS];
            // SAFETY: 16 channels of a token within the context, or zeros; a line is a vector.
            unsafe {
                let mut pair = interleaved(even(block), odd(block));
                if VALUES == FINITE {
                    let bad = _mm512_cmpeq_epi16_mask(_mm512_and_si512(pair, exponent), exponent);
                    pair = _mm512_maskz_mov_epi16(!bad, pair);
                }
                _mm512_storeu_si512(to.as_mut_ptr().cast(), pair);
            }
        }
    }
}
