//! The rows that a schedule policy sees, as columns. Does not know how a scheduler came by the facts.

use millrace_policy::{Table, kind};

use crate::Entry;

/// As [`kind::STATE`] numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    Waiting = 0,
    Prefilling = 1,
    HandingOff = 2,
    Running = 3,
    Preempted = 4,
}

/// One sequence, as it will be once the step in flight has ended.
#[derive(Debug, Clone, Copy)]
pub struct RowFacts<'a> {
    pub entry: &'a Entry,
    pub state: RowState,
    /// Whose keys and values are in pages, or will be.
    pub computed_tokens: u32,
    /// Of these, found in the prefix cache; none where nobody knows.
    pub cached_tokens: Option<u32>,
    pub output_tokens: u32,
    pub pages_held: u32,
    /// New ones.
    pub pages_for_next_step: u32,
}

/// Microseconds as a fact: `u32::MAX` means absent, so it is never a value.
fn capped_us(us: u64) -> u32 {
    u32::try_from(us).unwrap_or(u32::MAX).min(u32::MAX - 1)
}

/// One row per sequence, in the given order: what a schedule policy is asked about.
#[must_use]
pub fn rows_table(now_us: u64, rows: &[RowFacts<'_>]) -> Table {
    let column = |fact: fn(&RowFacts<'_>) -> u32| rows.iter().map(fact).collect::<Vec<u32>>();
    let age = |row: &RowFacts<'_>| capped_us(now_us.saturating_sub(row.entry.arrival_us));
    let slack = |row: &RowFacts<'_>| row.entry.deadline_us.map_or(u32::MAX, |at| capped_us(at.saturating_sub(now_us)));
    let table = Table::new(rows.len())
        .with(kind::TENANT, column(|row| row.entry.tenant.0))
        // The bits of the i32; the kind says so.
        .with(kind::PRIORITY, column(|row| row.entry.priority as u32))
        .with(kind::AGE_US, rows.iter().map(age).collect())
        .with(kind::SLACK_US, rows.iter().map(slack).collect())
        .with(kind::STATE, column(|row| row.state as u32))
        .with(kind::PROMPT_TOKENS, column(|row| row.entry.prompt_tokens()))
        .with(kind::COMPUTED_TOKENS, column(|row| row.computed_tokens))
        .with(kind::OUTPUT_TOKENS, column(|row| row.output_tokens))
        .with(kind::MAX_OUTPUT_TOKENS, column(|row| row.entry.max_output))
        .with(kind::PAGES_HELD, column(|row| row.pages_held))
        .with(kind::PAGES_FOR_NEXT_STEP, column(|row| row.pages_for_next_step))
        .with(kind::PREEMPTIONS, column(|row| row.entry.preemptions));
    if rows.iter().all(|row| row.cached_tokens.is_none()) {
        return table;
    }
    table.with(kind::CACHED_TOKENS, column(|row| row.cached_tokens.unwrap_or(u32::MAX)))
}
