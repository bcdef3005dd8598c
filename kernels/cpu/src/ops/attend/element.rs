//! Elements of KV pages as vectors of floats. Knows no arithmetic of attention.

use crate::kv_block::E4M3_VALUES;
use crate::simd::vector::Vector;

/// A stored element.
pub(in crate::ops) trait Element: Copy + 'static {
    /// Whether it is a float already.
    const WIDE: bool;

    /// `LANES` elements as floats; FP8 codes as their values divided by 256.
    ///
    /// # Safety
    /// [`Vector`]'s condition for `LANES` elements.
    unsafe fn load<V: Vector>(from: *const Self) -> V;

    /// The same, and FP8's NaN reads as NaN.
    ///
    /// # Safety
    /// [`Vector`]'s condition for `LANES` elements.
    unsafe fn load_or_nan<V: Vector>(from: *const Self) -> V;

    /// One element as [`Self::load_or_nan`] reads it.
    fn value(self) -> f32;
}

/// BF16 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(in crate::ops) struct Bf16(u16);

/// An e4m3 code.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(in crate::ops) struct Fp8(u8);

impl Element for f32 {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: this function's condition.
        unsafe { V::load(from) }
    }

    #[inline(always)]
    unsafe fn load_or_nan<V: Vector>(from: *const Self) -> V {
        // SAFETY: this function's condition.
        unsafe { V::load(from) }
    }

    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

impl Element for Bf16 {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: this function's condition.
        unsafe { V::load_bf16(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_or_nan<V: Vector>(from: *const Self) -> V {
        // SAFETY: this function's condition.
        unsafe { V::load_bf16(from.cast()) }
    }

    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl Element for Fp8 {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: this function's condition.
        unsafe { V::load_fp8(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_or_nan<V: Vector>(from: *const Self) -> V {
        // SAFETY: this function's condition.
        unsafe { V::load_fp8_or_nan(from.cast()) }
    }

    #[inline(always)]
    fn value(self) -> f32 {
        E4M3_VALUES[self.0 as usize] / 256.0
    }
}
