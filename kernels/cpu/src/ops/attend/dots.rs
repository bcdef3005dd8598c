//! Attention's products over FP8 pages by dot products of AVX-512 BF16. The walk is that of `coded`.
//!
//! e4m3 codes become BF16 numbers, which hold them exactly, two bytes out of two tables of 128; queries and weights are sums of two BF16
//! numbers each. A dot product adds two channels (scores) or two tokens (sums), so codes are interleaved first:
//!
//! ```text
//! keys      32 tokens of channel c, 32 of c + 1   -> [t0 c, t0 c+1][t1 c, t1 c+1] ..
//! values    64 channels of token t, 64 of t + 1   -> [c0 t, c0 t+1][c1 t, c1 t+1] ..      in the order of `in_order`
//! ```
//!
//! Subnormal numbers count as zeros.

use std::arch::x86_64::*;
use std::ops::Range;

use super::blocked::{DOT_CHANNELS, DOT_TOKENS};
use super::coded::{self, CodeProducts, NUMBERS, Rows, Run};
use super::kernels::HERE;
use super::split::{PARTS, split_queries, split_weights};
use super::tile::{PART, PageBlocks, Tile};
use super::work::{STRIDE, WEIGHT_STRIDE, Work};
use crate::simd::vector::prefetch;

const _: () = assert!(PARTS == NUMBERS);

const LANES: usize = 16;
/// Vectors of 32 tokens, and of 64 channels.
const TOKEN_VECTORS: usize = DOT_TOKENS / LANES;
const CHANNEL_VECTORS: usize = DOT_CHANNELS / LANES;

/// Upper and lower byte of the BF16 number that a code without its sign is, divided by 256. The NaN code reads as 480 / 256, as in
/// `Vector::load_fp8`.
static TABLES: ([u8; 128], [u8; 128]) = {
    let (mut upper, mut lower) = ([0; 128], [0; 128]);
    let mut code = 1u32;
    while code < 128 {
        let (exponent, fraction) = (code >> 3, code & 7);
        // An e4m3 number is (8 + fraction) * 2^(exponent - 10), or fraction * 2^-9 where the exponent is 0.
        let bits = if exponent > 0 {
            ((exponent + 127 - 7 - 8) << 7) | (fraction << 4)
        } else {
            let log2 = fraction.ilog2();
            ((log2 + 127 - 9 - 8) << 7) | ((fraction << (7 - log2)) & 0x7f)
        };
        (upper[code as usize], lower[code as usize]) = ((bits >> 8) as u8, bits as u8);
        code += 1;
    }
    (upper, lower)
};

/// Where each byte of 32 interleaved tokens comes from: 16 of them are the low halves of the four 128-bit lanes, 16 the high ones.
static INTERLEAVE: [u8; 64] = {
    let mut from = [0; 64];
    let mut byte = 0;
    while byte < 64 {
        let (lane, half, pair, channel) = (byte / 16, byte % 16 / 8, byte % 8 / 2, byte % 2);
        from[byte] = (channel * DOT_TOKENS + half * LANES + lane * 4 + pair) as u8;
        byte += 1;
    }
    from
};

/// The tables in registers.
#[derive(Clone, Copy)]
struct Tables {
    upper: [__m512i; 2],
    lower: [__m512i; 2],
    interleave: __m512i,
}

impl Tables {
    /// # Safety
    /// AVX-512 F is available.
    #[inline(always)]
    unsafe fn load() -> Self {
        // SAFETY: all tables are whole vectors.
        unsafe {
            let load = |table: &[u8], half: usize| _mm512_loadu_si512(table[half * 64..].as_ptr().cast());
            let (upper, lower) = (&TABLES.0, &TABLES.1);
            Self {
                upper: [load(upper, 0), load(upper, 1)],
                lower: [load(lower, 0), load(lower, 1)],
                interleave: load(&INTERLEAVE, 0),
            }
        }
    }

