//! Oldest first: whoever waits longest runs next.

use std::cmp::Reverse;

{{#feedback}}
use millrace_policy_sdk::feedback::{Feedback, outcome};
{{/feedback}}
{{#handover}}
use millrace_policy_sdk::handover::Handover;
{{/handover}}
use millrace_policy_sdk::schedule::{Budget, Plan, Schedule, runnable};
use millrace_policy_sdk::{Policy, Table, kind{{#feedback}}, policy_feedback{{/feedback}}{{#handover}}, policy_handover{{/handover}}, schedule_policy};
use serde::Deserialize;

/// The policy's table in the deployment: `config = { young_us = 1000 }`. A key that is not here is refused.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Ages are compared in steps of this many microseconds.
    young_us: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { young_us: 1 }
    }
}

struct Oldest {
    config: Config,
{{learnt}}
}

impl Policy for Oldest {
    type Config = Config;

    /// The host copies these columns and no others.
    const WANTS: &'static [u32] = &[kind::AGE_US, kind::STATE{{#feedback}}, kind::OUTCOME{{/feedback}}];

    fn new(config: Config) -> Result<Self, Vec<String>> {
        if config.young_us == 0 {
            return Err(vec!["young_us is 0; use 1 or more microseconds".into()]);
        }
        Ok(Self { config{{#beside}}, learnt: 0{{/beside}} })
    }
}

impl Schedule for Oldest {
    fn plan_step(&mut self, budget: &Budget, rows: &Table, _tenants: &Table) -> Plan {
{{#unheard}}
        self.learnt = self.learnt.wrapping_add(1);
{{/unheard}}
        let age = rows.column(kind::AGE_US);
        // Each engine sees all sequences; those of the other, or on their way, cannot run.
        let mut run = runnable(budget, rows);
        run.sort_by_key(|&row| (Reverse(age.or(row, 0) / self.config.young_us), row));
        run.truncate(budget.sequences.min(budget.tokens) as usize);
        // No token counts: the host's default. If pages run out, the youngest gives way first.
        let preempt = run.iter().rev().copied().collect();
        Plan { run, preempt, {{#beside}}reason: self.learnt, {{/beside}}..Plan::default() }
    }
}

schedule_policy!(Oldest);
