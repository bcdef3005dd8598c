//! What the driver tells a schedule policy, and what it makes of its answers: time to answer, plans that are used again, steps that
//! are bounded in time. On the strict backend, like the other tests of the whole engine.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Rig, Setup, expected};
use millrace_engine::{Event, PoolFacts};
use millrace_policy::{Budget, FairSchedule, Plan, Policy, PolicyFault, PolicyInfo, SchedulePolicy, Table};

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

/// Plans fairly, and says for how many further steps.
struct Valid {
    valid_steps: u32,
    calls: Arc<AtomicU32>,
}

impl Policy for Valid {}

impl SchedulePolicy for Valid {
    fn plan_step(&mut self, budget: &Budget, rows: &Table, tenants: &Table) -> Result<Plan, PolicyFault> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(Plan { valid_steps: self.valid_steps, ..FairSchedule.plan(budget, rows, tenants) })
    }
}

fn valid(valid_steps: u32) -> (Box<Valid>, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    (Box::new(Valid { valid_steps, calls: calls.clone() }), calls)
}

/// Four streams at once: their tokens, the policy's calls, the steps and plans that were used again.
fn streams(valid_steps: u32) -> (Vec<Vec<u32>>, u32, u64, u64) {
    let (policy, calls) = valid(valid_steps);
    let rig = Rig::planned_by(policy, Setup::default());
    let ids = &expected().0;
    let streams: Vec<_> = (0..4).map(|n| rig.submit(&ids[n..n + 9], 100).unwrap()).collect();
    let tokens = streams.iter().map(|stream| stream.finish().unwrap()).collect();
    rig.wait_until_empty(0);
    let pools = &rig.engine.snapshot().pools;
    let sum = |of: fn(&PoolFacts) -> u64| pools.iter().map(of).sum();
    (tokens, calls.load(Ordering::Relaxed), sum(|p| p.steps), sum(|p| p.plans_reused))
}

#[test]
fn a_plan_that_stays_valid_saves_calls_and_changes_no_token() {
    let (every_step, asked_always, steps, reused) = streams(0);
    assert!(u64::from(asked_always) >= steps && reused == 0, "{asked_always} calls, {steps} steps");
    let (tokens, asked, steps, reused) = streams(32);
    assert_eq!(tokens, every_step);
    assert!(reused > steps / 2 && u64::from(asked) < steps / 2, "{asked} calls, {steps} steps, {reused} reused");
}

#[test]
fn a_swap_ends_what_the_policy_before_it_said() {
    let (policy, _) = valid(32);
    let rig = Rig::planned_by(policy, Setup { delay: Duration::from_millis(3), ..Setup::default() });
    let stream = rig.submit(&expected().0, 100).unwrap();
    // The plan for decode's first step holds for the next 32; these are its first three.
    for _ in 0..4 {
        stream.next().unwrap();
    }
    let budgets = Arc::new(Mutex::new(Vec::new()));
    rig.schedule.swap(Box::new(Watching { thinks: Duration::ZERO, budgets: budgets.clone() }), PolicyInfo::native("next"));
    let steps = rig.engine.snapshot().pools[1].steps;
    stream.finish().unwrap();
    let first = budgets.lock().unwrap().first().expect("it is asked").step;
    // One step may run, one be drafted, and the snapshot be one behind; the plan before would have held for thirty.
    assert!(first <= steps + 3, "first asked for step {first}, swapped in during step {steps}");
}

/// Whether a stream decodes on the device of the prompts meanwhile.
#[derive(Clone, Copy, PartialEq)]
enum Company {
    Alone,
    OneDecodes,
}

/// Counts of steps of at most 16, 32, 64 and 128 tokens for two prompts of 96, one after the other, and their tokens. Decode steps and
/// the prompt of the company have no more than 8.
fn bounded(max_step_us: Option<u32>, company: Company) -> (Vec<u64>, [Vec<u32>; 2]) {
    let ids = &expected().0;
    let prompts = [[&ids[..], ids].concat(), [&ids[1..], ids, &ids[..1]].concat()];
    // Slow steps, so that the company has not ended before the prompts have.
    let delay = Duration::from_millis(1);
    let rig = Rig::start(Setup { chunk: 96, max_step_us, delay, ..Setup::default() });
    let other = (company == Company::OneDecodes).then(|| rig.submit(&ids[..8], 248).unwrap());
    other.iter().for_each(|stream| assert!(stream.next().is_ok() && stream.next().is_ok(), "it decodes"));
    let tokens = prompts.map(|prompt| rig.generate(&prompt, 8));
    let counts = rig.engine.snapshot().step_tokens.counts()[2..6].to_vec();
    other.iter().for_each(|stream| assert!(stream.events.try_iter().all(|e| matches!(e, Event::Token(_))), "it still does"));
    (counts, tokens)
}

/// Pages have 16 tokens. What was measured before is a step of 8 tokens, and a step is planned before the one before it has ended.
#[test]
fn a_prefill_step_that_keeps_others_waiting_is_bounded_in_time() {
    let (steps, tokens) = bounded(None, Company::OneDecodes);
    assert_eq!(steps, [0, 0, 0, 2], "whole prompts");
    // No step is so short: a page at a time.
    let (steps, by_pages) = bounded(Some(1), Company::OneDecodes);
    assert_eq!(steps, [12, 0, 0, 0]);
    // No step is so long: twice what is known, 32, then 64.
    let (steps, by_limit) = bounded(Some(60_000_000), Company::OneDecodes);
    assert_eq!(steps, [0, 4, 1, 0]);
    assert_eq!((&by_pages, &by_limit), (&tokens, &tokens));
}

#[test]
fn a_prefill_step_that_keeps_nobody_waiting_is_not() {
    let (steps, tokens) = bounded(Some(1), Company::Alone);
    assert_eq!(steps, [0, 0, 0, 2], "whole prompts");
    assert_eq!(tokens, bounded(None, Company::Alone).1);
}
