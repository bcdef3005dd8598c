//! Operations on rows of activations: norms, products, rotary embedding, gates. Know neither pages nor sequences.

use std::sync::Arc;

use crate::{Buffer, Weight};

/// `out[r] = table[tokens[r]]`, f32 `[rows, cols]`.
#[derive(Debug, Clone)]
pub struct Embed {
    pub table: Weight,
    pub tokens: Buffer,
    pub out: Buffer,
    pub rows: usize,
}

/// `out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight`; `out` may be `x`.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    pub x: Buffer,
    /// f32 `[width]`.
    pub weight: Buffer,
    pub out: Buffer,
    pub rows: usize,
    pub width: usize,
    pub eps: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinearMode {
    Store,
    /// Adds to what `out` holds (residual).
    Add,
}

/// `out[r] (+)= weight * x[r] + bias`; x `[rows, weight.cols]`, out `[rows, weight.rows]`.
#[derive(Debug, Clone)]
pub struct Linear {
    pub x: Buffer,
    pub weight: Weight,
    /// f32 `[weight.rows]`.
    pub bias: Option<Buffer>,
    pub out: Buffer,
    pub rows: usize,
    pub mode: LinearMode,
}

/// Which channels of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairs {
    /// (i, i + rotary/2): Llama, Qwen, GLM-4.
    Halves,
    /// (2 * i, 2 * i + 1): DeepSeek, Kimi, GLM-5. The result stays where its inputs were.
    Adjacent,
}

/// Rotates `rotary` channels of each of `heads` heads, in place, by `positions[r] * frequencies[i]`, and multiplies them by
/// `amplitude`.
#[derive(Debug, Clone)]
pub struct Rope {
    /// f32 `[rows, stride]`; the channels of head h begin at column `offset + h * head_dim`.
    pub x: Buffer,
    pub stride: usize,
    pub offset: usize,
    pub heads: usize,
    /// Columns from one head's channels to the next one's.
    pub head_dim: usize,
    /// f32 `[rotary / 2]`, radians per position, scaling applied.
    pub frequencies: Buffer,
    pub rotary: usize,
    pub pairs: RopePairs,
    /// YaRN's factor on sines and cosines; 1 elsewhere.
    pub amplitude: f32,
    pub positions: Buffer,
    pub rows: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)`.
    Rms,
    /// `(x - mean(x)) / sqrt(variance(x) + eps)`.
    Layer,
}

/// Norms each of `heads` runs of `width` columns by itself, in place: `norm(run) * weight + bias`, one weight for all heads.
#[derive(Debug, Clone)]
pub struct NormHeads {
    /// f32 `[rows, stride]`; head h begins at column `offset + h * width`.
    pub x: Buffer,
    pub stride: usize,
    pub offset: usize,
    pub heads: usize,
    pub width: usize,
    pub kind: NormKind,
    /// f32 `[width]`.
    pub weight: Buffer,
    /// f32 `[width]`.
    pub bias: Option<Buffer>,
    pub eps: f32,
    pub rows: usize,
}

/// A product per head: `out[r][h] = weights[h] * x[r][h]`. All weights have the same shape.
#[derive(Debug, Clone)]
pub struct LinearHeads {
    /// f32 `[rows, x_stride]`; the input of head h begins at column `x_offset + h * x_step`.
    pub x: Buffer,
    pub x_stride: usize,
    pub x_offset: usize,
    pub x_step: usize,
    /// One per head.
    pub weights: Arc<[Weight]>,
    /// f32 `[rows, heads * weight.rows]`.
    pub out: Buffer,
    pub rows: usize,
}

/// `out[r][i] = silu(x[r][i]) * x[r][width + i]`; x `[rows, 2 * width]`, out `[rows, width]`.
#[derive(Debug, Clone)]
pub struct SiluMul {
    pub x: Buffer,
    pub out: Buffer,
    pub rows: usize,
    pub width: usize,
}
