//! The three decisions as traits. Mirrors `wit/`; field docs there are the contract for guests.

use millrace_core::{Stage, TenantId};

use crate::Table;

/// Why a policy's answer cannot be used. The native fallback answers that call instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy `{policy}`: {kind}: {detail}")]
pub struct PolicyFault {
    /// `name@version`, or the component's file before it has told its name.
    pub policy: String,
    pub kind: FaultKind,
    pub detail: String,
}

/// The label of a fault in metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FaultKind {
    #[error("trap")]
    Trap,
    #[error("timeout")]
    Timeout,
    /// No answer within [`Budget::answer_within_us`], which was less than the policy's own limit. Not held against the policy.
    #[error("late")]
    Late,
    #[error("memory")]
    Memory,
    #[error("invalid")]
    Invalid,
    /// The breaker is open or no instance is ready; the policy was not called.
    #[error("unavailable")]
    Unavailable,
}

impl FaultKind {
    /// Every kind, in the order of [`FaultKind::index`].
    pub const ALL: [Self; 6] = [Self::Trap, Self::Timeout, Self::Late, Self::Memory, Self::Invalid, Self::Unavailable];

    /// Its place in [`FaultKind::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Trap => 0,
            Self::Timeout => 1,
            Self::Late => 2,
            Self::Memory => 3,
            Self::Invalid => 4,
            Self::Unavailable => 5,
        }
    }
}

/// What every policy can do beside deciding. The defaults fit a policy that is plain native code.
pub trait Policy: Send {
    /// Asked for after an answer that could not be used: get ready for the next call, away from this thread. Must return at once;
    /// until it is ready the policy answers [`FaultKind::Unavailable`].
    fn recover(&mut self) {}

    /// Whether it wants to hear what became of requests.
    fn observes(&self) -> bool {
        false
    }

    /// Hears what became of requests: rows with the columns that `wit/feedback.wit` names.
    ///
    /// # Errors
    /// The policy trapped, was late or is not ready.
    fn observe(&mut self, _outcomes: &Table) -> Result<(), PolicyFault> {
        Ok(())
    }

    /// Whether it has memory of its own that can be carried over a swap.
    fn hands_over(&self) -> bool {
        false
    }

    /// Its memory, for whoever replaces it; at most [`crate::MAX_HANDOVER_BYTES`].
    ///
    /// # Errors
    /// The policy trapped, was late, is not ready or gave too much.
    fn save(&mut self) -> Result<Vec<u8>, PolicyFault> {
        Ok(Vec::new())
    }

    /// Takes the memory of whoever was before it. After an error it is as it was when it was made.
    ///
    /// # Errors
    /// The policy trapped, was late or did not understand it.
    fn restore(&mut self, _saved: &[u8]) -> Result<(), PolicyFault> {
        Ok(())
    }

    /// How long the last call took, if the policy measures that.
    fn last_call_ns(&self) -> Option<u64> {
        None
    }

    /// What the policy knows about itself, for status pages and metrics.
    fn report(&self) -> PolicyReport {
        PolicyReport::default()
    }
}

/// What a policy knows about itself.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PolicyReport {
    /// Linear memory of the instance in use; 0 for native code or while none is ready.
    pub memory_bytes: u64,
    /// Instances made after the first.
    pub rebuilds: u64,
    /// Log lines let through and dropped by the rate limit.
    pub log_lines: u64,
    pub log_lines_dropped: u64,
    /// Numbers that the policy registered.
    pub metrics: Vec<GuestMetric>,
}

/// A number that a policy publishes.
#[derive(Debug, Clone, PartialEq)]
pub struct GuestMetric {
    /// a-z, 0-9 and `_`.
    pub name: String,
    pub value: GuestValue,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GuestValue {
    Counter(u64),
    /// Finite.
    Gauge(f64),
}

/// What precision is asked for: one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    pub tenant: TenantId,
    pub model: String,
    pub prompt_tokens: u32,
    pub max_output_tokens: u32,
    pub priority: i32,
    pub streaming: bool,
    pub attributes: Vec<(String, String)>,
}

/// Row of `precisions`, and whether the host may take a cheaper one under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub precision: u32,
    pub may_downgrade: bool,
    pub reason: u32,
}

pub trait PrecisionPolicy: Policy {
    /// One choice per ask, in order.
    ///
    /// # Errors
    /// The policy trapped, was late or answered something that is no answer.
    fn choose(&mut self, asks: &[Ask], precisions: &Table, tenants: &Table) -> Result<Vec<Choice>, PolicyFault>;
}

/// What a route is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteRequest {
    pub tenant: TenantId,
    pub model: String,
    pub session: Option<u64>,
    pub prompt_tokens: u32,
    pub max_output_tokens: u32,
    pub priority: i32,
    pub slack_us: Option<u32>,
    pub streaming: bool,
    pub attributes: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Rows of `lanes`, best first; the host takes the first that is eligible.
    pub lanes: Vec<u32>,
    pub priority: Option<i32>,
    pub reason: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// 429, 503 or another 4xx; anything else becomes 503.
    pub status: u16,
    pub retry_after_ms: Option<u32>,
    pub reason: u32,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Forward(Forward),
    /// Ask again after so many milliseconds.
    Hold(u32),
    Refuse(Refusal),
}

pub trait RoutePolicy: Policy {
    /// # Errors
    /// As [`PrecisionPolicy::choose`].
    fn decide(&mut self, request: &RouteRequest, lanes: &Table, tenants: &Table) -> Result<Decision, PolicyFault>;
}

/// The bounds of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub stage: Stage,
    pub step: u64,
    pub tokens: u32,
    pub sequences: u32,
    pub free_pages: u32,
    pub total_pages: u32,
    pub page_tokens: u32,
    /// Recent step time.
    pub step_us: u32,
    /// Time for this answer where a running step leaves less than the policy's own limit; none: that limit alone. For the host,
    /// which measures it; policies do not see it.
    pub answer_within_us: Option<u32>,
}

/// An order of work, in row numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Rows to run in this step, first first. Rows that are not named wait.
    pub run: Vec<u32>,
    /// Tokens for each of them; empty: the host's default.
    pub tokens: Vec<u32>,
    /// Rows to preempt if pages run out, first victim first.
    pub preempt: Vec<u32>,
    /// For how many further steps this order may be used without asking, at most [`crate::MAX_VALID_STEPS`].
    pub valid_steps: u32,
    pub reason: u32,
}

pub trait SchedulePolicy: Policy {
    /// # Errors
    /// As [`PrecisionPolicy::choose`].
    fn plan_step(&mut self, budget: &Budget, rows: &Table, tenants: &Table) -> Result<Plan, PolicyFault>;
}