    /// 64 codes as BF16 numbers: the low halves of the 128-bit lanes, then the high ones.
    ///
    /// # Safety
    /// AVX-512 F, BW and VBMI are available.
    #[inline(always)]
    unsafe fn widen(&self, codes: __m512i) -> [__m512bh; 2] {
        /// `a | (b & c)`
        const OR_AND: i32 = 0xf8;
        // SAFETY: this function's condition; both types are 64 bytes without any invalid ones.
        unsafe {
            let upper = _mm512_permutex2var_epi8(self.upper[0], codes, self.upper[1]);
            let upper = _mm512_ternarylogic_epi32::<OR_AND>(upper, codes, _mm512_set1_epi8(-128));
            let lower = _mm512_permutex2var_epi8(self.lower[0], codes, self.lower[1]);
            [
                std::mem::transmute::<__m512i, __m512bh>(_mm512_unpacklo_epi8(lower, upper)),
                std::mem::transmute::<__m512i, __m512bh>(_mm512_unpackhi_epi8(lower, upper)),
            ]
        }
    }
}

/// As `tile::attend`, for a tile with `Products::Dots`.
///
/// # Safety
/// As there, for AVX-512; [`crate::Isa::Avx512Bf16`] is available.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi")]
pub(super) unsafe fn attend(tile: &Tile<'_>, parts: Range<usize>, work: &mut Work<'_>) {
    // SAFETY: this function's condition.
    unsafe { coded::attend(&Tables::load(), tile, parts, work) }
}

impl CodeProducts for Tables {
    #[inline(always)]
    unsafe fn ready_queries(tile: &Tile<'_>, work: &mut Work<'_>) {
        // SAFETY: the trait's condition.
        unsafe { split_queries(tile, work) }
    }

    #[inline(always)]
    unsafe fn ready_weights(tile: &Tile<'_>, start: usize, work: &mut Work<'_>) {
        // SAFETY: the trait's condition.
        unsafe { split_weights(tile, start, work) }
    }

    #[inline(always)]
    unsafe fn score<const R: usize>(&self, tile: &Tile<'_>, (keys, ahead): (*const u8, usize), rows: Rows, to: *mut f32) {
        let (head_dim, page_tokens) = (tile.head_dim, tile.page_tokens);
        // SAFETY: the trait's condition; `head_dim` is even.
        unsafe {
            // A set of sums for each part, so that one need not wait for the other.
            let mut sums = [[[_mm512_setzero_ps(); TOKEN_VECTORS]; PARTS]; R];
            let mut channel = 0;
            while channel < head_dim {
                let at = keys.add(channel * page_tokens);
                if ahead != HERE {
                    prefetch(at.wrapping_add(ahead), 1);
                }
                let codes = if page_tokens == DOT_TOKENS {
                    _mm512_loadu_si512(at.cast())
                } else {
                    let (even, odd) = (_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(page_tokens).cast()));
                    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(even), odd)
                };
                let keys = self.widen(_mm512_permutexvar_epi8(self.interleave, codes));
                let mut r = 0;
                while r < R {
                    let mut part = 0;
                    while part < PARTS {
                        let query = pair(rows.numbers.add((r * PARTS + part) * head_dim + channel));
                        sums[r][part][0] = _mm512_dpbf16_ps(sums[r][part][0], keys[0], query);
                        sums[r][part][1] = _mm512_dpbf16_ps(sums[r][part][1], keys[1], query);
                        part += 1;
                    }
                    r += 1;
                }
                channel += 2;
            }
            let mut r = 0;
            while r < R {
                let mut v = 0;
                while v < TOKEN_VECTORS {
                    _mm512_storeu_ps(to.add(r * STRIDE + v * LANES), _mm512_add_ps(sums[r][0][v], sums[r][1][v]));
                    v += 1;
                }
                r += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn sum<const R: usize>(&self, tile: &Tile<'_>, Run { start, channel, asks }: Run, rows: Rows, to: *mut f32) {
        let (head_dim, tokens) = (tile.head_dim, PART.min(tile.context() - start));
        // SAFETY: the trait's condition; a page has an even number of tokens, and weights behind the context are zeros.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); CHANNEL_VECTORS]; R];
            let mut first = 0;
            while first < tokens {
                let page: PageBlocks = tile.page(start + first);
                let ahead = if asks { tile.keys_a_part_on(start, first) } else { HERE };
                let end = tokens.min(first + tile.page_tokens);
                let mut at = page.values.add(channel);
                let mut token = first;
                while token < end {
                    if ahead != HERE {
                        prefetch(at.wrapping_add(ahead), 1);
                        prefetch(at.wrapping_add(ahead + head_dim), 1);
                    }
                    let (even, odd) = (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(head_dim).cast()));
                    let (low, high) = (self.widen(_mm512_unpacklo_epi8(even, odd)), self.widen(_mm512_unpackhi_epi8(even, odd)));
                    let values = [low[0], low[1], high[0], high[1]];
                    let mut r = 0;
                    while r < R {
                        let mut part = 0;
                        while part < PARTS {
                            let weight = pair(rows.numbers.add((r * PARTS + part) * WEIGHT_STRIDE + token));
                            let mut v = 0;
                            while v < CHANNEL_VECTORS {
                                sums[r][v] = _mm512_dpbf16_ps(sums[r][v], values[v], weight);
                                v += 1;
                            }
                            part += 1;
                        }
                        r += 1;
                    }
                    at = at.add(2 * head_dim);
                    token += 2;
                }
                first += tile.page_tokens;
            }
            let mut r = 0;
            while r < R {
                for (v, vector) in in_order(sums[r]).into_iter().enumerate() {
                    _mm512_storeu_ps(to.add(r * head_dim + v * LANES), vector);
                }
                r += 1;
            }
        }
    }
}

