//! Facts as tables: one column per fact, one value per row. Mirrors `wit/types.wit`. Copies share the columns, so that a copy for
//! somebody who looks on costs the decision nothing.

use std::sync::Arc;

/// One fact for all rows. Units are part of the kind; an absent value is `u32::MAX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub kind: u32,
    pub values: Arc<Vec<u32>>,
}

/// Rows described by columns of equal length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    pub rows: u32,
    pub columns: Vec<Column>,
}

impl Table {
    pub fn new(rows: usize) -> Self {
        Self { rows: u32::try_from(rows).unwrap_or(u32::MAX), columns: Vec::new() }
    }

    /// Adds a column; one value per row.
    #[must_use]
    pub fn with(mut self, kind: u32, values: Vec<u32>) -> Self {
        debug_assert_eq!(values.len(), self.rows as usize, "column {kind}");
        self.columns.push(Column { kind, values: Arc::new(values) });
        self
    }

    pub fn column(&self, kind: u32) -> Option<&[u32]> {
        self.columns.iter().find(|c| c.kind == kind).map(|c| c.values.as_slice())
    }

    /// The value of a fact for a row, if the table has it.
    pub fn value(&self, kind: u32, row: usize) -> Option<u32> {
        self.column(kind).and_then(|values| values.get(row)).copied().filter(|&v| v != u32::MAX)
    }
}

/// Column kinds, one number for ever; see `wit/column-kinds.wit`, which a test compares with this list.
pub mod kind {
    // tenants
    pub const WEIGHT: u32 = 1;
    pub const TOKENS_SERVED: u32 = 2;
    pub const TENANT_RUNNING: u32 = 3;
    pub const TENANT_WAITING: u32 = 4;
    pub const CACHED_PAGES: u32 = 5;
    pub const PAGE_QUOTA: u32 = 6;
    /// 0 bulk, 1 standard, 2 gold.
    pub const TIER: u32 = 7;
    // scheduling
    pub const TENANT: u32 = 20;
    pub const PRIORITY: u32 = 21;
    pub const AGE_US: u32 = 22;
    pub const SLACK_US: u32 = 23;
    /// 0 waiting, 1 prefilling, 2 handing off, 3 running, 4 preempted.
    pub const STATE: u32 = 24;
    pub const PROMPT_TOKENS: u32 = 25;
    pub const COMPUTED_TOKENS: u32 = 26;
    pub const CACHED_TOKENS: u32 = 27;
    pub const OUTPUT_TOKENS: u32 = 28;
    pub const MAX_OUTPUT_TOKENS: u32 = 29;
    pub const PAGES_HELD: u32 = 30;
    pub const PAGES_FOR_NEXT_STEP: u32 = 31;
    pub const PREEMPTIONS: u32 = 32;
    // lanes
    pub const LANE_WAITING: u32 = 40;
    pub const LANE_RUNNING: u32 = 41;
    pub const KV_USED_PER_MILLE: u32 = 42;
    pub const PREFIX_HIT_TOKENS: u32 = 43;
    pub const TTFT_US: u32 = 44;
    pub const ITL_US: u32 = 45;
    pub const FREE_PAGES: u32 = 46;
    pub const HEALTHY: u32 = 47;
    pub const LANE_PRECISION: u32 = 48;
    /// 1 where the host would take the lane for this request: healthy, of a precision that it may have, allowed to the tenant.
    pub const ELIGIBLE: u32 = 49;
    /// Of its recent prefill steps, while they had the device; absent before the first.
    pub const LANE_PREFILL_TOKENS_PER_S: u32 = 50;
    /// Of its recent decode steps, all sequences together, while they had the device; absent before the first.
    pub const LANE_DECODE_TOKENS_PER_S: u32 = 51;
    /// Of a decode step, smoothed; absent before the first.
    pub const LANE_STEP_US: u32 = 52;
    // precisions
    pub const PREFILL_WEIGHT_BITS: u32 = 60;
    pub const DECODE_WEIGHT_BITS: u32 = 61;
    pub const KV_BITS: u32 = 62;
    pub const KL_MICRONAT: u32 = 63;
    /// Of a decode token against the dearest precision offered. Told by the bytes of the decode weights, a stand-in for speed.
    pub const RELATIVE_COST_PER_MILLE: u32 = 64;
    pub const LANES_READY: u32 = 65;
    /// KV in use, over the decode pools of this precision's lanes.
    pub const PRECISION_KV_USED_PER_MILLE: u32 = 66;
    /// Requests waiting in this precision's lanes.
    pub const PRECISION_WAITING: u32 = 67;
    /// Mean over its lanes that have measured it.
    pub const PRECISION_PREFILL_TOKENS_PER_S: u32 = 68;
    /// Mean over its lanes that have measured it.
    pub const PRECISION_DECODE_TOKENS_PER_S: u32 = 69;
    /// A number of [`crate::format`], as in the three behind it.
    pub const PREFILL_WEIGHT_FORMAT: u32 = 70;
    pub const DECODE_WEIGHT_FORMAT: u32 = 71;
    /// In decode, as [`KV_BITS`] is.
    pub const KV_FORMAT: u32 = 72;
    pub const PREFILL_KV_FORMAT: u32 = 73;
    // outcomes
    /// 0 the model ended it, 1 its length, 2 the client left, 3 it failed.
    pub const OUTCOME: u32 = 80;
    pub const OUTCOME_LANE: u32 = 81;
    /// As [`LANE_PRECISION`] numbers them.
    pub const OUTCOME_PRECISION: u32 = 82;
    pub const OUTCOME_QUEUED_US: u32 = 83;
    pub const OUTCOME_TTFT_US: u32 = 84;
    pub const OUTCOME_TOTAL_US: u32 = 85;
    /// The policy's own number.
    pub const OUTCOME_REASON: u32 = 86;
}
