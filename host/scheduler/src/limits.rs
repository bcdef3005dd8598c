//! The bounds of one stage, and the numbers it reports. Knows no TOML and no metrics format.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageLimits {
    /// Tokens of one step, over all of its rows.
    pub max_step_tokens: u32,
    /// Longest time that a step is to take that keeps others waiting, which a prefill step is cut to by what recent ones cost;
    /// `None`: tokens alone bound it.
    pub max_step_us: Option<u32>,
    /// Rows of one step.
    pub max_sequences: u32,
    /// Sequences that may hold pages.
    pub max_resident: u32,
    /// Sequences that may wait for their first pages (prefill); those that had some and lost them wait beside these.
    pub max_waiting: u32,
    /// Prompt and output tokens of one sequence. Never more than the pool holds, whatever is written here.
    pub max_context: u32,
    /// Pages that admission leaves free for sequences that already run (decode).
    pub watermark_pages: u32,
    /// After so many preemptions a sequence is taken only if no other can give pages (decode).
    pub max_preemptions: u32,
    /// Rows that a policy is shown: sequences with pages first, then the head of the waiting queue.
    pub max_view_rows: u32,
    /// What policies are told of the step time until `set_step_us`.
    pub step_us_hint: u32,
}

/// Sequences by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageCounts {
    pub waiting: u32,
    pub prefilling: u32,
    /// Prefill: done, pages still held. Decode: reserved, not attached yet.
    pub handing_off: u32,
    pub running: u32,
}

impl StageCounts {
    pub fn total(&self) -> u32 {
        self.waiting + self.prefilling + self.handing_off + self.running
    }
}

/// Events since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageCounters {
    pub steps: u64,
    /// Rows of drafts that had gone stale by their dispatch.
    pub stale_rows: u64,
    /// Decode: sequences sent back to prefill. Prefill: prompts reset because the pool had no page for any of them.
    pub preemptions: u64,
    pub page_mismatches: u64,
    pub not_finite: u64,
    /// Plans that an earlier answer of the policy served, which said that it may.
    pub plans_reused: u64,
    /// Plans in which the host's order replaced the policy's, which had let all work rest for too long.
    pub policy_overruled: u64,
    /// Entries of policy plans that named no such row, a row twice, or one that cannot run.
    pub policy_rows_ignored: u64,
    /// Input tokens of all steps' rows.
    pub computed_tokens: u64,
    /// Prefill: prompt tokens that were looked up in the prefix tree, once for each sequence that has a scope.
    pub prefix_queried_tokens: u64,
    /// Of these: found.
    pub prefix_hit_tokens: u64,
}
