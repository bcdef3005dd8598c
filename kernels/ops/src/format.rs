//! Names of numeric formats: of tensors in a checkpoint, of weights prepared for a device, of KV pages.
//! Knows no layout of any device.

use std::fmt;

/// Format of one tensor as a checkpoint stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorFormat {
    F32,
    F16,
    Bf16,
    /// GGUF: blocks of 32 along a row, `f16 d` then 32 `i8`; value = d * q.
    Q8_0,
    /// GGUF: blocks of 32, `f16 d` then 16 bytes of nibbles; value = d * (q - 8).
    Q4_0,
    /// GGUF: blocks of 32, `f16 d`, `f16 m`, then 16 bytes of nibbles; value = d * q + m.
    Q4_1,
    /// e4m3 codes with one scale per 128x128 block; value = code * scale.
    Fp8Block,
    /// e4m3 codes with one scale per row; value = code * scale.
    Fp8Channel,
    /// e4m3 codes with one scale; value = code * scale.
    Fp8Tensor,
    /// compressed-tensors `pack-quantized`, symmetric: value = (nibble - 8) * scale, one scale per group along a row.
    Int4Group,
    /// The same with zero points: value = (nibble - zero) * scale, one scale and one 4-bit zero per group along a row.
    Int4ZeroPoint,
}

impl TensorFormat {
    /// Every format, for tables and tests.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Fp8Block,
        Self::Fp8Channel,
        Self::Fp8Tensor,
        Self::Int4Group,
        Self::Int4ZeroPoint,
    ];

    /// Whether values are codes with scales of their own.
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Whether values are e4m3 codes.
    pub fn is_fp8(self) -> bool {
        matches!(self, Self::Fp8Block | Self::Fp8Channel | Self::Fp8Tensor)
    }

    /// Whether values are 4-bit codes.
    pub fn is_four_bit(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q4_1 | Self::Int4Group | Self::Int4ZeroPoint)
    }
}

/// Format that a device holds a weight in after [`crate::Backend::prepare_weight`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    F32,
    Bf16,
    /// e4m3 codes with one scale per 128 columns of a row: per block, row or tensor, as the checkpoint has them, else per
    /// 128x128 block.
    Fp8,
    /// 8-bit codes with a scale (and minimum) per group of 32; 4-bit codes expand to it without loss.
    Int8,
    /// 4-bit codes with a scale (and minimum or zero point) per group, in the groups of the checkpoint where it has them,
    /// else 32.
    Int4,
}

/// How finely a device may round the activations that meet a weight whose format it multiplies in integers. Weights in floats
/// take them as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// 8 bits, in blocks with a scale.
    Coarse,
    /// 15 bits and a sign, for products that the result hangs on more than on others.
    Fine,
}

/// Format of keys and values in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// Reference only.
    F32,
    Bf16,
    /// e4m3 codes with one BF16 scale per token and KV head, stored at the end of the page's block; latents with one scale per
    /// layer that is not stored in pages.
    Fp8,
}

impl KvFormat {
    /// Bytes of one element, without scales.
    pub fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::Fp8 => 1,
        }
    }

    /// Whether numbers in this format may be handed on in `to`: as they are or narrowed. Widening a lossy format would claim a
    /// precision that the numbers do not have.
    pub fn becomes(self, to: Self) -> bool {
        self == to || matches!((self, to), (Self::F32, _) | (Self::Bf16, Self::Fp8))
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        })
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        })
    }
}

impl fmt::Display for TensorFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Fp8Block => "FP8 (128x128 blocks)",
            Self::Fp8Channel => "FP8 (per channel)",
            Self::Fp8Tensor => "FP8 (per tensor)",
            Self::Int4Group => "INT4 (pack-quantized)",
            Self::Int4ZeroPoint => "INT4 (pack-quantized, zero points)",
        })
    }
}
