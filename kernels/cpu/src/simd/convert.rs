//! Conversions between f32 and the formats of KV pages, without branches so that the compiler vectorizes them. Knows no pages.

use super::vector::Vector;
use crate::kv_block::E4M3_VALUES;

const MAGNITUDE: u32 = 0x7fff_ffff;
const INFINITY: u32 = 0x7f80_0000;
/// Bits of 2^-6, below which e4m3 is subnormal and steps by 2^-9.
const E4M3_NORMAL: u32 = (127 - 6) << 23;
/// Adding it rounds to a multiple of 2^-9, which the low bits then count: 2^(23 - 9).
const E4M3_ROUNDER: f32 = 16_384.0;
const E4M3_LARGEST: u32 = 0x7e;
const E4M3_NAN: u32 = 0x7f;

/// The largest magnitude; NaN counts as larger than infinity.
#[inline(always)]
pub(super) fn magnitude(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |largest, value| largest.max(value.to_bits() & MAGNITUDE)))
}

/// Raises each of `largest` to the magnitude of the value beside it; NaN counts as larger than infinity.
#[inline(always)]
pub(super) fn magnitudes(values: &[f32], largest: &mut [f32]) {
    for (largest, value) in largest.iter_mut().zip(values) {
        *largest = f32::from_bits(largest.to_bits().max(value.to_bits() & MAGNITUDE));
    }
}

/// To BF16 bits, to nearest, ties to even.
#[inline(always)]
pub(super) fn to_bf16(values: &[f32], out: &mut [u16]) {
    for (to, value) in out.iter_mut().zip(values) {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let nan = bits >> 16 | 0x40;
        *to = (if bits & MAGNITUDE > INFINITY { nan } else { rounded }) as u16;
    }
}

/// From BF16 bits.
#[inline(always)]
pub(super) fn from_bf16(bits: &[u16], out: &mut [f32]) {
    for (value, bits) in out.iter_mut().zip(bits) {
        *value = f32::from_bits(u32::from(*bits) << 16);
    }
}

/// The e4m3 code of a value, as [`millrace_ops::e4m3_from_f32`].
#[inline(always)]
fn e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let size = bits & MAGNITUDE;
    let normal = (size.wrapping_add(0x7_ffff + (size >> 20 & 1)) >> 20).wrapping_sub((127 - 7) << 3).min(E4M3_LARGEST);
    let subnormal = (f32::from_bits(size) + E4M3_ROUNDER).to_bits().wrapping_sub(E4M3_ROUNDER.to_bits());
    let code = if size < E4M3_NORMAL { subnormal } else { normal };
    let code = if size > INFINITY { E4M3_NAN } else { code };
    (bits >> 24 & 0x80 | code) as u8
}

/// To e4m3 codes of `value / scale`; zeros where the scale is 0.
#[inline(always)]
pub(super) fn to_fp8(values: &[f32], scale: f32, out: &mut [u8]) {
    if scale == 0.0 {
        out.fill(0);
        return;
    }
    for (to, value) in out.iter_mut().zip(values) {
        *to = e4m3(value / scale);
    }
}

/// To e4m3 codes of each value over the scale beside it; zeros where that is 0.
#[inline(always)]
pub(super) fn to_fp8_each(values: &[f32], scales: &[f32], out: &mut [u8]) {
    for ((to, value), scale) in out.iter_mut().zip(values).zip(scales) {
        let code = e4m3(value / scale);
        *to = if *scale == 0.0 { 0 } else { code };
    }
}

/// The values of e4m3 codes, portably.
pub(super) fn from_fp8_portable(codes: &[u8], out: &mut [f32]) {
    let table = &*E4M3_VALUES;
    for (value, code) in out.iter_mut().zip(codes) {
        *value = table[*code as usize];
    }
}

/// The values of e4m3 codes.
///
/// # Safety
/// [`Vector`]'s condition.
#[inline(always)]
pub(super) unsafe fn from_fp8<V: Vector>(codes: &[u8], out: &mut [f32]) {
    let count = codes.len().min(out.len());
    let mut at = 0;
    while at + V::LANES <= count {
        // SAFETY: this function's condition; the vector ends within `count`, which both slices have.
        unsafe { V::load_fp8_or_nan(codes.as_ptr().add(at)).mul(V::splat(256.0)).store(out.as_mut_ptr().add(at)) };
        at += V::LANES;
    }
    from_fp8_portable(&codes[at..count], &mut out[at..count]);
}

/// Multiplies each value by the factor beside it.
#[inline(always)]
pub(super) fn scale_each(values: &mut [f32], factors: &[f32]) {
    for (value, factor) in values.iter_mut().zip(factors) {
        *value *= factor;
    }
}

/// Adds to each value the one beside it.
#[inline(always)]
pub(super) fn add_each(values: &mut [f32], addends: &[f32]) {
    for (value, addend) in values.iter_mut().zip(addends) {
        *value += addend;
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use millrace_ops::e4m3_from_f32;

    use super::*;

    /// Every 1,021st f32, and the neighbourhood of every power of two.
    fn samples() -> impl Iterator<Item = f32> {
        let all = (0..=u32::MAX).step_by(1021);
        let edges = (0..512u32).flat_map(|exponent| {
            (0..=32u32).flat_map(move |step| {
                [0u32, 1, 0xf_ffff, 0x7_ffff, 0x8_0000, 0x8_0001].map(move |low| (exponent << 23).wrapping_add(step << 18 | low))
            })
        });
        all.chain(edges).map(f32::from_bits)
    }

    #[test]
    fn codes_are_those_of_the_definitions() {
        let values: Vec<f32> = samples().collect();
        let mut halves = vec![0; values.len()];
        to_bf16(&values, &mut halves);
        let mut back = vec![0.0; values.len()];
        from_bf16(&halves, &mut back);
        for ((value, half), back) in values.iter().zip(&halves).zip(&back) {
            let want = bf16::from_f32(*value);
            assert_eq!(*half, want.to_bits(), "{value:e}");
            assert_eq!(back.to_bits(), want.to_f32().to_bits(), "{value:e}");
            assert_eq!(e4m3(*value), e4m3_from_f32(*value), "{value:e} ({:#x})", value.to_bits());
        }
    }
}
