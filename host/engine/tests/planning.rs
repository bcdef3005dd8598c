//! What the driver tells a schedule policy, and what it makes of its answers: time to answer, plans that are used again, steps that
//! are bounded in time. On the strict backend, like the other tests of the whole engine.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Rig, Setup, expected};
use millrace_policy::{Budget, FairSchedule, Plan, Policy, PolicyFault, SchedulePolicy, Table};

/// Plans fairly, takes its time, and remembers what it was told.
struct Watching {
    thinks: Duration,
    budgets: Arc<Mutex<Vec<Budget>>>,
}

impl Policy for Watching {}

impl SchedulePolicy for Watching {
    fn plan_step(&mut self, budget: &Budget, rows: &Table, tenants: &Table) -> Result<Plan, PolicyFault> {
        self.budgets.lock().unwrap().push(*budget);
        std::thread::sleep(self.thinks);
        Ok(FairSchedule.plan(budget, rows, tenants))
    }
}

fn watched(thinks: Duration, setup: Setup) -> (Rig, Arc<Mutex<Vec<Budget>>>) {
    let budgets = Arc::new(Mutex::new(Vec::new()));
    (Rig::planned_by(Box::new(Watching { thinks, budgets: budgets.clone() }), setup), budgets)
}

/// The policy thinks for far longer than a step takes. What it is granted follows the device's time, not its own, although the driver
/// sees the end of a step only once the policy has answered.
#[test]
fn a_policy_may_take_what_the_running_step_leaves() {
    const THINKS_US: u32 = 60_000;
    let (rig, budgets) = watched(Duration::from_micros(THINKS_US.into()), Setup::default());
    assert_eq!(rig.generate(&expected().0, 12), expected().1);
    let granted: Vec<Option<u32>> = budgets.lock().unwrap().iter().map(|budget| budget.answer_within_us).collect();
    assert_eq!(granted[0], None, "nothing runs yet: its own limit alone");
    let cut: Vec<u32> = granted.iter().flatten().copied().collect();
    assert!(cut.len() > 5 && cut.iter().all(|&within| within >= 1_000), "{granted:?}");
    assert!(cut.iter().min().is_some_and(|&least| least < THINKS_US / 2), "{granted:?}");
}
