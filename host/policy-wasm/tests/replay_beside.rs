//! What a policy hears and hands over is recorded between its decisions and given to it once more, so that decisions which follow from it
//! are the same; where something comes to another end, that is shown.

#[path = "support/recorded.rs"]
mod recorded;
mod support;

use std::time::{Duration, Instant};

use millrace_policy::{FaultKind, Table, kind};
use millrace_policy_wasm::{Asked, BesideReport, PolicyKind, PolicyOptions, ReplayReport};
use recorded::{Recorded, recorded, replay};
use support::{engine, guests, plan};

const KIND: PolicyKind = PolicyKind::Schedule;

fn tell(recorded: &Recorded, rows: usize) -> Result<(), FaultKind> {
    let outcomes = Table::new(rows).with(kind::OUTCOME, vec![0; rows]).with(kind::OUTCOME_TOTAL_US, vec![123_456; rows]);
    recorded.slot.observe(0, recorded.slot.generation(), &outcomes).expect("it hears")
}

fn swap(recorded: &Recorded, guest: &str) {
    let options = PolicyOptions { record: Some(recorded.recorder.clone()), ..PolicyOptions::new("swapped", KIND) };
    let next = engine().load(&guests::component(guest), KIND, &options).expect("loads");
    recorded.slot.swap(next.schedule().expect("an instance"), next.info().clone());
}

/// What `memory-schedule` was told of, from its next decision.
fn told(recorded: &Recorded) -> u32 {
    plan(&recorded.slot, 1).value.reason
}

fn calls(report: &ReplayReport) -> [u64; 3] {
    [report.calls, report.agreed, report.differed]
}

fn beside(calls: u64, agreed: u64, differed: u64) -> BesideReport {
    BesideReport { calls, agreed, differed, skipped: calls - agreed - differed }
}

/// Without the lines that hold this.
fn without(text: &str, part: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.contains(part)).collect()
}

#[test]
fn what_a_policy_heard_between_decisions_it_hears_once_more() {
    let source = guests::component("memory-schedule");
    let recorded = recorded(&source, "hears");
    assert_eq!(told(&recorded), 0);
    tell(&recorded, 3).expect("hears");
    assert_eq!(told(&recorded), 3);
    tell(&recorded, 64).expect("hears");
    assert_eq!(told(&recorded), 67);
    // An init, three calls, what was told twice, with columns that this policy does not read.
    let text = recorded.text(6);
    assert!(text.contains("\"version\":2") && text.contains("123456"), "{text}");
    let report = replay(&source, &text).expect("replays");
    assert_eq!((calls(&report), report.beside), ([3, 3, 0], beside(2, 2, 0)), "{report:?}");
    // It is what the decisions follow from.
    let deaf = replay(&source, &without(&text, "\"observe\"")).expect("replays");
    assert_eq!((calls(&deaf), deaf.beside), ([3, 1, 2], beside(0, 0, 0)), "{deaf:?}");
    assert!(!report.without_beside && report.missed == 0);
}

#[test]
fn memory_that_was_handed_over_is_handed_over_once_more() {
    let source = guests::component("memory-schedule");
    let recorded = recorded(&source, "hands over");
    tell(&recorded, 5).expect("hears");
    swap(&recorded, "memory-schedule");
    tell(&recorded, 2).expect("hears");
    assert_eq!(told(&recorded), 7);
    // Two inits, told twice, save and restore, a call; the memory is a mark and the count.
    let text = recorded.text(7);
    assert!(text.contains("{\"restore\":\"6d696c6c05000000\"}"), "{text}");
    let report = replay(&source, &text).expect("replays");
    assert_eq!((calls(&report), report.beside), ([1, 1, 0], beside(4, 4, 0)), "{report:?}");
    let forgetful = replay(&source, &without(&text, "\"restore\"")).expect("replays");
    assert_eq!(calls(&forgetful), [1, 0, 1], "{forgetful:?}");
    // Another memory than was recorded is a difference, shown in digits.
    let other = text.replace("\"save\":\"6d696c6c05", "\"save\":\"6d696c6c06");
    let report = replay(&source, &other).expect("replays");
    assert_eq!((calls(&report), report.beside), ([1, 1, 0], beside(4, 3, 1)), "{report:?}");
    let difference = &report.differences[0];
    assert_eq!((difference.asked, difference.recorded.as_str()), (Asked::Save, "8 bytes, 6d696c6c06000000"));
    assert_eq!(difference.replayed, "8 bytes, 6d696c6c05000000");
}

#[test]
fn faults_beside_decisions_are_replayed_and_shown_where_they_are_new() {
    let source = guests::component("trap-feedback-schedule");
    let recorded = recorded(&source, "traps");
    drop(plan(&recorded.slot, 1));
    assert_eq!((tell(&recorded, 1), tell(&recorded, 1)), (Ok(()), Err(FaultKind::Trap)));
    let text = recorded.text(4);
    let report = replay(&source, &text).expect("replays");
    assert_eq!((calls(&report), report.beside), ([1, 1, 0], beside(2, 2, 0)), "{report:?}");
    // A component that does not trap there, and one that traps where none did.
    let report = replay(&guests::component("memory-schedule"), &text).expect("replays");
    assert_eq!(report.beside, beside(2, 1, 1));
    let difference = &report.differences[0];
    assert_eq!((difference.asked, difference.recorded.as_str(), difference.replayed.as_str()), (Asked::Feedback, "trap", "ok"));
    let fine = text.replace("\"fault\":\"trap\"", "\"fault\":null");
    let report = replay(&source, &fine).expect("replays");
    assert!(report.differences[0].replayed.starts_with("trap: "), "{report:?}");
    let late = text.replace("\"fault\":\"trap\"", "\"fault\":\"timeout\"");
    assert_eq!(replay(&source, &late).expect("replays").beside, BesideReport { calls: 2, agreed: 1, differed: 0, skipped: 1 });
    // Who does not hear is not compared.
    let report = replay(&guests::component("reverse-schedule"), &text).expect("replays");
    assert_eq!((report.calls, report.beside), (1, BesideReport { calls: 2, agreed: 0, differed: 0, skipped: 2 }));
}

