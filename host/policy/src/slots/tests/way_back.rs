//! The way back from a policy: which generations are kept, in which order they return, and where it ends.

use super::*;
use crate::{MAX_EARLIER, PROVEN_CALLS};

/// A slot whose built-in is `built-in`.
fn builtin() -> ScheduleSlot {
    ScheduleSlot::new(scripted(good).0, named("built-in"), BREAKER)
}

fn put(slot: &ScheduleSlot, name: &str) {
    slot.swap(scripted(good).0, named(name));
}

/// Lets the policy in force answer so many calls.
fn serve(slot: &ScheduleSlot, calls: u32) {
    for _ in 0..calls {
        assert_eq!(ask(slot, 0).fault, None);
    }
}

/// A slot in which these served long enough, one after the other.
fn proven(names: &[&str]) -> ScheduleSlot {
    let slot = builtin();
    for name in names {
        put(&slot, name);
        serve(&slot, PROVEN_CALLS);
    }
    slot
}

fn in_force(slot: &ScheduleSlot) -> String {
    slot.status().info.name
}

fn way_back(slot: &ScheduleSlot) -> Vec<String> {
    slot.status().way_back.into_iter().map(|info| info.name).collect()
}

fn back(slot: &ScheduleSlot) -> Option<String> {
    slot.roll_back().map(|info| info.name)
}

#[test]
fn each_roll_back_goes_further_back_and_ends_at_the_built_in() {
    let slot = proven(&["a", "b", "c"]);
    assert_eq!(way_back(&slot), ["b", "a", "built-in"]);
    let pressed = [(); 4].map(|()| back(&slot));
    assert_eq!(pressed.each_ref().map(Option::as_deref), [Some("b"), Some("a"), Some("built-in"), None]);
    assert_eq!(in_force(&slot), "built-in");
    let status = slot.status();
    assert_eq!((status.generation, status.swaps, status.rollbacks, status.way_back), (7, 3, 3, Vec::new()));
}

#[test]
fn what_was_rolled_back_does_not_return() {
    let slot = proven(&["a", "b"]);
    assert_eq!(back(&slot), Some("a".into()));
    put(&slot, "c");
    serve(&slot, PROVEN_CALLS);
    assert_eq!(way_back(&slot), ["a", "built-in"], "`a` has proven itself before, `b` was left");
}

#[test]
fn a_policy_that_was_never_called_displaces_none_that_served() {
    let slot = proven(&["a"]);
    put(&slot, "hasty");
    assert_eq!(way_back(&slot), ["a", "built-in"]);
    put(&slot, "again");
    assert_eq!(way_back(&slot), ["a", "built-in"]);
    assert_eq!(back(&slot), Some("a".into()));
}

#[test]
fn so_many_good_answers_in_a_row_make_a_proven_policy() {
    let slot = builtin();
    put(&slot, "a");
    serve(&slot, PROVEN_CALLS - 1);
    assert!(!slot.status().proven);
    put(&slot, "b");
    assert_eq!(way_back(&slot), ["built-in"], "one call short");
    serve(&slot, PROVEN_CALLS);
    assert!(slot.status().proven);
    // One fault a while before the end: it begins anew, and what was proven before stays.
    let answer = |call| if call == PROVEN_CALLS { Err(FaultKind::Trap) } else { good(call) };
    slot.swap(scripted(answer).0, named("stumbles"));
    serve(&slot, PROVEN_CALLS - 1);
    assert_eq!(ask(&slot, 0).fault, Some(FaultKind::Trap));
    serve(&slot, PROVEN_CALLS - 1);
    assert!(!slot.status().proven);
    serve(&slot, 1);
    assert!(slot.status().proven);
    put(&slot, "c");
    assert_eq!(way_back(&slot), ["stumbles", "b", "built-in"]);
}

/// A fault of one that has proven itself takes nothing of that away.
#[test]
fn a_proven_policy_stays_one_after_a_fault() {
    let slot = builtin();
    slot.swap(scripted(|call| if call == PROVEN_CALLS + 1 { Err(FaultKind::Trap) } else { good(call) }).0, named("a"));
    serve(&slot, PROVEN_CALLS);
    assert_eq!(ask(&slot, 0).fault, Some(FaultKind::Trap));
    assert!(slot.status().proven);
    put(&slot, "b");
    assert_eq!(way_back(&slot), ["a", "built-in"]);
}

#[test]
fn what_is_failing_is_not_kept_however_long_it_served() {
    let slot = builtin();
    slot.swap(scripted(|call| if call <= PROVEN_CALLS { good(call) } else { Err(FaultKind::Trap) }).0, named("a"));
    serve(&slot, PROVEN_CALLS);
    ask(&slot, 0);
    ask(&slot, 0);
    assert_ne!(slot.status().breaker, BreakerState::Closed);
    put(&slot, "b");
    assert_eq!(way_back(&slot), ["built-in"]);
}

