//! Guests that misbehave: each call is answered by the fallback with the right fault, in time, and the next call works once a
//! fresh instance is there.

mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_core::Stage;
use millrace_policy::{FaultKind, PrecisionSlot, ScheduleSlot, Table, TierPrecision};
use millrace_policy_wasm::{PolicyKind, PolicyLimits, PolicyOptions};
use support::{budget, engine, guests, plan, schedule_slot, slot_of, wait_until_rebuilt};

const FALLBACK: [u32; 4] = [3, 2, 1, 0];

/// Generous for machines under load; a guest that is not interrupted takes for ever.
const IN_TIME: Duration = Duration::from_secs(5);

fn patient_slot(guest: &str) -> ScheduleSlot {
    let limits = PolicyLimits { deadline_us: 2_000_000, setup_us: 2_000_000, ..PolicyLimits::of(PolicyKind::Schedule) };
    let options = PolicyOptions { limits, ..PolicyOptions::new(guest, PolicyKind::Schedule) };
    slot_of(&engine().load(&guests::component(guest), PolicyKind::Schedule, &options).expect("loads"))
}

fn misbehaves(guest: &str, kind: FaultKind, says: &str) {
    // What is not about time must not fail for want of it on a busy machine.
    let slot = if kind == FaultKind::Timeout { schedule_slot(guest) } else { patient_slot(guest) };
    let settled = slot.status().report.memory_bytes;
    assert!(settled > 0);
    for round in 0..3u64 {
        assert_eq!(plan(&slot, 0).fault, None, "{guest} is good at first");
        let started = Instant::now();
        let answer = plan(&slot, 1);
        assert!(started.elapsed() < IN_TIME, "{guest} took {:?}", started.elapsed());
        assert_eq!((answer.value.run, answer.fault), (FALLBACK.to_vec(), Some(kind)), "{guest}: {:?}", slot.status().last_error);
        let (_, text) = slot.status().last_error.expect("an error");
        assert!(text.contains(says) && text.contains("test-guest@0.1.0"), "{guest}: {text}");
        wait_until_rebuilt(&slot, guest);
        let report = slot.status().report;
        assert_eq!((report.rebuilds, report.memory_bytes), (round + 1, settled), "{guest}");
    }
    let status = slot.status();
    assert_eq!(status.total.faults.of(kind), 3, "{guest}");
    assert_eq!(status.total.faults.total(), 3 + status.total.faults.of(FaultKind::Unavailable), "{guest}");
}

#[test]
fn a_trap() {
    misbehaves("trap-schedule", FaultKind::Trap, "unreachable");
}

#[test]
fn an_endless_loop() {
    misbehaves("loop-schedule", FaultKind::Timeout, "deadline");
}

#[test]
fn an_endless_loop_of_tail_calls() {
    misbehaves("tail-loop-schedule", FaultKind::Timeout, "deadline");
}

#[test]
fn a_table_bomb() {
    misbehaves("table-schedule", FaultKind::Memory, "memory");
}

#[test]
fn endless_recursion() {
    misbehaves("recurse-schedule", FaultKind::Trap, "stack");
}

#[test]
fn a_memory_bomb() {
    misbehaves("bomb-schedule", FaultKind::Memory, "memory");
}

#[test]
fn a_row_that_does_not_exist() {
    misbehaves("range-schedule", FaultKind::Invalid, "run names row 4, but there are 4 rows");
}

#[test]
fn a_row_twice() {
    misbehaves("twice-schedule", FaultKind::Invalid, "run names row 0 twice");
}

#[test]
fn a_huge_answer() {
    misbehaves("huge-schedule", FaultKind::Invalid, "too much data");
}

#[test]
fn a_list_outside_memory() {
    misbehaves("wild-schedule", FaultKind::Invalid, "out of bounds of memory");
}

