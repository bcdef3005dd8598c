//! Earliest deadline first: whoever has least time left runs next. A sequence without a deadline competes as if it had one,
//! `assumed_slack_ms` after its arrival, so it is overtaken for a while and not for ever.
//!
//! A sequence whose own deadline has passed cannot be saved by running it first, so it goes behind all others. In decode, where the
//! order changes slowly, an order is used for `keep_steps` further steps.

use std::cmp::Reverse;

use millrace_policy_sdk::schedule::{Budget, Plan, Schedule, Stage, runnable};
use millrace_policy_sdk::{Policy, Table, kind, schedule_policy};
use serde::Deserialize;

/// The policy's table: `config = { keep_steps = 4, assumed_slack_ms = 60000 }`.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// For how many further decode steps an order is used without asking, 0 to 32.
    keep_steps: u32,
    /// Time that a sequence without a deadline is given, from its arrival.
    assumed_slack_ms: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { keep_steps: 0, assumed_slack_ms: 60_000 }
    }
}

struct EarliestDeadline {
    config: Config,
}

/// Order of a sequence: those that can still be in time, then those that cannot; by the time that is left.
type Urgency = (bool, u64, Reverse<i32>, Reverse<u32>);

impl Policy for EarliestDeadline {
    type Config = Config;

    const WANTS: &'static [u32] = &[kind::SLACK_US, kind::AGE_US, kind::PRIORITY, kind::STATE, kind::PAGES_HELD];

    fn new(config: Config) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        if config.keep_steps > 32 {
            faults.push(format!("keep_steps is {}; the host keeps an order for 32 steps at most", config.keep_steps));
        }
        if config.assumed_slack_ms == 0 {
            faults.push("assumed_slack_ms is 0; give a sequence without a deadline some time".into());
        }
        if faults.is_empty() { Ok(Self { config }) } else { Err(faults) }
    }
}

impl Schedule for EarliestDeadline {
    fn plan_step(&mut self, budget: &Budget, rows: &Table, _tenants: &Table) -> Plan {
        let mut run: Vec<(Urgency, u32)> =
            runnable(budget, rows).into_iter().map(|row| (self.urgency(row, rows), row)).collect();
        run.sort_unstable();
        // Who has most time left gives way first, of those that hold pages.
        let held = rows.column(kind::PAGES_HELD);
        let preempt = run.iter().rev().map(|(_, row)| *row).filter(|&row| held.or(row, 0) > 0).collect();
        run.truncate(budget.sequences.min(budget.tokens) as usize);
        let valid_steps = if budget.stage == Stage::Decode { self.config.keep_steps } else { 0 };
        Plan { run: run.into_iter().map(|(_, row)| row).collect(), preempt, valid_steps, ..Plan::default() }
    }
}

schedule_policy!(EarliestDeadline);

impl EarliestDeadline {
    fn urgency(&self, row: u32, rows: &Table) -> Urgency {
        let age = rows.column(kind::AGE_US).or(row, 0);
        let slack = rows.column(kind::SLACK_US).get(row).map(u64::from);
        let assumed = (u64::from(self.config.assumed_slack_ms) * 1_000).saturating_sub(u64::from(age));
        let priority = rows.column(kind::PRIORITY).signed_or(row, 0);
        (slack == Some(0), slack.unwrap_or(assumed), Reverse(priority), Reverse(age))
    }
}
