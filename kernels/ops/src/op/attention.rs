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

/// The tokens that each row attends to: the first `min(limit, position + 1)` entries of its line, positions up to its own in
/// ascending order, none twice. What lies behind them is neither read nor written.
#[derive(Debug, Clone)]
pub struct Selection {
    /// u32 `[rows, limit]`.
    pub tokens: Buffer,
    pub limit: usize,
}

/// Causal attention over latents (MLA, absorbed): every head shares one latent per token, whose first `latent` elements are
/// compressed keys and values and whose last `rotary` are the rotary key.
///
/// `score[h][t] = scale * (latent_queries[r][h] . c[t][..latent] + rotary_queries[r][h] . c[t][latent..])`,
/// `out[r][h] = sum over t of softmax(score[h])[t] * c[t][..latent]`.
/// Source: DeepSeek-V2, section 2.1.2, with the key and value projections moved to the queries and the output.
#[derive(Debug, Clone)]
pub struct AttendLatent {
    /// Plane 0 is the latent: one head of `latent + rotary` elements.
    pub cache: KvCache,
    pub step: StepBuffers,
    pub layer: usize,
    /// f32 `[rows, heads * latent]`.
    pub latent_queries: Buffer,
    /// f32 `[rows, stride]`; the rotary query of head h begins at column `rotary_offset + h * rotary_step`.
    pub rotary_queries: Buffer,
    pub stride: usize,
    pub rotary_offset: usize,
    pub rotary_step: usize,
    pub heads: usize,
    pub latent: usize,
    pub rotary: usize,
    pub scale: f32,
    /// `None`: every position up to the row's own.
    pub selection: Option<Selection>,
    /// f32 `[rows, heads * latent]`; zeros for a flagged sequence.
    pub out: Buffer,
    pub rows: usize,
    pub sequences: usize,
}

/// Chooses for each row the `selection.limit` positions up to its own with the highest index score, ties to the lowest:
/// `score[t] = sum over h of head_weights[r][h] * max(0, queries[r][h] . k[t])`. Scores that are NaN count as the lowest.
/// Rows of a flagged sequence get their first positions, so that every line is valid.
/// Source: DeepSeek-V3.2's lightning indexer; its positive scale factors change no order and are left out.
#[derive(Debug, Clone)]
pub struct SelectTokens {
    pub cache: KvCache,
    pub step: StepBuffers,
    /// Plane of index keys (one head), and its layer.
    pub plane: usize,
    pub layer: usize,
    /// f32 `[rows, heads * width of the plane]`.
    pub queries: Buffer,
    /// f32 `[rows, heads]`.
    pub head_weights: Buffer,
    pub heads: usize,
    pub selection: Selection,
    pub rows: usize,
    pub sequences: usize,
}
