//! Slots with policies that fail in every way: the fallback answers, counters add up, swaps are whole.

mod requests;
mod way_back;
mod witnesses;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_core::Stage;

use super::*;
use crate::{BreakerState, FaultKind, Policy, PolicyFault, kind};

/// Answers what it was made with.
struct Scripted {
    answer: fn(u32) -> Result<Plan, FaultKind>,
    calls: u32,
    recovered: Arc<AtomicU32>,
}

impl Policy for Scripted {
    fn recover(&mut self) {
        self.recovered.fetch_add(1, Ordering::Relaxed);
    }

    fn last_call_ns(&self) -> Option<u64> {
        Some(10)
    }
}

impl SchedulePolicy for Scripted {
    fn plan_step(&mut self, _: &Budget, _: &Table, _: &Table) -> Result<Plan, PolicyFault> {
        self.calls += 1;
        (self.answer)(self.calls).map_err(|kind| PolicyFault { policy: "scripted".into(), kind, detail: "as told".into() })
    }
}

const BREAKER: BreakerSettings =
    BreakerSettings { faults_to_open: 2, backoff_us: 100, max_backoff_us: 400, opens_to_roll_back: 2 };
const BUDGET: Budget = Budget {
    stage: Stage::Decode,
    step: 0,
    tokens: 8,
    sequences: 8,
    free_pages: 1,
    total_pages: 1,
    page_tokens: 16,
    step_us: 0,
    answer_within_us: None,
};

fn scripted(answer: fn(u32) -> Result<Plan, FaultKind>) -> (Box<dyn SchedulePolicy>, Arc<AtomicU32>) {
    let recovered = Arc::new(AtomicU32::new(0));
    (Box::new(Scripted { answer, calls: 0, recovered: recovered.clone() }), recovered)
}

fn named(name: &str) -> PolicyInfo {
    PolicyInfo::native(name)
}

fn slot(answer: fn(u32) -> Result<Plan, FaultKind>) -> (ScheduleSlot, Arc<AtomicU32>) {
    let (policy, recovered) = scripted(answer);
    (ScheduleSlot::new(policy, named("first"), BREAKER), recovered)
}

/// Rows 0 and 1 running; the fallback runs [1, 0], the policies here at most one row.
fn ask(slot: &ScheduleSlot, now_us: u64) -> Answer<Plan> {
    let rows = Table::new(2).with(kind::STATE, vec![3, 3]).with(kind::AGE_US, vec![1, 2]);
    slot.plan_step(now_us, &BUDGET, &rows, &Table::new(0))
}

fn good(_: u32) -> Result<Plan, FaultKind> {
    Ok(Plan { run: vec![0], ..Plan::default() })
}

#[test]
fn a_good_answer_is_used() {
    let (slot, recovered) = slot(good);
    let answer = ask(&slot, 0);
    assert_eq!((answer.value.run, answer.fault, answer.generation), (vec![0], None, 1));
    let status = slot.status();
    assert_eq!((status.total.calls, status.total.ok, status.total.fallbacks), (1, 1, 0));
    assert_eq!((status.total.latency.count, status.total.latency.sum_ns), (1, 10));
    assert_eq!(recovered.load(Ordering::Relaxed), 0);
}

#[test]
fn every_fault_is_answered_by_the_fallback_and_counted_by_kind() {
    for kind in FaultKind::ALL {
        let answer = match kind {
            FaultKind::Trap => |_| Err(FaultKind::Trap),
            FaultKind::Timeout => |_| Err(FaultKind::Timeout),
            FaultKind::Late => |_| Err(FaultKind::Late),
            FaultKind::Memory => |_| Err(FaultKind::Memory),
            FaultKind::Invalid => |_| Ok(Plan { run: vec![2], ..Plan::default() }),
            FaultKind::Unavailable => |_| Err(FaultKind::Unavailable),
        };
        let (slot, recovered) = slot(answer);
        let answer = ask(&slot, 0);
        assert_eq!((answer.value.run, answer.fault), (vec![1, 0], Some(kind)));
        let status = slot.status();
        assert_eq!((status.total.faults.of(kind), status.total.faults.total(), status.total.fallbacks), (1, 1, 1));
        let ready = kind == FaultKind::Unavailable;
        assert_eq!(status.last_error.is_none(), ready);
        assert_eq!(status.total.latency.count, u64::from(!ready), "what was not called took no time");
        assert_eq!(recovered.load(Ordering::Relaxed), u32::from(!ready));
    }
}

