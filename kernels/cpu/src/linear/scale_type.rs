//! The float types that scales of integer weights are held in. Knows no codes and no layout.

use half::{bf16, f16};
use millrace_ops::ScaleData;

/// Type of a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScaleType {
    F16,
    Bf16,
    F32,
}

impl ScaleType {
    /// The type that a checkpoint's scales have.
    pub(super) fn of(scales: &ScaleData<'_>) -> Self {
        match scales {
            ScaleData::F16(_) => Self::F16,
            ScaleData::Bf16(_) => Self::Bf16,
            ScaleData::F32(_) => Self::F32,
        }
    }

    /// The narrowest type that holds the scales of both without loss.
    pub(super) fn meet(self, other: Self) -> Self {
        if self == other { self } else { Self::F32 }
    }

    pub(super) fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// The nearest value of this type.
    pub(super) fn round(self, scale: f32) -> f32 {
        self.decode(self.encode(scale))
    }

    /// The next larger value of this type; `scale` is one, not negative and finite.
    pub(super) fn next_up(self, scale: f32) -> f32 {
        // All three order positive numbers as their bits.
        self.decode(self.encode(scale) + 1)
    }

    /// Writes a scale's bits to the first bytes of `to`.
    #[expect(clippy::cast_possible_truncation, reason = "16-bit types have 16 bits")]
    pub(super) fn put(self, bits: u32, to: &mut [u8]) {
        if self == Self::F32 {
            to[..4].copy_from_slice(&bits.to_le_bytes());
        } else {
            to[..2].copy_from_slice(&(bits as u16).to_le_bytes());
        }
    }

    /// Bits of a scale of type `from`, in this type; unchanged where they are the same.
    pub(super) fn convert(self, from: Self, bits: u32) -> u32 {
        if self == from { bits } else { self.encode(from.decode(bits)) }
    }

    pub(super) fn is_finite(self, bits: u32) -> bool {
        let exponent = match self {
            Self::F16 => 0x7c00,
            Self::Bf16 => 0x7f80,
            Self::F32 => 0x7f80_0000,
        };
        bits & exponent != exponent
    }

    /// Scale `index` of the scales that lie one after the other in `from`.
    pub(super) fn get(self, from: &[u8], index: usize) -> f32 {
        let at = &from[index * self.bytes()..][..self.bytes()];
        self.decode(at.iter().rev().fold(0, |bits, &byte| bits << 8 | u32::from(byte)))
    }

    /// The bits of the nearest value of this type.
    pub(super) fn encode(self, scale: f32) -> u32 {
        match self {
            Self::F16 => u32::from(f16::from_f32(scale).to_bits()),
            Self::Bf16 => u32::from(bf16::from_f32(scale).to_bits()),
            Self::F32 => scale.to_bits(),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "16-bit types have 16 bits")]
    pub(super) fn decode(self, bits: u32) -> f32 {
        match self {
            Self::F16 => f16::from_bits(bits as u16).to_f32(),
            Self::Bf16 => bf16::from_bits(bits as u16).to_f32(),
            Self::F32 => f32::from_bits(bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_got_and_the_next_one_is_larger() {
        for scale_type in [ScaleType::F16, ScaleType::Bf16, ScaleType::F32] {
            let mut bytes = [0; 12];
            for (i, value) in [0.3, -2.5, 0.0].into_iter().enumerate() {
                let rounded = scale_type.round(value);
                assert!((rounded - value).abs() <= value.abs() / 256.0);
                scale_type.put(scale_type.encode(value), &mut bytes[i * scale_type.bytes()..]);
                assert_eq!(scale_type.get(&bytes, i), rounded);
            }
            assert!(scale_type.is_finite(scale_type.encode(-1.0)) && !scale_type.is_finite(scale_type.encode(f32::NAN)));
            assert!(!scale_type.is_finite(scale_type.encode(f32::NEG_INFINITY)));
            assert_eq!(ScaleType::F32.convert(scale_type, scale_type.encode(0.5)), 0.5f32.to_bits());
            let above = scale_type.next_up(1.0);
            assert!(above > 1.0 && scale_type.round((1.0 + above) / 2.0) == 1.0, "ties to even");
        }
    }
}