#[test]
fn a_precision_that_does_not_exist() {
    let loaded = support::load(&guests::component("range-precision"), PolicyKind::Precision, "range").expect("loads");
    let slot = PrecisionSlot::new(
        loaded.precision().expect("an instance"),
        loaded.info().clone(),
        support::HELD_CLOSED,
        TierPrecision::default(),
    );
    let choose = |tokens| slot.choose(0, &[support::ask(0, 100), support::ask(0, tokens)], &Table::new(2), &Table::new(0));
    assert_eq!(choose(100).fault, None);
    let answer = choose(99);
    assert_eq!(answer.fault, Some(FaultKind::Invalid));
    assert_eq!(answer.value.iter().map(|c| c.precision).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn a_flood_of_log_lines_is_dropped_and_counted() {
    let limits = PolicyLimits { deadline_us: 5_000_000, setup_us: 5_000_000, ..PolicyLimits::of(PolicyKind::Schedule) };
    let options = PolicyOptions { limits, ..PolicyOptions::new("flood", PolicyKind::Schedule) };
    let loaded = engine().load(&guests::component("flood-schedule"), PolicyKind::Schedule, &options).expect("loads");
    let slot = slot_of(&loaded);
    assert_eq!(plan(&slot, 1).fault, None);
    let report = slot.status().report;
    // Time stands still, so there is one bucket full; the trial decisions spent another policy's.
    assert_eq!((report.log_lines, report.log_lines_dropped), (20, 980));
}

#[test]
fn log_lines_carry_the_policys_name_and_no_control_characters() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).finish();
    let loaded = tracing::subscriber::with_default(subscriber, || {
        let slow = PolicyLimits { deadline_us: 5_000_000, setup_us: 5_000_000, ..PolicyLimits::of(PolicyKind::Schedule) };
        let options = PolicyOptions { limits: slow, ..PolicyOptions::new("noisy", PolicyKind::Schedule) };
        let loaded = engine().load(&guests::component("flood-schedule"), PolicyKind::Schedule, &options).expect("loads");
        assert_eq!(plan(&slot_of(&loaded), 1).fault, None);
        loaded
    });
    let text = String::from_utf8(lines.0.lock().expect("lines").clone()).expect("text");
    assert!(text.lines().count() >= 20, "{text}");
    for line in text.lines() {
        assert!(line.contains("millrace::policy") && line.contains("policy=\"noisy\""), "{line}");
        assert!(line.len() < 1_300 && !line.contains('\0'), "{} bytes", line.len());
    }
    drop(loaded);
}

/// A log in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("lines").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl tracing_subscriber::fmt::MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[test]
fn two_hundred_bombs_leave_the_pool_as_it_was() {
    // More than the engine has instances: one that was not returned would be missed.
    let slot = schedule_slot("bomb-schedule");
    for round in 0..200 {
        assert_eq!(plan(&slot, 1).fault, Some(FaultKind::Memory), "round {round}: {:?}", slot.status().last_error);
        wait_until_rebuilt(&slot, "bomb");
    }
    assert_eq!(slot.status().report.rebuilds, 200);
}

#[test]
fn an_idle_ticker_wakes_for_a_guest_that_loops() {
    let slot = schedule_slot("loop-schedule");
    for _ in 0..2 {
        // Long enough for the ticker to park, unless other tests keep it awake.
        std::thread::sleep(Duration::from_millis(400));
        let started = Instant::now();
        assert_eq!(plan(&slot, 1).fault, Some(FaultKind::Timeout));
        assert!(started.elapsed() < IN_TIME);
        wait_until_rebuilt(&slot, "loop");
    }
}

#[test]
fn without_an_instance_the_policy_says_that_it_is_unavailable() {
    let loaded = support::load(&guests::component("trap-schedule"), PolicyKind::Schedule, "trap").expect("loads");
    let mut policy = loaded.schedule().expect("an instance");
    let (rows, tenants) = (Table::new(1), Table::new(0));
    let mut kinds = Vec::new();
    for _ in 0..50 {
        let fault = policy.plan_step(&budget(Stage::Prefill, 1), &rows, &tenants).expect_err("traps or is not there");
        kinds.push(fault.kind);
    }
    assert_eq!(kinds[0], FaultKind::Trap);
    assert!(kinds.iter().all(|kind| [FaultKind::Trap, FaultKind::Unavailable].contains(kind)), "{kinds:?}");
}