#[test]
fn only_so_many_earlier_policies_are_kept() {
    let names: Vec<String> = (0..MAX_EARLIER + 3).map(|n| format!("p{n}")).collect();
    let slot = proven(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut expected: Vec<&str> = names.iter().rev().skip(1).take(MAX_EARLIER).map(String::as_str).collect();
    expected.push("built-in");
    assert_eq!(way_back(&slot), expected);
}

#[test]
fn to_the_built_in_at_once() {
    let slot = proven(&["a", "b"]);
    assert_eq!(slot.return_to_builtin().name, "built-in");
    let status = slot.status();
    assert_eq!((status.info.name.as_str(), status.generation, status.rollbacks, status.way_back), ("built-in", 4, 1, Vec::new()));
    assert_eq!(ask(&slot, 0).fault, None);
    // Again: nothing to do.
    assert_eq!((slot.return_to_builtin().name.as_str(), slot.generation(), slot.status().rollbacks), ("built-in", 4, 1));
    put(&slot, "c");
    assert_eq!(way_back(&slot), ["built-in"]);
}

#[test]
fn a_configured_policy_starts_in_front_of_the_built_in() {
    let slot = builtin().starting_with(scripted(good).0, named("configured"));
    let status = slot.status();
    assert_eq!((status.info.name.as_str(), status.generation, status.swaps), ("configured", 1, 0));
    put(&slot, "hasty");
    assert_eq!(way_back(&slot), ["built-in"], "never called, like any other");
    let slot = builtin().starting_with(scripted(good).0, named("configured"));
    serve(&slot, PROVEN_CALLS);
    put(&slot, "next");
    assert_eq!(way_back(&slot), ["configured", "built-in"]);
}

/// Two faults open the breaker, two openings without a good answer make it hopeless.
fn fails_for_good(slot: &ScheduleSlot, name: &str) {
    slot.swap(scripted(|_| Err(FaultKind::Trap)).0, named(name));
    ask(slot, 0);
    ask(slot, 0);
    assert_eq!(in_force(slot), name);
    assert_eq!(ask(slot, 100).fault, Some(FaultKind::Trap));
}

#[test]
fn a_roll_back_that_nobody_asked_for_is_told() {
    let told: Arc<std::sync::Mutex<Vec<crate::RolledBack>>> = Arc::default();
    let slot = builtin().watched_by({
        let told = told.clone();
        move |rolled| told.lock().unwrap().push(rolled.clone())
    });
    let slot = slot.starting_with(scripted(good).0, named("a"));
    serve(&slot, PROVEN_CALLS);
    fails_for_good(&slot, "bad");
    let expected = |from: &str, from_generation, to: &str| crate::RolledBack {
        from: named(from),
        from_generation,
        to: named(to),
        to_generation: from_generation + 1,
        last_fault: PolicyFault { policy: "scripted".into(), kind: FaultKind::Trap, detail: "as told".into() }.to_string(),
    };
    assert_eq!(*told.lock().unwrap(), [expected("bad", 2, "a")]);
    // What is asked for is told by whoever asked.
    assert_eq!(back(&slot), Some("built-in".into()));
    slot.return_to_builtin();
    assert_eq!(told.lock().unwrap().len(), 1);
    // The first has nobody behind it, however often it fails.
    fails_for_good(&slot, "worse");
    assert_eq!(told.lock().unwrap()[1..], [expected("worse", 5, "built-in")]);
    let first = ScheduleSlot::new(scripted(|_| Err(FaultKind::Trap)).0, named("first"), BREAKER)
        .watched_by(|rolled| panic!("{rolled:?}"));
    for now_us in [0, 0, 100, 1_000, 10_000] {
        assert!(ask(&first, now_us).fault.is_some());
    }
}

#[test]
fn a_hopeless_policy_gives_way_by_the_same_rule() {
    let slot = proven(&["a", "b"]);
    put(&slot, "hasty");
    fails_for_good(&slot, "bad");
    assert_eq!(in_force(&slot), "b", "not the one that was never called");
    let status = slot.status();
    assert_eq!((status.rollbacks, status.generation, status.proven), (1, 6, true));
    assert!(status.last_error.is_some_and(|(generation, text)| generation == 5 && text.contains("scripted")));
    assert_eq!(ask(&slot, 101).value.run, [0]);
    assert_eq!(way_back(&slot), ["a", "built-in"], "the bad one is not what a later roll back brings");
    let slot = builtin();
    fails_for_good(&slot, "bad");
    assert_eq!((in_force(&slot).as_str(), back(&slot)), ("built-in", None));
}

/// Loading takes seconds. Who asks for the way back meanwhile has the last word.
#[test]
fn a_policy_that_was_being_loaded_does_not_undo_a_roll_back() {
    let slot = proven(&["a", "b"]);
    let late = |recalls: u64| slot.swap_since(recalls, scripted(good).0, named("late")).map(|old| old.name);
    let recalls = slot.recalls();
    assert_eq!(back(&slot), Some("a".into()));
    assert_eq!((late(recalls), in_force(&slot)), (None, "a".into()));
    assert_eq!(slot.status().swaps, 2, "it is no swap");
    let recalls = slot.recalls();
    slot.return_to_builtin();
    assert_eq!((late(recalls), in_force(&slot)), (None, "built-in".into()));
    // The built-in was wanted although it was in force already.
    let recalls = slot.recalls();
    slot.return_to_builtin();
    assert_eq!((late(recalls), back(&slot)), (None, None));
    assert_eq!(late(recalls + 1), None);
    assert_eq!((late(slot.recalls()), in_force(&slot)), (Some("built-in".into()), "late".into()));
}

/// What is uploaded to mend a policy that fails is wanted all the more once the host has rolled that back.
#[test]
fn a_roll_back_that_nobody_asked_for_holds_up_no_swap() {
    let slot = ScheduleSlot::new(scripted(good).0, named("built-in"), BREAKER);
    slot.swap(scripted(|_| Err(FaultKind::Trap)).0, named("bad"));
    let recalls = slot.recalls();
    let mut now_us = 0;
    while in_force(&slot) == "bad" {
        drop(ask(&slot, now_us));
        now_us += 1_000_000;
        assert!(now_us < 1_000_000_000, "the host rolls back");
    }
    assert_eq!((slot.status().rollbacks, slot.recalls()), (1, recalls));
    assert_eq!(slot.swap_since(recalls, scripted(good).0, named("mended")).map(|old| old.name), Some("built-in".into()));
}
