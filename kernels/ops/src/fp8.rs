//! FP8 e4m3 (OCP "e4m3fn"): 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities, NaN is S.1111.111, largest 448.
//! Source: OCP 8-bit Floating Point Specification 1.0. Scalar definitions; devices have their own vector forms.

/// Largest finite e4m3 value.
pub const E4M3_MAX: f32 = 448.0;

/// The exact value of an e4m3 code.
pub fn e4m3_to_f32(code: u8) -> f32 {
    let magnitude = code & 0x7f;
    if magnitude == 0x7f {
        return f32::NAN;
    }
    // e4m3 placed into an f16 (bias 15) reads 2^8 too small; f16 holds e4m3's subnormals exactly.
    let value = half::f16::from_bits(u16::from(magnitude) << 7).to_f32() * 256.0;
    if code & 0x80 == 0 { value } else { -value }
}

/// The nearest e4m3 code, ties to even, saturating at 448; NaN stays NaN.
pub fn e4m3_from_f32(value: f32) -> u8 {
    let sign = ((value.to_bits() >> 24) & 0x80) as u8;
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = value.abs();
    if magnitude >= E4M3_MAX {
        return sign | 0x7e;
    }
    if magnitude < 2f32.powi(-6) {
        // Subnormals step by 2^-9.
        let steps = (magnitude * 512.0).round_ties_even();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0..=8 by the bound above")]
        return sign | steps as u8;
    }
    // Keep 3 mantissa bits of the f32, rounding to even on the 20 dropped bits.
    let bits = magnitude.to_bits();
    let rounded = bits + 0x7_ffff + ((bits >> 20) & 1);
    let exponent = (rounded >> 23) as i32 - 127 + 7;
    let mantissa = (rounded >> 20) & 7;
    let code = (exponent as u32) << 3 | mantissa;
    sign | (code.min(0x7e) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..=255u8 {
            let value = e4m3_to_f32(code);
            if value.is_nan() {
                assert_eq!(code & 0x7f, 0x7f);
            } else {
                assert_eq!(e4m3_from_f32(value), code, "{value}");
            }
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_code_and_ties_to_even() {
        let finite: Vec<f32> = (0..=0x7e).map(e4m3_to_f32).collect();
        for pair in finite.windows(2) {
            let middle = (pair[0] + pair[1]) / 2.0;
            let below = f32::from_bits(middle.to_bits() - 1);
            let above = f32::from_bits(middle.to_bits() + 1);
            assert_eq!(e4m3_to_f32(e4m3_from_f32(below)), pair[0]);
            assert_eq!(e4m3_to_f32(e4m3_from_f32(above)), pair[1]);
            assert_eq!(e4m3_from_f32(middle) & 1, 0, "tie {middle}");
        }
        assert_eq!(e4m3_to_f32(e4m3_from_f32(500.0)), 448.0);
        assert_eq!(e4m3_to_f32(e4m3_from_f32(-1e9)), -448.0);
        assert!(e4m3_to_f32(e4m3_from_f32(f32::NAN)).is_nan());
    }
}
