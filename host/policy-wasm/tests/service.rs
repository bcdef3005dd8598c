//! Policies that behave: what imports give, what outlives an instance, swaps while decisions run.

mod support;

use millrace_core::Stage;
use millrace_policy::{
    BreakerSettings, BreakerState, Budget, Decision, FaultKind, Forward, GuestValue, RouteLimits, RouteSlot, ScheduleSlot, Table,
    kind,
};
use millrace_policy_wasm::{PolicyKind, PolicyLimits, PolicyOptions, builtin};
use support::{budget, engine, guests, plan, request, schedule_slot, slot_of, wait_until_rebuilt};

#[test]
fn reverse_order_within_the_budget() {
    let slot = schedule_slot("reverse-schedule");
    assert_eq!(plan(&slot, 5).value.run, [3, 2, 1, 0]);
    let mut tight = budget(Stage::Prefill, 5);
    tight.sequences = 3;
    let answer = slot.plan_step(0, &tight, &Table::new(6), &Table::new(0));
    assert_eq!((answer.value.run, answer.fault), (vec![5, 4, 3], None));
    let mut tight = budget(Stage::Decode, 5);
    tight.tokens = 2;
    let answer = slot.plan_step(0, &tight, &Table::new(6), &Table::new(0));
    assert_eq!((answer.value.run, answer.fault), (vec![5, 4], None));
}

#[test]
fn the_other_lane() {
    let loaded = support::load(&guests::component("other-lane-route"), PolicyKind::Route, "other").expect("loads");
    let route = loaded.route().expect("an instance");
    let slot = RouteSlot::new(route, loaded.info().clone(), support::HELD_CLOSED, RouteLimits::default());
    let lanes = Table::new(4).with(kind::LANE_RUNNING, vec![0, 0, 9, 9]).with(kind::ELIGIBLE, vec![1, 1, 1, 0]);
    let answer = slot.decide(0, &request(0), &lanes, &Table::new(0));
    let expected = Decision::Forward(Forward { lanes: vec![2, 1, 0], priority: None, reason: 0 });
    assert_eq!((answer.value, answer.fault), (expected, None));
}

/// The running step leaves 1 ms, the policy needs some five hundred and may take ten seconds: late, and no fault; an idle engine waits.
/// The guest is that slow because a busy machine may end it some hundred milliseconds after its time; an answer that is there by then is taken.
#[test]
fn a_slow_policy_is_late_for_a_short_step_and_in_time_for_an_idle_engine() {
    let limits = PolicyLimits { deadline_us: 10_000_000, setup_us: 10_000_000, ..PolicyLimits::of(PolicyKind::Schedule) };
    let options = PolicyOptions { limits, ..PolicyOptions::new("slow", PolicyKind::Schedule) };
    let loaded = engine().load(&guests::component("slow-schedule"), PolicyKind::Schedule, &options).expect("loads");
    // A breaker that the first fault would open for good.
    let breaker = BreakerSettings { faults_to_open: 1, backoff_us: u64::MAX, ..BreakerSettings::default() };
    let slot = ScheduleSlot::new(loaded.schedule().expect("an instance"), loaded.info().clone(), breaker);
    let ask = |within_us| {
        let rows = Table::new(4).with(kind::STATE, vec![3; 4]).with(kind::AGE_US, vec![1, 2, 3, 4]);
        let budget = Budget { answer_within_us: within_us, ..budget(Stage::Decode, 1) };
        slot.plan_step(0, &budget, &rows, &Table::new(0))
    };
    for _ in 0..2 {
        let answer = ask(Some(1_000));
        assert_eq!((answer.value.run, answer.fault), (vec![3, 2, 1, 0], Some(FaultKind::Late)), "the fallback's order");
        let (_, text) = slot.status().last_error.expect("an error");
        assert!(text.contains("1000 us that the running step left"), "{text}");
        wait_until_rebuilt(&slot, "slow");
        let answer = ask(None);
        assert_eq!((answer.value.run, answer.fault), (vec![0, 1, 2, 3], None), "{:?}", slot.status().last_error);
        assert_eq!(ask(Some(1_000)).fault, Some(FaultKind::Late), "spared");
    }
    let status = slot.status();
    assert_eq!((status.breaker, status.total.faults.of(FaultKind::Timeout)), (BreakerState::Closed, 0));
}

#[test]
fn state_outlives_instances_and_swaps_and_trials_do_not_touch_it() {
    let component = guests::component("counter-schedule");
    let first = support::load(&component, PolicyKind::Schedule, "counter").expect("loads");
    let slot = slot_of(&first);
    for count in 1..=3 {
        let answer = plan(&slot, 0);
        assert_eq!((answer.value.reason, answer.fault), (count, None));
    }
    let metric = |name: &str| slot.status().report.metrics.into_iter().find(|m| m.name == name).expect("the metric").value;
    assert_eq!(metric("calls"), GuestValue::Counter(3));
    let third = metric("random");
    let second = support::load(&component, PolicyKind::Schedule, "counter").expect("loads");
    slot.swap(second.schedule().expect("an instance"), second.info().clone());
    assert_eq!(plan(&slot, 0).value.reason, 4);
    plan(&slot, 0);
    plan(&slot, 0);
    // Metrics belong to the loaded component; randomness to its digest and the number of the call.
    assert_eq!(metric("calls"), GuestValue::Counter(3));
    assert_eq!(metric("random"), third);
    let other = support::load(&component, PolicyKind::Schedule, "another name").expect("loads");
    assert_eq!(plan(&slot_of(&other), 0).value.reason, 1);
}

#[test]
fn swaps_while_decisions_run_lose_none() {
    let kind = PolicyKind::Schedule;
    let fair = engine().load(builtin::SCHEDULE, kind, &builtin::options(kind)).expect("the built-in");
    let reverse = support::load(&guests::component("reverse-schedule"), kind, "reverse").expect("loads");
    let slot = slot_of(&fair);
    std::thread::scope(|scope| {
        let asking: Vec<_> =
            (0..3).map(|_| scope.spawn(|| (0..400).filter(|_| plan(&slot, 7).fault.is_some()).count())).collect();
        scope.spawn(|| {
            for turn in 0..100 {
                let loaded = if turn % 2 == 0 { &reverse } else { &fair };
                slot.swap(loaded.schedule().expect("an instance"), loaded.info().clone());
            }
        });
        for thread in asking {
            assert_eq!(thread.join().expect("no panic"), 0, "{:?}", slot.status().last_error);
        }
    });
    let status = slot.status();
    assert_eq!((status.total.calls, status.total.ok, status.swaps), (1_200, 1_200, 100));
    assert!(status.total.latency.count == 1_200 && status.total.latency.max_ns > 0);
}