/// Another component may not know the memory that it is given; as in a host it starts empty then and decides on.
#[test]
fn another_policy_that_refuses_the_memory_starts_empty() {
    let recorded = recorded(&guests::component("memory-schedule"), "hands over");
    tell(&recorded, 5).expect("hears");
    swap(&recorded, "memory-schedule");
    assert_eq!((told(&recorded), told(&recorded)), (5, 5));
    let text = recorded.text(7);
    let sha256 = &recorded.slot.status().info.sha256;
    let foreign = text.replace(sha256, &"0".repeat(64)).replace("6d696c6c05", "ffffffff05");
    let report = replay(&guests::component("memory-schedule"), &foreign).expect("replays");
    assert_eq!(report.beside, BesideReport { calls: 3, agreed: 2, differed: 0, skipped: 1 }, "{report:?}");
    assert_eq!((report.calls, report.skipped), (2, 0), "the instance that begins anew is asked: {report:?}");
}

#[test]
fn a_refusal_that_was_recorded_agrees() {
    let recorded = recorded(&guests::component("loop-handover-schedule"), "gives nothing");
    swap(&recorded, "memory-schedule");
    assert_eq!(told(&recorded), 0);
    // The first instance with its save, the second with its restore, the third with its call.
    let text = recorded.text(6);
    assert!(text.contains("{\"restore\":\"\"}") && text.contains("\"fault\":\"invalid\""), "{text}");
    let report = replay(&guests::component("memory-schedule"), &text).expect("replays");
    assert_eq!((calls(&report), report.beside), ([1, 1, 0], BesideReport { calls: 2, agreed: 1, differed: 0, skipped: 1 }));
}

#[test]
fn no_more_memory_is_recorded_than_is_handed_over() {
    let recorded = recorded(&guests::component("flood-handover-schedule"), "floods");
    drop(plan(&recorded.slot, 1));
    swap(&recorded, "memory-schedule");
    let text = recorded.text(3);
    assert!(text.contains("{\"save\":null}") && text.len() < 10_000, "{} bytes", text.len());
    let report = replay(&guests::component("flood-handover-schedule"), &text).expect("replays");
    assert_eq!((calls(&report), report.beside), ([1, 1, 0], beside(1, 1, 0)), "{report:?}");
    let long = text.replace("{\"save\":null}", &format!("{{\"save\":\"{}\"}}", "00".repeat((64 << 10) + 1)));
    assert!(replay(&guests::component("flood-handover-schedule"), &long).is_err());
}

/// What an older host wrote is read, and what it left out is told to those whom it matters to.
#[test]
fn a_recording_of_an_older_host_is_read_and_said_to_lack_this() {
    let source = guests::component("memory-schedule");
    let recorded = recorded(&source, "hears");
    assert_eq!(told(&recorded), 0);
    tell(&recorded, 3).expect("hears");
    assert_eq!(told(&recorded), 3);
    let text = without(&recorded.text(4), "\"event\":\"beside\"")
        .replace("\"version\":2,", "\"version\":1,")
        .replace(",\"missed\":0", "");
    let report = replay(&source, &text).expect("replays");
    assert_eq!((calls(&report), report.beside, report.without_beside), ([2, 1, 1], beside(0, 0, 0), true));
    assert!(!replay(&guests::component("reverse-schedule"), &text).expect("replays").without_beside, "it would not have heard");
}

/// Events for which there was no room are counted in the next one that there is room for.
#[test]
fn gaps_are_counted() {
    let source = guests::component("memory-schedule");
    let recorded = recorded(&source, "gaps");
    let began = Instant::now();
    // Many and long numbers: writing them takes longer than asking.
    let rows =
        (kind::TENANT..=kind::PREEMPTIONS).fold(Table::new(2_000), |rows, kind| rows.with(kind, vec![4_000_000_000; 2_000]));
    let budget = support::budget(millrace_core::Stage::Decode, 1);
    let mut asked = 0;
    while recorded.recorder.counts().dropped == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "the disk keeps up: {:?}", recorded.recorder.counts());
        drop(recorded.slot.plan_step(0, &budget, &rows, &Table::new(0)));
        asked += 1;
    }
    let dropped = recorded.recorder.counts().dropped;
    // All that waits is written, the init too; then there is room.
    while recorded.recorder.counts().written < asked + 1 - dropped {
        assert!(began.elapsed() < Duration::from_secs(120), "{:?}", recorded.recorder.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(tell(&recorded, 1), Ok(()));
    while recorded.recorder.counts().written < asked + 2 - dropped {
        assert!(began.elapsed() < Duration::from_secs(120), "{:?}", recorded.recorder.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
    let text = std::fs::read_to_string(recorded.recorder.path()).expect("text");
    let report = replay(&source, &text).expect("replays");
    assert_eq!((report.missed, report.beside), (dropped, beside(1, 1, 0)));
}
