//! Calls that are bounded by fuel: nothing depends on time, and what a fault takes down is back before the next call.

mod support;

use std::sync::Arc;

use millrace_policy::FaultKind;
use millrace_policy_wasm::{CallBound, EngineOptions, PolicyEngine, PolicyKind, PolicyOptions};
use support::{HandClock, guests, plan, slot_of};

/// More than a decision on four rows takes, and start and configuration too.
const FUEL: u64 = 5_000_000;

fn engine(fuel: u64) -> PolicyEngine {
    let options = EngineOptions::new(Arc::new(HandClock::default()));
    PolicyEngine::new(EngineOptions { bound: CallBound::Fuel(fuel), ..options }).expect("an engine")
}

#[test]
fn a_loop_ends_with_its_fuel_and_the_next_call_is_served() {
    let mut options = PolicyOptions::new("loop", PolicyKind::Schedule);
    // No time would do for anything.
    (options.limits.deadline_us, options.limits.setup_us) = (1, 1);
    let loaded = engine(FUEL).load(&guests::component("loop-schedule"), PolicyKind::Schedule, &options).expect("loads");
    let slot = slot_of(&loaded);
    for round in 0..3 {
        assert_eq!(plan(&slot, 0).fault, None, "round {round}");
        assert_eq!(plan(&slot, 1).fault, Some(FaultKind::Timeout), "round {round}");
        let (_, text) = slot.status().last_error.expect("an error");
        assert!(text.contains("fuel"), "{text}");
    }
    assert_eq!(slot.status().report.rebuilds, 2, "at once, and taken with the next call");
    assert_eq!(slot.status().total.faults.total(), 3, "it was there whenever it was asked");
}

#[test]
fn what_is_dear_without_a_loop_ends_too() {
    let options = PolicyOptions::new("poor", PolicyKind::Schedule);
    let loaded = engine(10).load(&guests::component("reverse-schedule"), PolicyKind::Schedule, &options);
    assert!(loaded.is_err_and(|error| error.to_string().contains("fuel")));
}