/// Two BF16 numbers in all lanes.
///
/// # Safety
/// Two numbers at `at`; AVX-512 F is available.
#[inline(always)]
unsafe fn pair(at: *const u16) -> __m512bh {
    // SAFETY: this function's condition; both types are 64 bytes without any invalid ones.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(at.cast::<i32>().read_unaligned())) }
}

/// Lane l of vector v holds channels `16l + 4v ..`; in the result, `16v + 4l ..`.
///
/// # Safety
/// AVX-512 F is available.
#[inline(always)]
unsafe fn in_order(sums: [__m512; CHANNEL_VECTORS]) -> [__m512; CHANNEL_VECTORS] {
    // SAFETY: this function's condition.
    unsafe {
        let (low, later_low) = (_mm512_shuffle_f32x4::<0x44>(sums[0], sums[1]), _mm512_shuffle_f32x4::<0x44>(sums[2], sums[3]));
        let (high, later_high) = (_mm512_shuffle_f32x4::<0xee>(sums[0], sums[1]), _mm512_shuffle_f32x4::<0xee>(sums[2], sums[3]));
        [
            _mm512_shuffle_f32x4::<0x88>(low, later_low),
            _mm512_shuffle_f32x4::<0xdd>(low, later_low),
            _mm512_shuffle_f32x4::<0x88>(high, later_high),
            _mm512_shuffle_f32x4::<0xdd>(high, later_high),
        ]
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use millrace_ops::e4m3_to_f32;

    use super::TABLES;

    #[test]
    fn tables_hold_every_finite_code() {
        for code in 0..0x7f {
            let bits = u16::from_be_bytes([TABLES.0[code as usize], TABLES.1[code as usize]]);
            assert_eq!(bf16::from_bits(bits).to_f32() * 256.0, e4m3_to_f32(code), "code {code:#x}");
        }
        let nan = u16::from_be_bytes([TABLES.0[0x7f], TABLES.1[0x7f]]);
        assert_eq!(bf16::from_bits(nan).to_f32() * 256.0, 480.0);
    }
}
