//! What the scheduler is told of a sequence. Knows tokens as numbers only; no text, no sampling parameters.

use std::sync::Arc;

use millrace_core::{FinishReason, LaneId, RequestId, SeqId, TenantId};
use millrace_kv::PrefixScope;

/// A sequence on its way in, or on its way back to prefill after a preemption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Unique in a scheduler as long as it is known there.
    pub seq: SeqId,
    pub request: RequestId,
    pub tenant: TenantId,
    pub lane: LaneId,
    /// Higher is more urgent.
    pub priority: i32,
    pub arrival_us: u64,
    /// Until when its first step must have begun.
    pub deadline_us: Option<u64>,
    pub prompt: Arc<[u32]>,
    /// Output tokens in all, over every preemption; at least 1.
    pub max_output: u32,
    /// Tokens that end the sequence and are not part of its output.
    pub stop_tokens: Arc<[u32]>,
    /// Output tokens that were generated before a preemption, published already.
    pub replay: Vec<u32>,
    pub preemptions: u32,
    /// Within which its prompt shares pages with others, if it does and the prefill pool has a prefix tree. The tenant pays
    /// for the pages that it brings in.
    pub scope: Option<PrefixScope>,
}

impl Entry {
    /// Prompt length in tokens; prompts past u32 never get past admission.
    pub(crate) fn prompt_tokens(&self) -> u32 {
        u32::try_from(self.prompt.len()).unwrap_or(u32::MAX)
    }

    /// Why a sequence ends with `token` as its output number `outputs` (from 1), if it does.
    pub(crate) fn finish_with(&self, token: u32, outputs: u32, max_context: u32) -> Option<FinishReason> {
        if self.stop_tokens.contains(&token) {
            return Some(FinishReason::Stop);
        }
        let full = self.prompt_tokens().saturating_add(outputs) >= max_context;
        (outputs >= self.max_output || full).then_some(FinishReason::Length)
    }
}
