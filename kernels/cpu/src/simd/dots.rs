//! Products of tiles by dot products of AVX-512 BF16: each adds two columns of 16 rows of weights at once. Knows addresses and strides,
//! not weights.
//!
//! ```text
//! for 8 rows:  for pairs of columns:  2 lines of weights (16 pairs each)  x  8 pairs of activations  ->  16 vectors of sums
//! ```

use std::arch::x86_64::*;

use super::tiles::{Operands, PANELS, PREFETCH_BYTES, ROW_BYTES, TILE_BYTES, TILE_ROWS, Target, TileProducts};

/// Most rows at once: with two panels 16 sums, more than hide the latency of each. A last group may have half of it.
const GROUP: usize = 8;
const HALF_GROUP: usize = GROUP / 2;
/// Bytes of the pair of columns that a line of weights holds of each of 16 rows.
const PAIR_BYTES: usize = 4;
/// How far ahead weights are asked for that are read once.
const AHEAD_BYTES: usize = 3072;

/// What a group of rows asks for while it computes.
#[derive(Clone, Copy, PartialEq)]
enum Asks {
    Nothing,
    /// What the operands name.
    Named,
    /// The weights that it will read itself.
    Own,
}

/// Says that the machine has what dot products need.
pub(crate) struct Dots(());

impl Dots {
    /// # Safety
    /// [`crate::Isa::Avx512Bf16`] is available.
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

impl TileProducts for Dots {
    unsafe fn two(&self, operands: &Operands, sums: &[[Target; PANELS]; 2]) {
        // SAFETY: the caller's condition; the instruction set is there, or there would be no `self`.
        unsafe { groups(operands, sums, Asks::Named) }
    }

    unsafe fn one(&self, operands: &Operands, sums: &[Target; PANELS]) {
        // SAFETY: as above.
        unsafe { groups(operands, std::slice::from_ref(sums), Asks::Own) }
    }
}

/// # Safety
/// As [`TileProducts::two`], for as many tiles as there are `sums`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn groups(operands: &Operands, sums: &[[Target; PANELS]], mut asks: Asks) {
    let rows = operands.rows.min(sums.len() * TILE_ROWS);
    for row in (0..rows).step_by(GROUP) {
        let targets = &sums[row / TILE_ROWS];
        // SAFETY: this function's condition; a group lies within a tile.
        unsafe {
            if rows - row > HALF_GROUP {
                put(&group::<GROUP>(operands, row, asks), targets, row % TILE_ROWS);
            } else {
                put(&group::<HALF_GROUP>(operands, row, asks), targets, row % TILE_ROWS);
            }
        }
        asks = Asks::Nothing;
    }
}

/// Stores the sums of rows from `row` of a tile on.
///
/// # Safety
/// `targets` have those rows; AVX-512 F is available.
#[inline(always)]
unsafe fn put(group: &[[__m512; PANELS]], targets: &[Target; PANELS], row: usize) {
    for (t, of_row) in group.iter().enumerate() {
        for (target, of_panel) in targets.iter().zip(of_row) {
            // SAFETY: this function's condition.
            unsafe { _mm512_storeu_ps(target.start.byte_add((row + t) * target.row_bytes), *of_panel) }
        }
    }
}

/// Sums of `T` rows from `row` on, `[row][panel]`.
///
/// # Safety
/// As [`groups`]; the rows are within its tiles.
#[inline(always)]
unsafe fn group<const T: usize>(operands: &Operands, row: usize, asks: Asks) -> [[__m512; PANELS]; T] {
    // SAFETY: this function's condition; addresses asked for need not be valid.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); PANELS]; T];
        let first = operands.x.add(row * operands.row_bytes);
        for step in 0..operands.steps {
            let weights = [operands.w[0].add(step * TILE_BYTES), operands.w[1].add(step * TILE_BYTES)];
            match asks {
                Asks::Nothing => {}
                Asks::Named => {
                    let lines = operands.ahead.wrapping_add(step * operands.ahead_bytes);
                    for line in (0..PREFETCH_BYTES).step_by(64) {
                        _mm_prefetch::<_MM_HINT_T1>(lines.wrapping_add(line).cast());
                    }
                }
                Asks::Own => {
                    for line in (AHEAD_BYTES..AHEAD_BYTES + TILE_BYTES).step_by(64) {
                        _mm_prefetch::<_MM_HINT_T0>(weights[0].wrapping_add(line).cast());
                        _mm_prefetch::<_MM_HINT_T0>(weights[1].wrapping_add(line).cast());
                    }
                }
            }
            for part in 0..operands.parts {
                let x = first.add(part * operands.part_bytes + step * ROW_BYTES);
                let mut pair = 0;
                while pair < TILE_BYTES / ROW_BYTES {
                    let w: [__m512bh; PANELS] = [line(weights[0].add(pair * ROW_BYTES)), line(weights[1].add(pair * ROW_BYTES))];
                    let mut t = 0;
                    while t < T {
                        let both = x.add(t * operands.row_bytes + pair * PAIR_BYTES).cast::<i32>().read_unaligned();
                        let both = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(both));
                        sums[t][0] = _mm512_dpbf16_ps(sums[t][0], w[0], both);
                        sums[t][1] = _mm512_dpbf16_ps(sums[t][1], w[1], both);
                        t += 1;
                    }
                    pair += 1;
                }
            }
        }
        sums
    }
}

/// A line of weights.
///
/// # Safety
/// 64 bytes at `at`; AVX-512 F is available.
#[inline(always)]
unsafe fn line(at: *const u8) -> __m512bh {
    // SAFETY: this function's condition; both types are 64 bytes without any invalid ones.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.cast())) }
}
