//! The built-in schedule: who was served least for its weight runs first. Keeps nothing between steps; the counters are
//! the host's.
//!
//! Order: tokens served per weight, then priority, then age, then row. The host's native fallback decides the same, so that a
//! broken component changes nothing but speed; a test compares the two.

use millrace_policy_sdk::schedule::{Budget, Plan, Schedule, Stage};
use millrace_policy_sdk::{NoConfig, Policy, Table, kind, schedule_policy};

struct Fair;

const WAITING: u32 = 0;
const PREFILLING: u32 = 1;
const HANDING_OFF: u32 = 2;
const RUNNING: u32 = 3;

impl Policy for Fair {
    type Config = NoConfig;

    const WANTS: &'static [u32] = &[
        kind::WEIGHT,
        kind::TOKENS_SERVED,
        kind::TENANT,
        kind::PRIORITY,
        kind::AGE_US,
        kind::STATE,
        kind::PROMPT_TOKENS,
        kind::COMPUTED_TOKENS,
        kind::PAGES_HELD,
    ];

    fn new(_: NoConfig) -> Result<Self, Vec<String>> {
        Ok(Self)
    }
}

impl Schedule for Fair {
    fn plan_step(&mut self, budget: &Budget, rows: &Table, tenants: &Table) -> Plan {
        let facts = read(rows, tenants);
        let decode = budget.stage == Stage::Decode;
        let mut order: Vec<Key> =
            facts.iter().filter(|row| may_run(budget.stage, row.state)).map(|row| row.turn(decode)).collect();
        order.sort_unstable();
        order.truncate(budget.sequences as usize);
        let mut plan = Plan { run: order.iter().map(|key| key.2).collect(), preempt: victims(&facts, rows), ..Plan::default() };
        if decode {
            plan.run.truncate(budget.tokens as usize);
        } else {
            fill_chunks(&mut plan, budget.tokens, rows);
        }
        plan
    }
}

schedule_policy!(Fair);

struct Row {
    row: u32,
    /// Tokens served per weight, times 1,024: 42 bits.
    service: u64,
    priority: i32,
    age_us: u32,
    state: u32,
}

/// What rows are sorted by, made once a row: numbers that compare as what they stand for.
type Key = (u64, u64, u32);

impl Row {
    /// In decode who runs first, then who was served least, the greatest priority, the oldest.
    fn turn(&self, decode: bool) -> Key {
        let joins = u64::from(decode && self.state != RUNNING);
        (joins << 63 | self.service, u64::from(!self.urgency()) << 32 | u64::from(!self.age_us), self.row)
    }

    /// Who was served most, the least priority, the youngest; of equals the last row, told by its complement.
    fn sacrifice(&self) -> Key {
        (!self.service, u64::from(self.urgency()) << 32 | u64::from(self.age_us), !self.row)
    }

    /// Compares unsigned as the priority does signed.
    fn urgency(&self) -> u32 {
        self.priority.cast_unsigned() ^ 1 << 31
    }
}

fn read(rows: &Table, tenants: &Table) -> Vec<Row> {
    let (weight, served) = (tenants.column(kind::WEIGHT), tenants.column(kind::TOKENS_SERVED));
    let services: Vec<u64> =
        (0..tenants.rows).map(|t| (u64::from(served.or(t, 0)) << 10) / u64::from(weight.or(t, 1).max(1))).collect();
    let tenant = rows.column(kind::TENANT);
    let priority = rows.column(kind::PRIORITY);
    let age = rows.column(kind::AGE_US);
    let state = rows.column(kind::STATE);
    (0..rows.rows)
        .map(|row| Row {
            row,
            service: tenant.get(row).and_then(|t| services.get(t as usize).copied()).unwrap_or(0),
            priority: priority.signed_or(row, 0),
            age_us: age.or(row, 0),
            state: state.or(row, WAITING),
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
    let (prompt, computed) = (rows.column(kind::PROMPT_TOKENS), rows.column(kind::COMPUTED_TOKENS));
    if !prompt.is_present() {
        return;
    }
    let mut left = budget;
    for &row in &plan.run {
        if left == 0 {
            break;
        }
        let chunk = prompt.or(row, 0).saturating_sub(computed.or(row, 0)).max(1).min(left);
        plan.tokens.push(chunk);
        left -= chunk;
    }
    plan.run.truncate(plan.tokens.len());
}

/// Rows that hold pages: the most served tenant's first, of those the least urgent, then the youngest.
fn victims(facts: &[Row], rows: &Table) -> Vec<u32> {
    let pages = rows.column(kind::PAGES_HELD);
    let mut held: Vec<Key> = facts
        .iter()
        .filter(|r| r.state == PREFILLING || r.state == RUNNING)
        .filter(|r| !pages.is_present() || pages.or(r.row, 0) > 0)
        .map(Row::sacrifice)
        .collect();
    held.sort_unstable();
    held.iter().map(|key| !key.2).collect()
}
