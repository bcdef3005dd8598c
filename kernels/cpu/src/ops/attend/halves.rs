//! Attention's products over FP8 pages in FP16. The walk is that of `coded`.
//!
//! An e4m3 code is an FP16 number over 256 once its bits are shifted, exactly. Queries and weights are FP16 numbers relative to the largest
//! of their row, which the sums are multiplied by in the end, so nothing overflows whatever they are. Sums are of FP16 for 32 channels
//! or tokens at most, then of f32: rounding adds some thousandth of what the codes' own 4 bits leave out.
//!
//! ```text
//! code      s eeee mmm                     sign extended to 16 bits, 7 to the left, bit 14 cleared
//! number    s 0eeee mmm0000000             = code / 256
//! operand   [half of channel 0, twice][half of channel 1, twice] ..       one 32-bit broadcast each
//! ```

use std::arch::x86_64::*;
use std::ops::Range;

use super::blocked::{DOT_CHANNELS, DOT_TOKENS};
use super::coded::{self, CodeProducts, NUMBERS, Rows, Run};
use super::kernels::HERE;
use super::split::whole_tokens;
use super::tile::{PART, PageBlocks, Tile};
use super::work::{STRIDE, WEIGHT_STRIDE, Work};
use crate::simd::vector::prefetch;

const LANES: usize = 16;
/// Channels or tokens whose products are added up in FP16.
const RUN: usize = 32;
/// Vectors of 32 halves, and of 16 floats.
const HALF_VECTORS: usize = DOT_CHANNELS / 32;
const FLOAT_VECTORS: usize = DOT_CHANNELS / LANES;
/// Rows of smaller numbers count as zeros: the reciprocal of their largest would overflow.
const SMALLEST: f32 = 1e-30;

const _: () = assert!(DOT_TOKENS == 32 && RUN.is_multiple_of(2));

/// Says that the machine has what halves need.
struct Halves;

/// As `tile::attend`, for a tile with `Products::Halves`.
///
/// # Safety
/// As there, for AVX-512; [`crate::Isa::Avx512Fp16`] is available.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512fp16")]
pub(super) unsafe fn attend(tile: &Tile<'_>, parts: Range<usize>, work: &mut Work<'_>) {
    // SAFETY: this function's condition.
    unsafe { coded::attend(&Halves, tile, parts, work) }
}

impl CodeProducts for Halves {
    #[inline(always)]
    unsafe fn ready_queries(tile: &Tile<'_>, work: &mut Work<'_>) {
        let mut query = 0;
        while query < tile.rows * tile.group {
            let from = work.queries[query * tile.head_dim..][..tile.head_dim].as_ptr();
            let to = work.operands.queries[query * NUMBERS * tile.head_dim..][..NUMBERS * tile.head_dim].as_mut_ptr();
            // SAFETY: the trait's condition; both were just cut out, and `head_dim` is a multiple of 64.
            work.operands.factors[query * NUMBERS] = unsafe { halve(from, (tile.head_dim, tile.head_dim), to) };
            query += 1;
        }
    }

    #[inline(always)]
    unsafe fn ready_weights(tile: &Tile<'_>, start: usize, work: &mut Work<'_>) {
        let mut query = tile.first_seeing(start) * tile.group;
        while query < tile.rows * tile.group {
            let from = work.scores[query * STRIDE..][..STRIDE].as_ptr();
            let to = work.operands.weights[query * NUMBERS * WEIGHT_STRIDE..][..NUMBERS * WEIGHT_STRIDE].as_mut_ptr();
            let tokens = (whole_tokens(tile, start), tile.seen(query, start));
            // SAFETY: the trait's condition; both were just cut out, and a part has at most `PART` tokens.
            work.operands.factors[query * NUMBERS + 1] = unsafe { halve(from, tokens, to) };
            query += 1;
        }
    }

