//! A step that was planned ahead. Knows rows by (sequence, epoch, position); whether they still hold is seen at dispatch.

use millrace_core::SeqId;

/// What [`plan`](crate::DecodeScheduler::plan) chose, for [`dispatch`](crate::DecodeScheduler::dispatch). Dropping it is safe.
#[derive(Debug)]
pub struct Draft {
    pub(crate) generation: u64,
    pub(crate) rows: Vec<DraftRow>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct DraftRow {
    pub(crate) seq: SeqId,
    pub(crate) epoch: u32,
    pub(crate) start: u32,
    pub(crate) tokens: u32,
}

impl Draft {
    /// Number of the plan, from 1.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Leaves so many tokens at most, the first ones.
    pub(crate) fn cut(&mut self, mut tokens: u32) {
        self.rows.retain_mut(|row| {
            row.tokens = row.tokens.min(tokens);
            tokens -= row.tokens;
            row.tokens > 0
        });
    }
}
