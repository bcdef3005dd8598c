//! The native schedule: who was served least for its weight runs first. It keeps nothing between steps; the counters that make it
//! fair are the host's and come as facts.
//!
//! Order: tokens served per weight, then priority, then age, then row. The idea is that of the virtual token counter
//! (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024), with the counter kept by the host.

use std::cmp::Reverse;

use millrace_core::Stage;

use crate::{Budget, Plan, Policy, PolicyFault, SchedulePolicy, Table, kind};

/// Rows in fair order; victims from who was served most.
#[derive(Debug, Clone, Copy, Default)]
pub struct FairSchedule;

const WAITING: u32 = 0;
const PREFILLING: u32 = 1;
const HANDING_OFF: u32 = 2;
const RUNNING: u32 = 3;

/// One row of the table, read once.
#[derive(Clone, Copy)]
struct Row {
    row: u32,
    /// Tokens served per weight, times 1,024.
    service: u64,
    priority: i32,
    age_us: u32,
    state: u32,
}

impl FairSchedule {
    /// A valid plan for every budget and table.
    ///
    /// Prefill: all but rows that are handing off or running, chunks filled in order until the tokens are spent.
    /// Decode: running rows, then, where sequences are left, those that wait to run (again).
    /// Victims: rows that hold pages, the most served tenant's youngest first.
    #[must_use]
    pub fn plan(&self, budget: &Budget, rows: &Table, tenants: &Table) -> Plan {
        let facts = read(rows, tenants);
        let mut order: Vec<Row> = facts.iter().copied().filter(|row| may_run(budget.stage, row.state)).collect();
        let decode = budget.stage == Stage::Decode;
        // Row numbers make every key different, so the faster unstable sort gives the same order everywhere.
        order.sort_unstable_by_key(|r| (decode && r.state != RUNNING, r.service, Reverse(r.priority), Reverse(r.age_us), r.row));
        order.truncate(budget.sequences as usize);
        let mut plan = Plan { run: order.iter().map(|r| r.row).collect(), preempt: victims(&facts, rows), ..Plan::default() };
        if decode {
            plan.run.truncate(budget.tokens as usize);
        } else {
            fill_chunks(&mut plan, budget.tokens, rows);
        }
        plan
    }
}

impl Policy for FairSchedule {}

impl SchedulePolicy for FairSchedule {
    fn plan_step(&mut self, budget: &Budget, rows: &Table, tenants: &Table) -> Result<Plan, PolicyFault> {
        Ok(self.plan(budget, rows, tenants))
    }
}

fn read(rows: &Table, tenants: &Table) -> Vec<Row> {
    let services: Vec<u64> = (0..tenants.rows as usize)
        .map(|t| {
            let weight = tenants.value(kind::WEIGHT, t).unwrap_or(1).max(1);
            (u64::from(tenants.value(kind::TOKENS_SERVED, t).unwrap_or(0)) << 10) / u64::from(weight)
        })
        .collect();
    let tenant = rows.column(kind::TENANT);
    let priority = rows.column(kind::PRIORITY);
    let age = rows.column(kind::AGE_US);
    let state = rows.column(kind::STATE);
    let at = |column: Option<&[u32]>, row: u32| column.and_then(|c| c.get(row as usize)).copied().filter(|&v| v != u32::MAX);
    (0..rows.rows)
        .map(|row| Row {
            row,
            service: at(tenant, row).and_then(|t| services.get(t as usize)).copied().unwrap_or(0),
            // The bits of a signed number: -1 is all ones and must not be taken for an absent value.
            priority: priority.and_then(|c| c.get(row as usize)).map_or(0, |&v| v.cast_signed()),
            age_us: at(age, row).unwrap_or(0),
            state: at(state, row).unwrap_or(WAITING),
        })
        .collect()
}

fn may_run(stage: Stage, state: u32) -> bool {
    match stage {
        Stage::Prefill => state != HANDING_OFF && state != RUNNING,
        Stage::Decode => state != HANDING_OFF,
    }
}

/// Whole prompts where they fit, the rest of the budget to the next; rows past it do not run.
fn fill_chunks(plan: &mut Plan, budget: u32, rows: &Table) {
    let Some(prompt) = rows.column(kind::PROMPT_TOKENS) else { return };
    let computed = rows.column(kind::COMPUTED_TOKENS).unwrap_or(&[]);
    let at = |column: &[u32], row: u32| column.get(row as usize).copied().filter(|&v| v != u32::MAX).unwrap_or(0);
    let mut left = budget;
    let mut fitting = 0;
    for &row in &plan.run {
        if left == 0 {
            break;
        }
        let wanted = at(prompt, row).saturating_sub(at(computed, row)).max(1);
        let chunk = wanted.min(left);
        plan.tokens.push(chunk);
        left -= chunk;
        fitting += 1;
    }
    plan.run.truncate(fitting);
}

fn victims(facts: &[Row], rows: &Table) -> Vec<u32> {
    let pages = rows.column(kind::PAGES_HELD);
    let mut held: Vec<Row> = facts
        .iter()
        .copied()
        .filter(|r| r.state == PREFILLING || r.state == RUNNING)
        .filter(|r| pages.is_none_or(|p| p.get(r.row as usize).is_some_and(|&held| held > 0 && held != u32::MAX)))
        .collect();
    held.sort_unstable_by_key(|r| (Reverse(r.service), r.priority, r.age_us, Reverse(r.row)));
    held.iter().map(|r| r.row).collect()
}

#[cfg(test)]
mod tests;
