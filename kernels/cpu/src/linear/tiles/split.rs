//! Activations as sums of BF16 numbers. Knows no tiles.
//!
//! ```text
//! part 0 = x rounded to BF16         part 1 = what that leaves of x, rounded
//! ```
//!
//! One part holds x to 2^-9 of its size, two to 2^-17. What is not finite stays so; what is beyond 3.39e38, the largest BF16, becomes
//! infinite or NaN, and what is subnormal zero.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::activations::{QuantizedRows, Source};
use super::super::layout::TILE_COLS;
use crate::simd::tiles::{rounded, widened};

/// Columns of one vector of f32.
const LANES: usize = 16;

/// Splits `rows` of `source` into `source.to_step` rows of `to` each, filled up with zeros to a multiple of 32 columns.
///
/// # Safety
/// `source` holds those rows, nobody else accesses their rows of `to` meanwhile; AVX-512 F, BW, VL and BF16 are available.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(in super::super) unsafe fn split(source: &Source, rows: Range<usize>, to: &QuantizedRows) {
    let row_bytes = QuantizedRows::row_bytes(source.cols);
    for row in rows {
        let first_part = to.row(source.scratch_row(row), source.cols).cast::<u8>();
        // The last part exists too.
        to.row(source.scratch_row(row) + source.to_step - 1, source.cols);
        for col in (0..source.cols.next_multiple_of(TILE_COLS)).step_by(LANES) {
            let mask = u16::MAX.checked_shr((LANES - source.cols.saturating_sub(col).min(LANES)) as u32).unwrap_or(0);
            // SAFETY: the mask keeps columns below `source.cols`; a row of `to` holds a multiple of 32 columns.
            unsafe {
                let mut left = _mm512_maskz_loadu_ps(mask, source.x.add(row * source.stride).wrapping_add(col));
                let mut part = first_part.add(col * 2);
                for _ in 0..source.to_step {
                    let nearest = rounded(left);
                    _mm256_storeu_si256(part.cast(), nearest);
                    left = _mm512_sub_ps(left, widened(nearest));
                    part = part.wrapping_add(row_bytes);
                }
            }
        }
    }
}
