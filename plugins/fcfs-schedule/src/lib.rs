//! First come, first served: the oldest request first, whoever sent it. What runs in decode stays before what would join.
//! No counters, no tenants: the order that a light tenant suffers under, and the one to compare others with.

use std::cmp::Reverse;

use millrace_policy_sdk::schedule::{Budget, Plan, Schedule, Stage, runnable, sequence};
use millrace_policy_sdk::{NoConfig, Policy, Table, kind, schedule_policy};

struct FirstCome;

impl Policy for FirstCome {
    type Config = NoConfig;

    const WANTS: &'static [u32] = &[kind::AGE_US, kind::STATE, kind::PAGES_HELD];

    fn new(_: NoConfig) -> Result<Self, Vec<String>> {
        Ok(Self)
    }
}

impl Schedule for FirstCome {
    fn plan_step(&mut self, budget: &Budget, rows: &Table, _tenants: &Table) -> Plan {
        let (age, state) = (rows.column(kind::AGE_US), rows.column(kind::STATE));
        let decode = budget.stage == Stage::Decode;
        let mut run = runnable(budget, rows);
        let joins = |row: u32| decode && state.or(row, sequence::WAITS) != sequence::RUNS;
        run.sort_by_key(|&row| (joins(row), Reverse(age.or(row, 0)), row));
        // Who came last gives way first.
        let held = rows.column(kind::PAGES_HELD);
        let mut preempt: Vec<u32> = run.iter().copied().filter(|&row| held.or(row, 0) > 0).collect();
        preempt.sort_by_key(|&row| (age.or(row, 0), Reverse(row)));
        run.truncate(budget.sequences.min(budget.tokens) as usize);
        Plan { run, preempt, ..Plan::default() }
    }
}

schedule_policy!(FirstCome);
