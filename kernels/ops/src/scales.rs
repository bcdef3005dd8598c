//! Scales of quantized tensors, borrowed from a checkpoint in whichever float type it stores them. Knows no codes.

use half::{bf16, f16};

/// Scales, row-major, little-endian.
#[derive(Debug, Clone, Copy)]
pub enum ScaleData<'a> {
    F32(&'a [u8]),
    F16(&'a [u8]),
    Bf16(&'a [u8]),
}

impl ScaleData<'_> {
    /// How many scales there are.
    pub fn count(&self) -> usize {
        match self {
            Self::F32(bytes) => bytes.len() / 4,
            Self::F16(bytes) | Self::Bf16(bytes) => bytes.len() / 2,
        }
    }

    /// Scale `index`, exactly. Panics where there are not as many.
    pub fn value(&self, index: usize) -> f32 {
        match self {
            Self::F32(bytes) => {
                let b = &bytes[index * 4..index * 4 + 4];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
            Self::F16(bytes) => f16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]]).to_f32(),
            Self::Bf16(bytes) => bf16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]]).to_f32(),
        }
    }

    /// The bits of scale `index`, 16 or 32. Panics where there are not as many.
    pub fn bits(&self, index: usize) -> u32 {
        match self {
            Self::F32(_) => self.value(index).to_bits(),
            Self::F16(bytes) | Self::Bf16(bytes) => u32::from(u16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]])),
        }
    }

    /// All of them.
    pub fn values(&self) -> impl Iterator<Item = f32> {
        (0..self.count()).map(|index| self.value(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_is_read_exactly() {
        let of = |values: &[f32], bytes: fn(f32) -> Vec<u8>| values.iter().flat_map(|&v| bytes(v)).collect::<Vec<u8>>();
        let wanted = [0.5, -2.0, 0.0009765625];
        let (f32s, f16s, bf16s) = (
            of(&wanted, |v| v.to_le_bytes().to_vec()),
            of(&wanted, |v| f16::from_f32(v).to_le_bytes().to_vec()),
            of(&wanted, |v| bf16::from_f32(v).to_le_bytes().to_vec()),
        );
        for scales in [ScaleData::F32(&f32s), ScaleData::F16(&f16s), ScaleData::Bf16(&bf16s)] {
            assert_eq!(scales.values().collect::<Vec<f32>>(), wanted);
        }
        assert_eq!((ScaleData::F32(&f32s).bits(1), ScaleData::Bf16(&bf16s).bits(1)), (0xc000_0000, 0xc000));
        assert_eq!(ScaleData::F16(&f16s).bits(0), 0x3800);
    }
}
