//! Priority without starvation: greater priorities first, but every `level_ms` of waiting counts as one priority more, so that
//! whoever waits long enough goes before whoever is urgent and new. For that a priority counts as no more than 256 either way, and
//! two are never further apart than the longest age that a host tells.

use std::cmp::Reverse;

use millrace_policy_sdk::schedule::{Budget, Plan, Schedule, runnable};
use millrace_policy_sdk::{Policy, Table, kind, schedule_policy};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Milliseconds of age that weigh as much as one priority.
    level_ms: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { level_ms: 5_000 }
    }
}

/// Beyond it all are alike, or whoever asks with the greatest number would always go first.
const MOST: i32 = 256;
/// What a priority is worth at most, either way. Ages end at 4,294 seconds, so that one of them outweighs twice this.
const MOST_US: i64 = 2_000_000_000;

struct Aging {
    config: Config,
}

impl Policy for Aging {
    type Config = Config;

    const WANTS: &'static [u32] = &[kind::PRIORITY, kind::AGE_US, kind::STATE, kind::PAGES_HELD];

    fn new(config: Config) -> Result<Self, Vec<String>> {
        if config.level_ms == 0 {
            return Err(vec!["level_ms is 0; age alone would decide, so use 1 or more milliseconds".into()]);
        }
        Ok(Self { config })
    }
}

impl Schedule for Aging {
    fn plan_step(&mut self, budget: &Budget, rows: &Table, _tenants: &Table) -> Plan {
        let (priority, age) = (rows.column(kind::PRIORITY), rows.column(kind::AGE_US));
        let level_us = i64::from(self.config.level_ms) * 1_000;
        // In microseconds, so that two of one priority go by age.
        let worth_us = |row: u32| {
            let levels = priority.signed_or(row, 0).clamp(-MOST, MOST);
            (i64::from(levels) * level_us).clamp(-MOST_US, MOST_US)
        };
        let urgency = |row: u32| worth_us(row) + i64::from(age.or(row, 0));
        let mut run = runnable(budget, rows);
        run.sort_unstable_by_key(|&row| (Reverse(urgency(row)), row));
        let held = rows.column(kind::PAGES_HELD);
        let preempt = run.iter().rev().copied().filter(|&row| held.or(row, 0) > 0).collect();
        run.truncate(budget.sequences.min(budget.tokens) as usize);
        Plan { run, preempt, ..Plan::default() }
    }
}

schedule_policy!(Aging);
