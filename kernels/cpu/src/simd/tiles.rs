//! Products of tiles: 16 or 32 rows of activations in BF16 with two panels of 16 columns, and what their operands are. Knows addresses
//! and strides, not weights; how they are computed is in `amx` and `dots`.

use std::arch::x86_64::*;
use std::mem::offset_of;

/// Rows of a tile, and bytes of each.
pub(crate) const TILE_ROWS: usize = 16;
pub(crate) const ROW_BYTES: usize = 64;
pub(crate) const TILE_BYTES: usize = TILE_ROWS * ROW_BYTES;
/// Panels of a loop.
pub(crate) const PANELS: usize = 2;
/// Bytes that a loop prefetches in each step.
pub(crate) const PREFETCH_BYTES: usize = 4 * 64;

/// Where a loop puts the sums of 16 rows with one panel, `row_bytes` from one row to the next. Assembly reads it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Target {
    pub(crate) start: *mut f32,
    pub(crate) row_bytes: usize,
}

/// Sums of 16 rows with one panel.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Sums(pub(crate) [[f32; 16]; TILE_ROWS]);

impl Sums {
    pub(crate) const ZERO: Self = Self([[0.0; 16]; TILE_ROWS]);

    pub(crate) fn target(&mut self) -> Target {
        Target { start: self.0.as_mut_ptr().cast(), row_bytes: ROW_BYTES }
    }
}

const _: () = assert!(size_of::<Target>() == 16 && offset_of!(Target, start) == 0 && offset_of!(Target, row_bytes) == 8);

/// Operands of a loop over tiles of 32 columns: for tiles of 16 rows of activations, times two panels. Assembly reads some of them.
#[repr(C)]
pub(crate) struct Operands {
    /// The first part of the first row; rows are `row_bytes` apart, a row's parts `part_bytes`.
    pub(crate) x: *const u8,
    pub(crate) row_bytes: usize,
    pub(crate) part_bytes: usize,
    /// Of each row, at least 1.
    pub(crate) parts: usize,
    /// Rows whose sums are wanted, at least 1; others up to whole tiles may be computed or not.
    pub(crate) rows: usize,
    /// Two panels, their tiles one behind the other.
    pub(crate) w: [*const u8; PANELS],
    /// Tiles of each, at least 1.
    pub(crate) steps: usize,
    /// What to prefetch in the first step, and how much further on in each: [`PREFETCH_BYTES`], or 0 for the same again.
    pub(crate) ahead: *const u8,
    pub(crate) ahead_bytes: usize,
}

/// A way to compute products of tiles.
pub(crate) trait TileProducts {
    /// Sums of up to 32 rows with two panels: `sums[tile][panel]`.
    ///
    /// # Safety
    /// `operands` can be read as far as they say (`ahead` need not), rows up to whole tiles; all four sums can be written.
    unsafe fn two(&self, operands: &Operands, sums: &[[Target; PANELS]; 2]);

    /// Sums of up to 16 rows with two panels. Asks for what it will read itself: where rows are few, reading weights is all that matters.
    ///
    /// # Safety
    /// As [`Self::two`].
    unsafe fn one(&self, operands: &Operands, sums: &[Target; PANELS]);
}

/// The nearest BF16 numbers, ties to even; subnormal numbers become zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16,avx512vl")]
pub(crate) fn rounded(x: __m512) -> __m256i {
    // SAFETY: both types are 32 bytes without any invalid ones.
    unsafe { std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x)) }
}

/// BF16 numbers as f32.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn widened(bits: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}