    #[inline(always)]
    unsafe fn score<const R: usize>(&self, tile: &Tile<'_>, (keys, ahead): (*const u8, usize), rows: Rows, to: *mut f32) {
        let (head_dim, page_tokens) = (tile.head_dim, tile.page_tokens);
        // SAFETY: the trait's condition; `head_dim` is a multiple of a run.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); 2]; R];
            let mut channel = 0;
            while channel < head_dim {
                let end = channel + RUN;
                // Two sums each, so that one need not wait for the other.
                let mut run = [[_mm512_setzero_ph(); 2]; R];
                while channel < end {
                    let at = keys.add(channel * page_tokens);
                    if ahead != HERE {
                        prefetch(at.wrapping_add(ahead), 1);
                    }
                    let keys = [widen(at), widen(at.add(page_tokens))];
                    let mut r = 0;
                    while r < R {
                        let queries = rows.numbers.add((r * head_dim + channel) * NUMBERS);
                        run[r][0] = _mm512_fmadd_ph(keys[0], twice(queries), run[r][0]);
                        run[r][1] = _mm512_fmadd_ph(keys[1], twice(queries.add(NUMBERS)), run[r][1]);
                        r += 1;
                    }
                    channel += 2;
                }
                let mut r = 0;
                while r < R {
                    let [low, high] = floats(_mm512_add_ph(run[r][0], run[r][1]));
                    sums[r] = [_mm512_add_ps(sums[r][0], low), _mm512_add_ps(sums[r][1], high)];
                    r += 1;
                }
            }
            let mut r = 0;
            while r < R {
                let factor = _mm512_set1_ps(rows.factors.add(r * NUMBERS).read());
                _mm512_storeu_ps(to.add(r * STRIDE), _mm512_mul_ps(sums[r][0], factor));
                _mm512_storeu_ps(to.add(r * STRIDE + LANES), _mm512_mul_ps(sums[r][1], factor));
                r += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn sum<const R: usize>(&self, tile: &Tile<'_>, Run { start, channel, asks }: Run, rows: Rows, to: *mut f32) {
        let (head_dim, tokens) = (tile.head_dim, PART.min(tile.context() - start));
        // SAFETY: the trait's condition; a page has as many tokens as it says, and no more than the context are read.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); FLOAT_VECTORS]; R];
            let mut token = 0;
            while token < tokens {
                let page: PageBlocks = tile.page(start + token);
                let ahead = if asks { tile.keys_a_part_on(start, token) } else { HERE };
                let slot = (start + token) % tile.page_tokens;
                let at = page.values.add(slot * head_dim + channel);
                let count = (tokens - token).min(RUN);
                let weights = rows.numbers.add(token * NUMBERS);
                let run = add_up::<R>(at, (head_dim, count), weights, ahead);
                let mut r = 0;
                while r < R {
                    let ([a, b], [c, d]) = (floats(run[r][0]), floats(run[r][1]));
                    let mut v = 0;
                    while v < FLOAT_VECTORS {
                        sums[r][v] = _mm512_add_ps(sums[r][v], [a, b, c, d][v]);
                        v += 1;
                    }
                    r += 1;
                }
                token += RUN;
            }
            let mut r = 0;
            while r < R {
                let factor = _mm512_set1_ps(rows.factors.add(r * NUMBERS).read());
                let mut v = 0;
                while v < FLOAT_VECTORS {
                    _mm512_storeu_ps(to.add(r * head_dim + v * LANES), _mm512_mul_ps(sums[r][v], factor));
                    v += 1;
                }
                r += 1;
            }
        }
    }
}

/// 64 channels of `count` tokens, `head_dim` apart, times R weights each.
///
/// # Safety
/// These values at `at` and R rows of weights at `weights`; [`attend`]'s instructions are available.
#[inline(always)]
unsafe fn add_up<const R: usize>(
    mut at: *const u8,
    (head_dim, count): (usize, usize),
    weights: *const u16,
    ahead: usize,
) -> [[__m512h; HALF_VECTORS]; R] {
    // SAFETY: this function's condition; addresses asked for need not be valid.
    unsafe {
        let mut run = [[_mm512_setzero_ph(); HALF_VECTORS]; R];
        let mut token = 0;
        while token < count {
            if ahead != HERE {
                prefetch(at.wrapping_add(ahead), 1);
            }
            let values = [widen(at), widen(at.add(32))];
            let mut r = 0;
            while r < R {
                let weight = twice(weights.add((r * WEIGHT_STRIDE + token) * NUMBERS));
                run[r][0] = _mm512_fmadd_ph(values[0], weight, run[r][0]);
                run[r][1] = _mm512_fmadd_ph(values[1], weight, run[r][1]);
                r += 1;
            }
            at = at.add(head_dim);
            token += 1;
        }
        run
    }
}

/// 32 codes over 256.
///
/// # Safety
/// 32 codes at `at`; AVX-512 F and BW are available.
#[inline(always)]
unsafe fn widen(at: *const u8) -> __m512h {
    // SAFETY: this function's condition.
    unsafe {
        let wide = _mm512_slli_epi16::<7>(_mm512_cvtepi8_epi16(_mm256_loadu_si256(at.cast())));
        _mm512_castsi512_ph(_mm512_and_si512(wide, _mm512_set1_epi16(0xbfff_u16.cast_signed())))
    }
}

/// A half that is there twice, in all lanes.
///
/// # Safety
/// Two halves at `at`; AVX-512 F is available.
#[inline(always)]
unsafe fn twice(at: *const u16) -> __m512h {
    // SAFETY: this function's condition.
    unsafe { _mm512_castsi512_ph(_mm512_set1_epi32(at.cast::<i32>().read_unaligned())) }
}

/// # Safety
/// AVX-512 F and FP16 are available.
#[inline(always)]
unsafe fn floats(halves: __m512h) -> [__m512; 2] {
    // SAFETY: this function's condition.
    unsafe {
        let high = _mm256_castsi256_ph(_mm512_extracti64x4_epi64::<1>(_mm512_castph_si512(halves)));
        [_mm512_cvtxph_ps(_mm512_castph512_ph256(halves)), _mm512_cvtxph_ps(high)]
    }
}

/// The first `seen` of `count` floats as halves relative to the largest, each twice, zeros behind them; tells the largest.
///
/// # Safety
/// `count`, a multiple of 16, floats at `from` and room for twice as many halves at `to`; AVX-512 F, BW and VL are available.
#[inline(always)]
unsafe fn halve(from: *const f32, (count, seen): (usize, usize), to: *mut u16) -> f32 {
    // SAFETY: this function's condition; masked lanes are not read.
    unsafe {
        // Compared as integers, so that NaN counts as larger than infinity.
        let mut largest = _mm512_setzero_si512();
        let mut at = 0;
        while at < seen {
            let bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(first(seen - at), from.add(at)));
            largest = _mm512_max_epu32(largest, _mm512_and_si512(bits, _mm512_set1_epi32(i32::MAX)));
            at += LANES;
        }
        let largest = f32::from_bits(_mm512_reduce_max_epu32(largest));
        let inverse = if largest < SMALLEST { 0.0 } else { 1.0 / largest };
        let mut at = 0;
        while at < count {
            let numbers = _mm512_maskz_loadu_ps(first(seen.saturating_sub(at)), from.add(at));
            let numbers = _mm512_mul_ps(numbers, _mm512_set1_ps(inverse));
            let halves = _mm512_cvtepu16_epi32(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(numbers));
            _mm512_storeu_si512(to.add(at * NUMBERS).cast(), _mm512_or_si512(halves, _mm512_slli_epi32::<16>(halves)));
            at += LANES;
        }
        if largest < SMALLEST { 0.0 } else { largest }
    }
}

/// The first `count` of 16 lanes.
#[inline(always)]
fn first(count: usize) -> u16 {
    (0xffff_u32 >> LANES.saturating_sub(count)) as u16
}
