//! Quantizing weights: INT8 and INT4 blocks of 32 with a scale, and scales of FP8 blocks. Scalar, run once at load.
//! Knows neither tensors nor panels.

use millrace_ops::E4M3_MAX;

use super::layout::BLOCK_COLS;
use super::scale_type::ScaleType;

/// A block's codes and scale. Codes are `q + 128` (8 bits) or `q + 8` (4 bits).
pub(super) struct Quantized {
    pub(super) codes: [u8; BLOCK_COLS],
    /// A value of the type that was asked for.
    pub(super) scale: f32,
}

/// What no quantized format can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotFinite;

/// Adding and subtracting this rounds an f32 of size below 2^22 to the nearest integer, ties to even.
const ROUNDER: f32 = 12_582_912.0;

fn round(value: f32) -> f32 {
    (value + ROUNDER) - ROUNDER
}

/// Symmetric 8-bit codes -127..=127; the scale is rounded up so that the largest value is not clipped.
pub(super) fn int8_block(x: &[f32], scale_type: ScaleType) -> Result<Quantized, NotFinite> {
    let largest = largest(x)?;
    let mut scale = scale_type.round(largest / 127.0);
    if scale * 127.0 < largest {
        scale = scale_type.next_up(scale);
    }
    if !scale.is_finite() {
        return Err(NotFinite);
    }
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut codes = [128; BLOCK_COLS];
    for (code, v) in codes.iter_mut().zip(x) {
        *code = (round((v * inverse).clamp(-127.0, 127.0)) + 128.0) as u8;
    }
    Ok(Quantized { codes, scale })
}

/// Symmetric 4-bit codes -8..=7. Scales around "the largest magnitude is an end of the range" are tried, then the least-squares
/// scale of the best codes; the least squared error wins.
pub(super) fn int4_block(x: &[f32], scale_type: ScaleType) -> Result<Quantized, NotFinite> {
    const ENDS: [f32; 8] = [-8.0, -7.5, -7.0, -8.5, -9.0, 7.0, 7.5, 6.5];
    largest(x)?;
    let signed = x.iter().fold(0.0f32, |most, &v| if v.abs() > most.abs() { v } else { most });
    let mut values = [0.0; BLOCK_COLS];
    values[..x.len()].copy_from_slice(x);
    let mut best = (f32::INFINITY, 0.0);
    let mut consider = |scale: f32| {
        let scale = scale_type.round(scale);
        let error = int4_error(&values, scale);
        if error < best.0 {
            best = (error, scale);
        }
        best.1
    };
    for end in ENDS {
        consider(signed / end);
    }
    let scale = consider(0.0);
    let (mut product, mut square) = (0.0, 0.0);
    for (v, q) in values.iter().zip(int4_codes(&values, scale)) {
        product += v * q;
        square += q * q;
    }
    let scale = if square > 0.0 { consider(product / square) } else { scale };
    if !scale.is_finite() {
        return Err(NotFinite);
    }
    Ok(Quantized { codes: int4_codes(&values, scale).map(|q| (q + 8.0) as u8), scale })
}

fn int4_codes(values: &[f32; BLOCK_COLS], scale: f32) -> [f32; BLOCK_COLS] {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    values.map(|v| round((v * inverse).clamp(-8.0, 7.0)))
}

fn int4_error(values: &[f32; BLOCK_COLS], scale: f32) -> f32 {
    let codes = int4_codes(values, scale);
    let mut sums = [0.0f32; 4];
    for (values, codes) in values.chunks_exact(4).zip(codes.chunks_exact(4)) {
        for (sum, (v, q)) in sums.iter_mut().zip(values.iter().zip(codes)) {
            let error = v - q * scale;
            *sum += error * error;
        }
    }
    sums.iter().sum()
}

/// Scale of an FP8 block whose largest magnitude is `largest`: it becomes the largest e4m3 number.
pub(super) fn fp8_scale(largest: f32) -> f32 {
    if largest > 0.0 { largest / E4M3_MAX } else { 1.0 }
}

/// The largest magnitude of `x`.
pub(super) fn largest(x: &[f32]) -> Result<f32, NotFinite> {
    let bits = x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    let largest = f32::from_bits(bits);
    if largest.is_finite() { Ok(largest) } else { Err(NotFinite) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seed: u32) -> Vec<f32> {
        (0..32u32).map(|i| (i.wrapping_mul(2_654_435_761) % 1013 + seed * 977) % 1013).map(|v| v as f32 / 506.5 - 1.0).collect()
    }

    #[test]
    fn int8_errs_by_at_most_half_a_step() {
        for scale_type in [ScaleType::F16, ScaleType::Bf16, ScaleType::F32] {
            for seed in 0..50 {
                let x = sample(seed);
                let block = int8_block(&x, scale_type).unwrap();
                for (code, v) in block.codes.iter().zip(&x) {
                    assert!((block.scale * (f32::from(*code) - 128.0) - v).abs() <= block.scale * 0.5001);
                }
            }
        }
    }

    #[test]
    fn int4_is_no_worse_than_plain_rounding() {
        for seed in 0..50 {
            let x = sample(seed);
            let block = int4_block(&x, ScaleType::Bf16).unwrap();
            let error: f32 = x.iter().zip(block.codes).map(|(v, c)| (v - block.scale * (f32::from(c) - 8.0)).powi(2)).sum();
            let mut values = [0.0; 32];
            values.copy_from_slice(&x);
            let plain = ScaleType::Bf16.round(largest(&x).unwrap() / 7.0);
            assert!(error <= int4_error(&values, plain) * 1.0001, "{error}");
        }
    }

    #[test]
    fn values_of_an_int4_grid_are_found_again() {
        let x: Vec<f32> = (0..32).map(|i| (i % 16 - 8) as f32 * 0.375).collect();
        let block = int4_block(&x, ScaleType::F16).unwrap();
        for (code, v) in block.codes.iter().zip(&x) {
            assert_eq!(block.scale * (f32::from(*code) - 8.0), *v);
        }
    }

    #[test]
    fn zeros_stay_zeros_and_what_is_not_finite_is_refused() {
        assert_eq!(int8_block(&[0.0; 3], ScaleType::F16).unwrap().codes, [128; 32]);
        assert_eq!(int4_block(&[0.0; 3], ScaleType::F16).unwrap().codes, [8; 32]);
        assert!(int8_block(&[1.0, f32::NAN], ScaleType::F16).is_err());
        assert!(int4_block(&[f32::INFINITY], ScaleType::F16).is_err());
        assert!(int8_block(&[1e9], ScaleType::F16).is_err());
    }
}
