//! Mixture of experts: from router scores to each row's experts, rows to experts and back. Knows neither layers nor weights'
//! formats.
//!
//! ```text
//! RouteRows    logits -> per row top_k (expert, weight); rows grouped by expert
//! DispatchRows x [rows] -> [slots]            slot = one row at one expert; slots of an expert are neighbours
//! LinearExperts [slots] -> [slots]            each slot by its expert's weight
//! CombineRows  [slots] -> out [rows] +=       weighted sum over the row's slots, in the row's own order
//! ```

use std::sync::Arc;

use crate::{Buffer, Weight};

/// What a step's routing is kept in. `slots = rows * top_k`.
#[derive(Debug, Clone)]
pub struct ExpertBuffers {
    pub experts: usize,
    pub top_k: usize,
    /// u32 `[max_rows, top_k]`: expert of each choice, best first.
    pub ids: Buffer,
    /// f32 `[max_rows, top_k]`.
    pub weights: Buffer,
    /// u32 `[max_rows, top_k]`: slot of each choice.
    pub slots: Buffer,
    /// u32 `[max_rows * top_k]`: row of each slot.
    pub slot_rows: Buffer,
    /// u32 `[experts + 1]`: first slot of each expert, then their number.
    pub starts: Buffer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteScoring {
    Softmax,
    Sigmoid,
}

/// How experts are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouteRule {
    pub scoring: RouteScoring,
    /// Experts come in so many groups of equal size; 1: no grouping.
    pub groups: usize,
    /// Groups that may be chosen from: those with the highest sum of their two best scores.
    pub top_groups: usize,
    /// The chosen weights are divided by their sum (plus 1e-20 with sigmoid scores).
    pub normalize: bool,
    /// Factor on every weight, last.
    pub scale: f32,
}

/// Chooses each row's experts. Scores are `scoring(logits)`; with a bias, experts (and groups) are chosen by `score + bias` but
/// weighted by `score`. Ties go to the lowest index; NaN counts as the lowest score, and by the definition of softmax one NaN makes
/// all scores of its row NaN. Source: DeepSeek-V3, section 2.1.2.
#[derive(Debug, Clone)]
pub struct RouteRows {
    /// f32 `[rows, experts]`.
    pub logits: Buffer,
    /// f32 `[experts]`.
    pub bias: Option<Buffer>,
    pub rule: RouteRule,
    pub to: ExpertBuffers,
    pub rows: usize,
}

/// `out[slot] = x[slot_rows[slot]]`; x `[rows, width]`, out `[slots, width]`.
#[derive(Debug, Clone)]
pub struct DispatchRows {
    pub x: Buffer,
    pub by: ExpertBuffers,
    pub out: Buffer,
    pub rows: usize,
    pub width: usize,
}

/// `out[slot] = weights[expert of slot] * x[slot]`; x `[slots, weight.cols]`, out `[slots, weight.rows]`.
#[derive(Debug, Clone)]
pub struct LinearExperts {
    pub x: Buffer,
    /// One per expert, all of the same shape.
    pub weights: Arc<[Weight]>,
    pub by: ExpertBuffers,
    pub out: Buffer,
    pub rows: usize,
}

/// `out[r] += sum over j of weights[r][j] * x[slots[r][j]]`; x `[slots, width]`, out `[rows, width]`.
#[derive(Debug, Clone)]
pub struct CombineRows {
    pub x: Buffer,
    pub by: ExpertBuffers,
    pub out: Buffer,
    pub rows: usize,
    pub width: usize,
}
