//! The optional interfaces: feedback reaches the instance that decides, memory goes along with a swap, and guests that misbehave in
//! either harm no decision and no swap.

mod support;

use std::time::{Duration, Instant};

use millrace_policy::{FaultKind, ScheduleSlot, Table, kind};
use millrace_policy_wasm::{LoadError, PolicyKind, PolicyLimits, PolicyOptions};
use support::{engine, guests, plan, schedule_slot, slot_of, wait_until_rebuilt};

fn outcomes(rows: usize) -> Table {
    Table::new(rows).with(kind::OUTCOME, vec![0; rows]).with(kind::OUTCOME_TOTAL_US, vec![9; rows])
}

fn tell(slot: &ScheduleSlot, rows: usize) -> Result<(), FaultKind> {
    slot.observe(0, slot.generation(), &outcomes(rows)).expect("it hears")
}

fn swap(slot: &ScheduleSlot, guest: &str) {
    let loaded = support::load(&guests::component(guest), PolicyKind::Schedule, guest).expect("loads");
    slot.swap(loaded.schedule().expect("an instance"), loaded.info().clone());
}

/// What `memory-schedule` was told of, from its next decision.
fn told(slot: &ScheduleSlot) -> u32 {
    let answer = plan(slot, 1);
    assert_eq!((answer.value.run, answer.fault), (vec![0, 1, 2, 3], None), "{:?}", slot.status().last_error);
    answer.value.reason
}

#[test]
fn feedback_reaches_the_instance_that_decides() {
    let slot = schedule_slot("memory-schedule");
    assert_eq!((told(&slot), slot.hears()), (0, Some(1)));
    assert_eq!((tell(&slot, 3), tell(&slot, 64)), (Ok(()), Ok(())));
    assert_eq!(told(&slot), 67);
    let status = slot.status();
    assert_eq!((status.feedback.calls, status.feedback.ok, status.feedback.latency.count), (2, 2, 2));
    assert_eq!((status.total.calls, status.report.rebuilds), (2, 0));
    assert_eq!(schedule_slot("reverse-schedule").hears(), None);
}

#[test]
fn a_swap_carries_what_the_old_instance_knew() {
    let slot = schedule_slot("memory-schedule");
    tell(&slot, 5).expect("hears");
    swap(&slot, "memory-schedule");
    assert_eq!(told(&slot), 5);
    tell(&slot, 2).expect("hears");
    swap(&slot, "memory-schedule");
    let status = slot.status();
    assert_eq!((told(&slot), status.handover.calls, status.handover.ok), (7, 4, 4));
    // Who comes back has what it left with.
    assert!(slot.roll_back().is_some());
    assert_eq!((told(&slot), slot.status().handover.calls), (5, 4), "the first one: the second had not proven itself");
}

#[test]
fn without_a_handover_on_one_side_the_new_one_starts_empty() {
    let slot = schedule_slot("reverse-schedule");
    swap(&slot, "memory-schedule");
    assert_eq!((told(&slot), slot.status().handover.calls), (0, 0));
    swap(&slot, "reverse-schedule");
    assert_eq!((plan(&slot, 1).value.run, slot.status().handover.calls), (vec![3, 2, 1, 0], 0));
}

#[test]
fn memory_of_another_policy_is_refused_and_leaves_no_trace() {
    // Gives nothing, which is no memory of the other's.
    let slot = schedule_slot("loop-handover-schedule");
    swap(&slot, "memory-schedule");
    assert_eq!(told(&slot), 0, "nothing but `init` was called on the instance that serves");
    let status = slot.status();
    assert_eq!((status.handover.ok, status.handover.faults.of(FaultKind::Invalid)), (1, 1));
    let (generation, text) = status.last_error.expect("an error");
    assert!(generation == 2 && text.contains("refused what was saved: not my memory"), "{text}");
}

/// The old one fails in `save`, or the new one in `restore`.
fn swaps_all_the_same(old: &str, new: &str, kind: FaultKind, says: &str) {
    let slot = schedule_slot(old);
    assert_eq!(plan(&slot, 1).fault, None);
    let began = Instant::now();
    swap(&slot, new);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let answer = plan(&slot, 1);
    assert_eq!((answer.value.run, answer.fault, answer.generation), (vec![0, 1, 2, 3], None, 2), "{old} to {new}");
    let status = slot.status();
    assert_eq!(status.handover.faults.of(kind), 1, "{:?}", status.last_error);
    assert!(status.last_error.as_ref().is_some_and(|(_, text)| text.contains(says)), "{:?}", status.last_error);
    assert_eq!((status.total.faults.total(), status.swaps), (0, 1));
}