/// Asks with a budget of time.
fn ask_within(slot: &ScheduleSlot, now_us: u64, within_us: Option<u32>) -> Answer<Plan> {
    let rows = Table::new(2).with(kind::STATE, vec![3, 3]).with(kind::AGE_US, vec![1, 2]);
    let budget = Budget { answer_within_us: within_us, ..BUDGET };
    slot.plan_step(now_us, &budget, &rows, &Table::new(0))
}

/// Needs more than 1 ms, whatever it is given; counts the calls in which it did not have it.
#[derive(Default)]
struct Slow(Arc<AtomicU32>);

impl Policy for Slow {}

impl SchedulePolicy for Slow {
    fn plan_step(&mut self, budget: &Budget, _: &Table, _: &Table) -> Result<Plan, PolicyFault> {
        if budget.answer_within_us.is_some_and(|within| within <= 1_000) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        match budget.answer_within_us {
            Some(within) if within <= 1_000 => {
                Err(PolicyFault { policy: "slow".into(), kind: FaultKind::Late, detail: "as told".into() })
            }
            _ => Ok(Plan { run: vec![0], ..Plan::default() }),
        }
    }
}

/// The breaker opens at the second fault, but a step that is short is no fault of the policy's.
#[test]
fn a_slow_policy_on_short_steps_keeps_its_place() {
    let slow = Slow::default();
    let held_up = slow.0.clone();
    let slot = ScheduleSlot::new(Box::new(slow), named("slow"), BREAKER);
    let mut asked = 0;
    for now in 0..4_000 {
        let answer = ask_within(&slot, now, Some(1_000));
        assert_eq!((answer.value.run, answer.fault), (vec![1, 0], Some(FaultKind::Late)));
        // Between them steps that leave time, and an idle engine.
        for within in [Some(1_001), None] {
            let answer = ask_within(&slot, now, within);
            assert_eq!((answer.value.run, answer.fault), (vec![0], None));
            asked += 1;
        }
    }
    let status = slot.status();
    assert_eq!((status.breaker, status.generation, status.rollbacks), (BreakerState::Closed, 1, 0));
    assert_eq!((status.total.ok, status.total.faults.of(FaultKind::Late), status.total.calls), (asked, 4_000, 12_000));
    assert!(status.last_error.is_some_and(|(_, text)| text.contains("late")));
    // Spared 1, 2, 4 .. 1,024 calls, each behind one that was made.
    assert_eq!(held_up.load(Ordering::Relaxed), 13);
}

/// However often in a row, and although nothing else is asked in between.
#[test]
fn being_late_for_a_step_never_opens_the_breaker() {
    let slot = ScheduleSlot::new(Box::new(Slow::default()), named("slow"), BREAKER);
    for now in 0..100 {
        assert_eq!(ask_within(&slot, now, Some(1_000)).fault, Some(FaultKind::Late));
    }
    assert_eq!((slot.status().breaker, slot.status().rollbacks), (BreakerState::Closed, 0));
    assert_eq!(ask_within(&slot, 100, Some(1_001)).fault, None);
}

/// What was too short once is tried as ever after an answer within it.
#[test]
fn a_policy_that_became_faster_is_asked_again() {
    let (slot, _) = slot(|call| if call <= 3 || call == 5 { Err(FaultKind::Late) } else { good(call) });
    let used = (0..15).filter(|_| ask_within(&slot, 0, Some(1_000)).fault.is_none()).count();
    // Late, spared once, late, spared twice, late, spared four times, in time; late, spared once, and in time from then on.
    assert_eq!((used, slot.status().total.ok), (3, 3));
}

/// Whoever listens hears of each fault that is one, and whose it was.
#[test]
fn faults_of_decisions_are_told_with_their_generation() {
    let told: Arc<std::sync::Mutex<Vec<(u64, FaultKind)>>> = Arc::default();
    let log = told.clone();
    let (first, _) = slot(|_| Err(FaultKind::Trap));
    let slot = first.telling_faults_to(move |generation, fault| log.lock().unwrap().push((generation, fault.kind)));
    ask(&slot, 0);
    slot.swap(scripted(|_| Err(FaultKind::Unavailable)).0, named("absent"));
    ask(&slot, 0);
    slot.swap(scripted(|_| Ok(Plan { run: vec![2], ..Plan::default() })).0, named("wrong"));
    ask(&slot, 0);
    assert_eq!(*told.lock().unwrap(), [(1, FaultKind::Trap), (3, FaultKind::Invalid)]);
}

