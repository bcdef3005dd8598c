//! The step as plain data: what goes to the engine and what comes back. Knows no device.

use millrace_core::{SeqId, Stage, TenantId};
use millrace_kv::{PageRef, TagChange};
use millrace_policy::{Budget, Plan, Table};

/// Asks the schedule policy: budget, rows, tenants. It never fails; whoever wraps a policy answers with its fallback.
pub type PolicyCall<'a> = dyn FnMut(&Budget, &Table, &Table) -> Plan + 'a;

/// One step of one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPlan {
    /// From 1, without gaps.
    pub step: u64,
    pub stage: Stage,
    pub rows: Vec<PlanRow>,
    /// To be applied before anything of this step touches a page. At most one per page.
    pub changes: Vec<TagChange>,
    /// Number of the plan that it came from.
    pub draft: u64,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRow {
    pub seq: SeqId,
    /// Which stay of the sequence in this scheduler; comes back in the outcome.
    pub epoch: u32,
    pub tenant: TenantId,
    /// Position of the first input token.
    pub start: u32,
    /// Input ids of positions `start ..`.
    pub tokens: Vec<u32>,
    /// Whether the last position's logits are sampled; the drawn token has position `start + tokens.len()`.
    pub sample: bool,
    /// Pages of positions `0 .. start + tokens.len()`.
    pub table: Vec<PageRef>,
    /// Tokens that count as service to the tenant; what is computed a second time does not.
    pub billed_tokens: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeStatus {
    Ok,
    /// A page of its table did not carry its tag.
    StalePage,
    /// NaN or infinity among its logits.
    NotFinite,
}

/// What became of one row. A row without an outcome did not run and is planned again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub seq: SeqId,
    pub epoch: u32,
    /// The drawn token; without meaning where the row did not sample.
    pub token: u32,
    pub status: OutcomeStatus,
}
