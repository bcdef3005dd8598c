//! Guests that hand too much to the host, or what is no number: bounded where it comes in, and nothing of it stays.

mod support;

use std::time::{Duration, Instant};

use millrace_policy::{Decision, FaultKind, GuestValue, RouteLimits, RouteSlot, Table, kind};
use millrace_policy_wasm::{LoadError, PolicyKind, PolicyLimits, PolicyOptions};
use support::{engine, guests, plan, request, schedule_slot, wait_until_rebuilt};

#[test]
fn more_names_than_allowed_are_refused_and_the_others_serve() {
    let slot = schedule_slot("names-schedule");
    assert_eq!(plan(&slot, 1).fault, None);
    let metrics = slot.status().report.metrics;
    let limit = PolicyLimits::of(PolicyKind::Schedule).metric_names;
    assert_eq!(metrics.len(), limit);
    assert_eq!(metrics.last().map(|metric| metric.value), Some(GuestValue::Counter(1)));
    assert!(metrics.iter().all(|metric| metric.name.len() == 5), "{metrics:?}");
}

#[test]
fn state_beyond_its_bound_is_refused_and_what_was_taken_stays() {
    let slot = schedule_slot("state-schedule");
    let limits = PolicyLimits::of(PolicyKind::Schedule);
    let most = (limits.state_bytes / 1_002) as u32;
    for _ in 0..3 {
        let answer = plan(&slot, 1);
        // The same keys each time, so that nothing adds up.
        assert_eq!((answer.value.reason, answer.fault), (most, None), "{:?}", slot.status().last_error);
    }
}

#[test]
fn what_is_no_number_is_not_published() {
    let slot = schedule_slot("nan-schedule");
    assert_eq!(plan(&slot, 1).fault, None);
    let metrics = slot.status().report.metrics;
    assert_eq!(metrics.iter().map(|metric| metric.value).collect::<Vec<_>>(), [GuestValue::Gauge(1.5)]);
}

#[test]
fn a_long_message_is_cut_and_a_giant_one_is_no_answer() {
    let loaded = support::load(&guests::component("long-route"), PolicyKind::Route, "long").expect("loads");
    let route = loaded.route().expect("an instance");
    let slot = RouteSlot::new(route, loaded.info().clone(), support::HELD_CLOSED, RouteLimits::default());
    let lanes = Table::new(2).with(kind::ELIGIBLE, vec![1, 1]);
    let mut request = request(0);
    let long = slot.decide(0, &request, &lanes, &Table::new(0));
    let Decision::Refuse(refusal) = long.value else { panic!("{long:?}") };
    assert_eq!((refusal.status, refusal.message.len(), long.fault), (429, 512, None));
    request.session = None;
    let giant = slot.decide(0, &request, &lanes, &Table::new(0));
    assert!(matches!(giant.value, Decision::Forward(_)), "the fallback's answer: {giant:?}");
    assert_eq!(giant.fault, Some(FaultKind::Invalid));
    let (_, text) = slot.status().last_error.expect("an error");
    assert!(text.contains("too much data"), "{text}");
}

#[test]
fn a_giant_line_is_no_line() {
    let slot = schedule_slot("loud-schedule");
    let answer = plan(&slot, 1);
    assert_eq!(answer.fault, Some(FaultKind::Invalid), "{:?}", slot.status().last_error);
    wait_until_rebuilt(&slot, "loud");
}

/// Many functions of many instructions: small as a file, long to compile. It is given up, others load beside it, and nothing that
/// serves waits.
#[test]
fn a_compile_bomb_is_given_up_while_others_load() {
    let serving = schedule_slot("reverse-schedule");
    let body =
        "(local.set 0 (i32.mul (i32.add (local.get 0) (i32.const 3)) (i32.xor (local.get 0) (i32.const 5))))".repeat(2_000);
    let functions = format!("(func (param i32) (result i32) {body} (local.get 0))").repeat(60);
    let text = format!("(component (core module {functions}))");
    let source = wat::parse_str(text).expect("text");
    let limits = PolicyLimits { compile_us: 20_000, ..PolicyLimits::of(PolicyKind::Schedule) };
    let options = PolicyOptions { limits, ..PolicyOptions::new("bomb", PolicyKind::Schedule) };
    std::thread::scope(|scope| {
        let bomb = scope.spawn(|| {
            let started = Instant::now();
            (engine().load(&source, PolicyKind::Schedule, &options).map(|_| ()), started.elapsed())
        });
        assert_eq!(plan(&serving, 1).value.run, [3, 2, 1, 0]);
        let (result, took) = bomb.join().expect("no panic");
        assert_eq!(result, Err(LoadError::CompileTime { limit_ms: 20 }), "after {took:?}");
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(support::load(&guests::component("reverse-schedule"), PolicyKind::Schedule, "beside").is_ok());
    });
}
