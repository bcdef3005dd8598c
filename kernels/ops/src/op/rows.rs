//! Operations on rows of activations: norms, products, rotary embedding, gates. Know neither pages nor sequences.

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

/// Rotates pairs (i, i + rotary/2) of the first `rotary` channels of `heads` heads, in place, by `positions[r] * frequencies[i]`.
#[derive(Debug, Clone)]
pub struct Rope {
    /// f32 `[rows, stride]`; head h begins at column `offset + h * head_dim`.
    pub x: Buffer,
    pub stride: usize,
    pub offset: usize,
    pub heads: usize,
    pub head_dim: usize,
    /// f32 `[rotary / 2]`, radians per position, scaling applied.
    pub frequencies: Buffer,
    pub rotary: usize,
    pub positions: Buffer,
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
