//! Facts about the engine as one consistent copy, for routing, metrics and the admin listener. Knows no metric names.

use millrace_core::{LaneId, Precision, Stage};

use crate::{PhaseTimes, TokenHistogram};

/// State of everything the engine owns, as of its last pass.
#[derive(Debug, Clone, Default)]
pub struct EngineSnapshot {
    pub lanes: Vec<LaneFacts>,
    pub pools: Vec<PoolFacts>,
    pub tenants: Vec<TenantFacts>,
    /// Connections to engines of other processes.
    pub links: Vec<LinkFacts>,
    pub counters: Counters,
    /// Of the steps that have ended, of all pools.
    pub step_tokens: TokenHistogram,
    /// On the engine's clock.
    pub taken_us: u64,
}

#[derive(Debug, Clone)]
pub struct LaneFacts {
    pub lane: LaneId,
    pub name: String,
    pub precision: Precision,
    /// Sequences of this lane that wait for their first step (also those preempted).
    pub waiting: u32,
    /// Sequences of this lane in prefill, hand-off or decode.
    pub running: u32,
    /// Of the decode pool.
    pub kv_used_per_mille: u32,
    /// Of the decode pool.
    pub free_pages: u32,
    pub total_pages: u32,
    /// Smoothed, from submission to first token.
    pub ttft_us: u32,
    /// Smoothed gap between tokens.
    pub itl_us: u32,
    pub speed: LaneSpeed,
    pub healthy: bool,
}

/// How fast a lane's pools were in their recent steps, whatever ran in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneSpeed {
    /// Prompt tokens a second while the prefill pool had its device; 0: no step yet.
    pub prefill_tokens_per_s: u32,
    /// Tokens a second of all sequences together while the decode pool had its device; 0: no step yet.
    pub decode_tokens_per_s: u32,
    /// Smoothed time of a step of the decode pool, from launch to end; 0: no step yet.
    pub decode_step_us: u32,
}

/// One end of a connection between two engines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkFacts {
    pub lane: String,
    /// Which end this is: `sends` or `receives` pages.
    pub end: &'static str,
    pub connected: bool,
    /// Which life of the other process it was connected to last.
    pub peer: Option<String>,
    /// Sequences that are on their way.
    pub open: usize,
    /// Pages sent, or landed.
    pub pages: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// How often it was made.
    pub connections: u64,
    /// Messages of another life, or for pages that were no longer reserved: they changed nothing.
    pub stale_messages: u64,
}

#[derive(Debug, Clone)]
pub struct PoolFacts {
    pub name: String,
    pub stage: Stage,
    pub total_pages: u32,
    pub free_pages: u32,
    pub quarantined_pages: u32,
    pub pinned_pages: u32,
    pub evictable_pages: u32,
    /// Under suspicion after a tag mismatch; quarantined once they are released, until they are readmitted.
    pub suspect_pages: u32,
    /// In the prefix tree, pinned or not.
    pub cached_pages: u32,
    /// Pages that left the prefix tree to make room.
    pub evicted_pages: u64,
    /// Input tokens of all steps since start.
    pub computed_tokens: u64,
    /// Prompt tokens that were looked up in the prefix tree.
    pub prefix_queried_tokens: u64,
    /// Of these: found.
    pub prefix_hit_tokens: u64,
    pub page_bytes: usize,
    /// Steps dispatched since start.
    pub steps: u64,
    /// Steps planned from an earlier answer of the schedule policy that still held.
    pub plans_reused: u64,
    /// Smoothed step time.
    pub step_us: u32,
    pub phases: PhaseTimes,
    /// Rows of the last step.
    pub last_rows: u32,
    pub healthy: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct TenantFacts {
    pub waiting: u32,
    pub running: u32,
    /// Prompt and output tokens, decayed.
    pub tokens_served: u64,
    /// In the prefix trees of all pools, brought in by this tenant.
    pub cached_pages: u32,
    /// Most that they may be; 0: no pool keeps prompts.
    pub page_quota: u32,
}

/// Counters since start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub finished: u64,
    pub aborted: u64,
    pub failed: u64,
    pub preemptions: u64,
    /// Tag checks of page-table entries that the backend was asked for.
    pub tag_checks: u64,
    /// Sequences stopped by a tag check.
    pub page_mismatches: u64,
    /// Sequences stopped because what the model computed for them was no number.
    pub not_finite: u64,
    pub hand_offs: u64,
    pub hand_off_pages: u64,
    pub hand_offs_aborted: u64,
}
