//! What an answer must keep to, checked before it is used. Pure functions; they do not know who answered.

use millrace_core::Stage;

use crate::{Ask, Budget, Choice, Decision, Forward, Plan, Refusal, Table, kind};

/// For how many steps an order may be kept at most.
pub const MAX_VALID_STEPS: u32 = 32;
const MAX_MESSAGE_BYTES: usize = 512;
const MAX_RETRY_AFTER_MS: u32 = 3_600_000;

/// Which rule an answer broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAnswer {
    #[error("{list} names row {row}, but there are {rows} rows")]
    OutOfRange { list: &'static str, row: u32, rows: u32 },
    #[error("{list} names row {row} twice")]
    Duplicate { list: &'static str, row: u32 },
    #[error("forwards to no eligible lane although there is one")]
    NoEligibleLane,
    #[error("holds a request that it has held as long as it may; it must forward or refuse now")]
    HeldTooLong,
    #[error("runs {run} sequences, the budget has {sequences}")]
    OverSequences { run: usize, sequences: u32 },
    #[error("plans {tokens} tokens, the budget has {budget}")]
    OverTokens { tokens: u64, budget: u32 },
    #[error("gives {tokens} token counts for {run} rows; give one each or none")]
    TokenCounts { tokens: usize, run: usize },
    #[error("gives row {row} {tokens} tokens; a row that runs takes {rule}")]
    RowTokens { row: u32, tokens: u32, rule: &'static str },
    #[error("valid for {valid_steps} steps, at most {MAX_VALID_STEPS}")]
    ValidSteps { valid_steps: u32 },
    #[error("answers {choices} choices to {asks} asks")]
    ChoiceCount { choices: usize, asks: usize },
}

/// What the operator allows a route to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteLimits {
    pub min_priority: i32,
    pub max_priority: i32,
    /// Longest hold; shorter than 1 ms is 1 ms.
    pub max_hold_ms: u32,
}

impl Default for RouteLimits {
    fn default() -> Self {
        Self { min_priority: -1_000, max_priority: 1_000, max_hold_ms: 1_000 }
    }
}

/// Checks a decision and brings it into the operator's bounds: ineligible lanes dropped, priority and waits clamped, the status
/// of a refusal mapped to 429, 503 or another 4xx, its message cut. A forward while no lane at all is eligible becomes 503.
///
/// # Errors
/// The rule that the decision broke.
pub fn validate_decision(decision: Decision, lanes: &Table, limits: &RouteLimits) -> Result<Decision, InvalidAnswer> {
    Ok(match decision {
        Decision::Forward(forward) => return validate_forward(forward, lanes, limits),
        Decision::Hold(ms) => Decision::Hold(ms.clamp(1, limits.max_hold_ms.max(1))),
        Decision::Refuse(refusal) => Decision::Refuse(bounded(refusal)),
    })
}

fn validate_forward(forward: Forward, lanes: &Table, limits: &RouteLimits) -> Result<Decision, InvalidAnswer> {
    check_rows("lanes", &forward.lanes, lanes.rows)?;
    if !(0..lanes.rows).any(|row| is_eligible(lanes, row)) {
        return Ok(Decision::Refuse(no_lane()));
    }
    let eligible: Vec<u32> = forward.lanes.into_iter().filter(|&row| is_eligible(lanes, row)).collect();
    if eligible.is_empty() {
        return Err(InvalidAnswer::NoEligibleLane);
    }
    let (low, high) = (limits.min_priority, limits.max_priority.max(limits.min_priority));
    let priority = forward.priority.map(|p| p.clamp(low, high));
    Ok(Decision::Forward(Forward { lanes: eligible, priority, reason: forward.reason }))
}

/// The host's answer where no lane takes requests.
pub(crate) fn no_lane() -> Refusal {
    Refusal { status: 503, retry_after_ms: Some(1_000), reason: 0, message: "no lane takes requests now".to_owned() }
}

/// Whether the host would take a lane: the column `ELIGIBLE`, or `HEALTHY` without it, or yes.
pub(crate) fn is_eligible(lanes: &Table, row: u32) -> bool {
    let row = row as usize;
    let column = lanes.column(kind::ELIGIBLE).or_else(|| lanes.column(kind::HEALTHY));
    column.is_none_or(|values| values.get(row).is_some_and(|&v| v == 1))
}

fn bounded(mut refusal: Refusal) -> Refusal {
    if !(400..500).contains(&refusal.status) {
        refusal.status = 503;
    }
    refusal.retry_after_ms = refusal.retry_after_ms.map(|ms| ms.min(MAX_RETRY_AFTER_MS));
    let end = refusal.message.floor_char_boundary(MAX_MESSAGE_BYTES);
    refusal.message.truncate(end);
    refusal
}

/// Checks a plan against its budget.
///
/// # Errors
/// The rule that the plan broke.
pub fn validate_plan(plan: &Plan, budget: &Budget, rows: &Table) -> Result<(), InvalidAnswer> {
    check_rows("run", &plan.run, rows.rows)?;
    check_rows("preempt", &plan.preempt, rows.rows)?;
    if plan.run.len() > budget.sequences as usize {
        return Err(InvalidAnswer::OverSequences { run: plan.run.len(), sequences: budget.sequences });
    }
    if plan.valid_steps > MAX_VALID_STEPS {
        return Err(InvalidAnswer::ValidSteps { valid_steps: plan.valid_steps });
    }
    let decode = budget.stage == Stage::Decode;
    let tokens = if plan.tokens.is_empty() {
        // In decode the default is one token a row; in prefill the host divides the budget itself.
        if decode { plan.run.len() as u64 } else { 0 }
    } else if plan.tokens.len() != plan.run.len() {
        return Err(InvalidAnswer::TokenCounts { tokens: plan.tokens.len(), run: plan.run.len() });
    } else {
        for (&row, &tokens) in plan.run.iter().zip(&plan.tokens) {
            if decode && tokens != 1 {
                return Err(InvalidAnswer::RowTokens { row, tokens, rule: "exactly 1 in decode" });
            }
            if tokens == 0 {
                return Err(InvalidAnswer::RowTokens { row, tokens, rule: "at least 1" });
            }
        }
        plan.tokens.iter().map(|&t| u64::from(t)).sum()
    };
    if tokens > u64::from(budget.tokens) {
        return Err(InvalidAnswer::OverTokens { tokens, budget: budget.tokens });
    }
    Ok(())
}

/// Checks that there is one choice per ask, each a row of `precisions`.
///
/// # Errors
/// The rule that the choices broke.
pub fn validate_choices(choices: &[Choice], asks: &[Ask], precisions: &Table) -> Result<(), InvalidAnswer> {
    if choices.len() != asks.len() {
        return Err(InvalidAnswer::ChoiceCount { choices: choices.len(), asks: asks.len() });
    }
    match choices.iter().find(|c| c.precision >= precisions.rows) {
        Some(choice) => Err(InvalidAnswer::OutOfRange { list: "choices", row: choice.precision, rows: precisions.rows }),
        None => Ok(()),
    }
}

/// Every row in range and named once.
fn check_rows(list: &'static str, named: &[u32], rows: u32) -> Result<(), InvalidAnswer> {
    if let Some(&row) = named.iter().find(|&&row| row >= rows) {
        return Err(InvalidAnswer::OutOfRange { list, row, rows });
    }
    // All in range, so a longer list than the table has a duplicate within its first rows + 1 entries; the marks stay bounded.
    let mut seen = vec![false; rows as usize];
    for &row in named {
        if let Some(mark) = seen.get_mut(row as usize)
            && std::mem::replace(mark, true)
        {
            return Err(InvalidAnswer::Duplicate { list, row });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
