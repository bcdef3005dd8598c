//! What a vector instruction set must offer, so that an algorithm is written once for all of them. Knows no algorithm.
//!
//! Code that is generic over [`Vector`] is `#[inline(always)]` down from a `#[target_feature]` entry point, and holds no
//! closures in its loops: only then do the instructions of the set end up inside the loop.

/// Most lanes of any vector set.
pub(crate) const MOST_LANES: usize = 16;

/// Asks for `bytes` from `at` on, which need not be valid: what is read in small pieces from many places does not come by
/// itself in time. Into the second cache level: the first has room for little beside what is being worked on, and waits for fewer
/// lines at a time.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8, bytes: usize) {
    let mut line = 0;
    while line < bytes {
        // SAFETY: prefetching touches nothing, and every x86-64 has it.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.wrapping_add(line).cast());
        }
        line += 64;
    }
}

/// Lanes of f32.
///
/// # Safety
/// For all methods: the machine has the instruction set; pointers are valid for as many elements as the method says.
pub(crate) trait Vector: Copy {
    const LANES: usize;
    /// Rows that a score kernel holds in registers, two vectors each.
    const SCORE_ROWS: usize;
    /// Rows that a value kernel holds in registers, four vectors each.
    const VALUE_ROWS: usize;

    unsafe fn splat(value: f32) -> Self;
    /// `LANES` floats.
    unsafe fn load(from: *const f32) -> Self;
    /// The first `count < LANES` floats; zeros behind them.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    /// `LANES` BF16 values.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// `LANES` e4m3 codes as their values divided by 256 (exact). The NaN code reads as 480 / 256: where codes have a scale of
    /// their own, it comes with a scale that is NaN.
    unsafe fn load_fp8(from: *const u8) -> Self;
    /// The same, and the NaN code reads as NaN.
    unsafe fn load_fp8_or_nan(from: *const u8) -> Self;
    /// `LANES` floats.
    unsafe fn store(self, to: *mut f32);
    /// The first `count < LANES` floats.
    unsafe fn store_first(self, to: *mut f32, count: usize);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    unsafe fn fma(self, factor: Self, addend: Self) -> Self;
    /// The larger one; `other` where either is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller one; `other` where either is NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// To the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// `2^self` for integers in -126..=127.
    unsafe fn power_of_two(self) -> Self;
    /// `then` in lanes where `self < bound`, else `otherwise`; `otherwise` where NaN.
    unsafe fn below(self, bound: Self, then: Self, otherwise: Self) -> Self;
    /// The first `count` lanes; `fill` behind them.
    unsafe fn first(self, count: usize, fill: Self) -> Self;
    /// Whether any lane is NaN or +inf.
    unsafe fn any_nan_or_inf(self) -> bool;
    /// Lane j of vector i becomes lane i of vector j, for the first `LANES` vectors.
    unsafe fn transpose(rows: &mut [Self; MOST_LANES]);
    unsafe fn sum(self) -> f32;
    unsafe fn largest(self) -> f32;
}
