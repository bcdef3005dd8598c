//! From the rows that draw a token to step records. Knows no model.

use super::StepBuffers;
use crate::Buffer;

/// `out[i] = x[last row of segment samplers[i].segment]`, f32 `[count, width]`.
#[derive(Debug, Clone)]
pub struct GatherRows {
    pub x: Buffer,
    pub step: StepBuffers,
    pub out: Buffer,
    pub count: usize,
    pub width: usize,
}

/// Draws one token per logits row by `samplers[i]` and writes `records[samplers[i].segment]`; segments that no sampler names
/// get a record with token 0 and status Ok. Flagged sequences get status StalePage, logits with NaN or +inf NotFinite.
#[derive(Debug, Clone)]
pub struct Sample {
    /// f32 `[count, vocab]`.
    pub logits: Buffer,
    pub step: StepBuffers,
    pub count: usize,
    pub sequences: usize,
    pub vocab: usize,
    /// Written into the records.
    pub step_number: u32,
}