#[test]
fn what_the_policys_own_limit_ends_is_a_fault_on_any_step() {
    let (slot, _) = slot(|_| Err(FaultKind::Timeout));
    assert_eq!(ask_within(&slot, 0, Some(1_000)).fault, Some(FaultKind::Timeout));
    assert_eq!(ask_within(&slot, 0, None).fault, Some(FaultKind::Timeout));
    assert_eq!(slot.status().breaker, BreakerState::Open { until_us: 100 });
}

#[test]
fn a_panic_is_a_trap() {
    let (slot, _) = slot(|_| panic!("bug"));
    assert_eq!(ask(&slot, 0).fault, Some(FaultKind::Trap));
    assert_eq!(ask(&slot, 0).value.run, [1, 0]);
}

#[test]
fn the_breaker_rests_a_failing_policy_and_tries_again() {
    let (slot, _) = slot(|call| if call <= 2 { Err(FaultKind::Trap) } else { good(call) });
    ask(&slot, 0);
    ask(&slot, 10);
    assert_eq!(slot.status().breaker, BreakerState::Open { until_us: 110 });
    let answer = ask(&slot, 109);
    assert_eq!((answer.value.run, answer.fault), (vec![1, 0], Some(FaultKind::Unavailable)));
    assert_eq!(ask(&slot, 110).fault, None);
    let status = slot.status();
    assert_eq!(status.breaker, BreakerState::Closed);
    assert_eq!((status.total.calls, status.total.ok, status.total.faults.of(FaultKind::Unavailable)), (4, 1, 1));
}

#[test]
fn without_a_way_back_the_fallback_goes_on_answering() {
    let (slot, _) = slot(|_| Err(FaultKind::Trap));
    for now in 0..5_000 {
        assert_eq!(ask(&slot, now).value.run, [1, 0]);
    }
    let status = slot.status();
    assert_eq!((status.generation, status.total.calls, status.total.fallbacks), (1, 5_000, 5_000));
    // 2 to open, then one trial after 100, 200, 400, 400 ... microseconds.
    assert!((10..20).contains(&status.total.faults.of(FaultKind::Trap)), "{:?}", status.total.faults);
}

#[test]
fn decisions_and_swaps_from_many_threads_lose_no_call() {
    let (slot, _) = slot(good);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    assert!(ask(&slot, 0).value.run.len() <= 2);
                }
            });
        }
        scope.spawn(|| {
            for turn in 0..200 {
                let answer = if turn % 2 == 0 { good } else { |_| Err(FaultKind::Trap) };
                slot.swap(scripted(answer).0, named("next"));
            }
        });
    });
    let status = slot.status();
    assert_eq!((status.total.calls, status.swaps), (2_000, 200));
    assert_eq!(status.total.ok + status.total.faults.total(), 2_000);
    assert_eq!(status.total.fallbacks, status.total.faults.total());
}

/// Holds whatever it is asked about, but for the third time.
struct Holding(u32);

impl Policy for Holding {}

impl RoutePolicy for Holding {
    fn decide(&mut self, _: &RouteRequest, _: &Table, _: &Table) -> Result<Decision, PolicyFault> {
        self.0 += 1;
        Ok(if self.0 == 3 { forward(1) } else { Decision::Hold(5) })
    }
}

fn forward(lane: u32) -> Decision {
    Decision::Forward(crate::Forward { lanes: vec![lane], priority: None, reason: 0 })
}

#[test]
fn a_request_that_was_held_as_long_as_may_be_is_not_held_again() {
    let slot = RouteSlot::new(Box::new(Holding(0)), named("holding"), BREAKER, RouteLimits::default());
    let lanes = Table::new(2).with(kind::LANE_RUNNING, vec![0, 3]);
    let request = RouteRequest {
        tenant: millrace_core::TenantId(0),
        model: "m".into(),
        prompt_tokens: 1,
        max_output_tokens: 1,
        priority: 0,
        session: None,
        slack_us: None,
        streaming: false,
        attributes: Vec::new(),
    };
    let none = Table::new(0);
    let answer = slot.decide(0, &request, &lanes, &none);
    assert_eq!((answer.value, answer.fault), (Decision::Hold(5), None));
    let answer = slot.decide_at_last(0, &request, &lanes, &none);
    assert_eq!(answer.fault, Some(FaultKind::Invalid), "held against the policy");
    assert!(matches!(answer.value, Decision::Forward(forward) if forward.lanes.first() == Some(&0)), "the host's own route");
    let (_, text) = slot.status().last_error.expect("an error");
    assert!(text.contains("held as long as it may"), "{text}");
    let answer = slot.decide_at_last(0, &request, &lanes, &none);
    assert_eq!((answer.value, answer.fault), (forward(1), None), "what it decides at last is taken");
}
