//! Bytes of one tensor in each format that a plan counts. Knows no model.

use std::fmt;

/// How a tensor is held, with everything that is stored beside its codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeldFormat {
    F32,
    Bf16,
    /// e4m3 codes, one f32 scale per 128x128 block; a partial block has a whole scale (`weight_scale_inv` of hub checkpoints).
    Fp8Block,
    /// e4m3 codes, one BF16 scale per row (compressed-tensors `float-quantized`).
    Fp8Channel,
    /// 8-bit codes, one 16-bit scale per 32 along a row (GGUF Q8_0).
    Int8,
    /// 4-bit codes, one BF16 scale per `group` along a row; a partial group has a whole scale, and a row is whole 32-bit words
    /// (compressed-tensors `pack-quantized`, symmetric).
    Int4 {
        group: u64,
    },
}

const BLOCK: u64 = 128;
const INT8_GROUP: u64 = 32;

impl HeldFormat {
    /// Bits of one code.
    pub fn code_bits(self) -> u64 {
        match self {
            Self::F32 => 32,
            Self::Bf16 => 16,
            Self::Fp8Block | Self::Fp8Channel | Self::Int8 => 8,
            Self::Int4 { .. } => 4,
        }
    }

    /// Bytes of one scale; 0 where there are none.
    pub fn scale_bytes(self) -> u64 {
        match self {
            Self::F32 | Self::Bf16 => 0,
            Self::Fp8Block => 4,
            Self::Fp8Channel | Self::Int8 | Self::Int4 { .. } => 2,
        }
    }

    /// Bytes of the codes of a `[rows, cols]` tensor.
    pub fn code_bytes(self, rows: u64, cols: u64) -> u64 {
        match self {
            Self::Int4 { .. } => rows * cols.div_ceil(8) * 4,
            _ => rows * cols * self.code_bits() / 8,
        }
    }

    /// Scales of a `[rows, cols]` tensor.
    pub fn scales(self, rows: u64, cols: u64) -> u64 {
        match self {
            Self::F32 | Self::Bf16 => 0,
            Self::Fp8Block => rows.div_ceil(BLOCK) * cols.div_ceil(BLOCK),
            Self::Fp8Channel => rows,
            Self::Int8 => rows * cols.div_ceil(INT8_GROUP),
            Self::Int4 { group } => rows * cols.div_ceil(group.max(1)),
        }
    }

    /// Bytes of a `[rows, cols]` tensor.
    pub fn bytes(self, rows: u64, cols: u64) -> u64 {
        self.code_bytes(rows, cols) + self.scales(rows, cols) * self.scale_bytes()
    }
}

impl fmt::Display for HeldFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.write_str("f32"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Fp8Block => f.write_str("fp8"),
            Self::Fp8Channel => f.write_str("fp8-channel"),
            Self::Int8 => f.write_str("int8"),
            Self::Int4 { group } => write!(f, "int4-g{group}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_tensors() {
        // One routed expert's gate of GLM 5.2: codes, and 16 x 48 scales.
        assert_eq!(HeldFormat::Fp8Block.bytes(2048, 6144), 2048 * 6144 + 16 * 48 * 4);
        // Kimi K2.6: weight_packed i32 [2048, 896], weight_scale bf16 [2048, 224].
        assert_eq!(HeldFormat::Int4 { group: 32 }.bytes(2048, 7168), 2048 * 896 * 4 + 2048 * 224 * 2);
        assert_eq!(HeldFormat::Int4 { group: 128 }.bytes(2, 256), 256 + 2 * 2 * 2);
        assert_eq!(HeldFormat::Fp8Channel.bytes(10, 64), 640 + 20);
        assert_eq!(HeldFormat::Int8.bytes(3, 64), 3 * 2 * 34);
        assert_eq!(HeldFormat::Bf16.bytes(3, 5), 30);
        assert_eq!(HeldFormat::F32.bytes(1, 256), 1024);
    }

    #[test]
    fn what_is_partial_counts_whole() {
        // kv_a_proj_with_mqa of GLM 5.2: 576 rows are 4.5 blocks.
        assert_eq!(HeldFormat::Fp8Block.scales(576, 6144), 5 * 48);
        assert_eq!(HeldFormat::Int4 { group: 64 }.scales(1, 65), 2);
        // 9 codes are two words of 8.
        assert_eq!(HeldFormat::Int4 { group: 32 }.code_bytes(2, 9), 16);
        assert_eq!(HeldFormat::Int8.scales(2, 33), 4);
    }
}