#[test]
fn a_trap_in_save() {
    swaps_all_the_same("trap-handover-schedule", "memory-schedule", FaultKind::Trap, "unreachable");
}

#[test]
fn a_million_bytes_of_memory() {
    swaps_all_the_same("flood-handover-schedule", "memory-schedule", FaultKind::Invalid, "too much data");
}

#[test]
fn more_memory_than_is_carried_within_what_may_be_answered() {
    let limits = PolicyLimits { output_bytes: 16 << 20, ..PolicyLimits::of(PolicyKind::Schedule) };
    let options = PolicyOptions { limits, ..PolicyOptions::new("flood", PolicyKind::Schedule) };
    let source = guests::component("flood-handover-schedule");
    let loaded = engine().load(&source, PolicyKind::Schedule, &options).expect("loads");
    let slot = slot_of(&loaded);
    assert_eq!(plan(&slot, 1).fault, None);
    swap(&slot, "memory-schedule");
    let (_, text) = slot.status().last_error.expect("an error");
    assert!(text.contains("1000000 bytes, at most 65536"), "{text}");
    assert_eq!(told(&slot), 0);
}

#[test]
fn an_endless_restore() {
    let slot = schedule_slot("memory-schedule");
    tell(&slot, 5).expect("hears");
    let began = Instant::now();
    swap(&slot, "loop-handover-schedule");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(plan(&slot, 1).fault, None, "on a fresh instance, at once");
    let status = slot.status();
    assert_eq!((status.handover.ok, status.handover.faults.of(FaultKind::Timeout)), (1, 1), "{:?}", status.last_error);
}

fn hears_badly(guest: &str, kind: FaultKind) {
    let slot = schedule_slot(guest);
    let settled = slot.status().report.memory_bytes;
    for round in 1..=3 {
        assert_eq!((plan(&slot, 1).fault, tell(&slot, 2)), (None, Ok(())), "{guest} is good at first");
        let began = Instant::now();
        assert_eq!(tell(&slot, 2), Err(kind), "{guest}: {:?}", slot.status().last_error);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        wait_until_rebuilt(&slot, guest);
        let report = slot.status().report;
        assert_eq!((report.rebuilds, report.memory_bytes), (round, settled), "{guest}");
    }
    let status = slot.status();
    assert_eq!((status.feedback.ok, status.feedback.faults.of(kind)), (3, 3));
    assert_eq!(status.total.faults.total(), status.total.faults.of(FaultKind::Unavailable), "no decision was at fault");
}

#[test]
fn a_trap_when_it_is_told() {
    hears_badly("trap-feedback-schedule", FaultKind::Trap);
}

#[test]
fn an_endless_loop_when_it_is_told() {
    hears_badly("loop-feedback-schedule", FaultKind::Timeout);
}

#[test]
fn a_flood_of_lines_when_it_is_told_is_dropped_and_counted() {
    let limits = PolicyLimits { deadline_us: 5_000_000, setup_us: 5_000_000, ..PolicyLimits::of(PolicyKind::Schedule) };
    let options = PolicyOptions { limits, ..PolicyOptions::new("feedback flood", PolicyKind::Schedule) };
    let source = guests::component("flood-feedback-schedule");
    let slot = slot_of(&engine().load(&source, PolicyKind::Schedule, &options).expect("loads"));
    tell(&slot, 1).expect("hears");
    let report = slot.status().report;
    assert_eq!((report.log_lines, report.log_lines_dropped), (20, 980));
}

#[test]
fn what_cannot_be_called_is_refused_before_it_serves() {
    let always = |name: &str, from: &str, to: &str| {
        let text = guests::text(name).replace(from, to);
        let world = text.lines().next().and_then(|line| line.strip_prefix(";; world: ")).expect("a world").to_owned();
        support::load(&guests::core_of(&text, &world), PolicyKind::Schedule, name).map(|_| ())
    };
    let refused = |result: Result<(), LoadError>, says: &str| {
        assert!(matches!(&result, Err(LoadError::Smoke { detail, .. }) if detail.contains(says)), "{result:?}");
    };
    refused(
        always("trap-feedback-schedule", "(global.get $calls) (i32.const 1)", "(i32.const 2) (i32.const 1)"),
        "feedback: trap",
    );
    refused(always("trap-handover-schedule", "(if (global.get $served)", "(if (i32.const 1)"), "handover: `save`: trap");
    refused(always("flood-handover-schedule", "(if (global.get $served)", "(if (i32.const 1)"), "handover: `save`");
    refused(
        always(
            "memory-schedule",
            "(i32.const 0x6c6c696d))\n    (i32.store (i32.const 652)",
            "(i32.const 1))\n    (i32.store (i32.const 652)",
        ),
        "refused what it had saved itself",
    );
}
