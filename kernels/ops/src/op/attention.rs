//! Attention of a step's rows over their sequences' pages. Knows neither how keys came to be nor what is done with the result.

use super::{KvCache, StepBuffers};
use crate::Buffer;

/// Causal grouped-query attention of each row over its sequence's pages (positions 0..=its own).
#[derive(Debug, Clone)]
pub struct Attend {
    pub cache: KvCache,
    pub step: StepBuffers,
    pub layer: usize,
    /// f32 `[rows, stride]`; queries begin at column `query_offset`, head h at `+ h * head_dim`.
    pub x: Buffer,
    pub stride: usize,
    pub query_offset: usize,
    pub heads: usize,
    pub scale: f32,
    /// f32 `[rows, heads * head_dim]`; zeros for a flagged sequence.
    pub out: Buffer,
    pub rows: usize,
    pub sequences: usize,
}
