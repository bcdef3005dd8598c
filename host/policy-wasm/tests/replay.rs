//! What was recorded is decided once more: by the same component to the same ends, whatever imports gave then; by another to others,
//! which are shown.

#[path = "support/recorded.rs"]
mod recorded;
mod support;

use millrace_policy::{FaultKind, Table, kind};
use millrace_policy_wasm::{PolicyKind, PolicyOptions, Recorder, ReplayError, builtin};
use recorded::{Recorded, recorded, replay};
use support::{budget, engine, guests, plan, wait_until_rebuilt};

const KIND: PolicyKind = PolicyKind::Schedule;

#[test]
fn state_metrics_and_randomness_are_given_once_more() {
    let source = guests::component("counter-schedule");
    // The state is not empty when the recording begins.
    let before = support::slot_of(&support::load(&source, KIND, "counted").expect("loads"));
    (0..3).for_each(|_| drop(plan(&before, 0)));
    let recorded = recorded(&source, "counted");
    for count in 4..=8 {
        assert_eq!(plan(&recorded.slot, count).value.reason, count as u32);
    }
    // One init, five calls.
    let text = recorded.text(6);
    let report = replay(&source, &text).expect("replays");
    assert_eq!((report.calls, report.agreed, report.differed, report.other_imports), (5, 5, 0, 0), "{report:?}");
    assert!(!report.continued && report.recorded_sha256.len() == 64);
}

#[test]
fn another_policy_shows_where_it_decides_otherwise() {
    let recorded = recorded(&guests::component("reverse-schedule"), "reverse");
    (0..4).for_each(|step| drop(plan(&recorded.slot, step)));
    let text = recorded.text(5);
    let report = replay(&guests::component("flood-schedule"), &text).expect("replays");
    assert_eq!((report.calls, report.differed, report.differences.len()), (4, 4, 4));
    let first = &report.differences[0];
    assert_eq!(first.line, 2);
    assert!(first.recorded.contains("\"run\":[3,2,1,0]") && first.replayed.contains("\"run\":[0,1,2,3]"), "{first:?}");
}

#[test]
fn faults_are_replayed_and_those_of_time_are_not_compared() {
    let recorded = recorded(&guests::component("trap-schedule"), "trap");
    assert_eq!(plan(&recorded.slot, 0).fault, None);
    assert_eq!(plan(&recorded.slot, 1).fault, Some(FaultKind::Trap));
    wait_until_rebuilt(&recorded.slot, "trap");
    // Two inits, and a call that trapped between two that did not.
    let text = recorded.text(5);
    let report = replay(&guests::component("trap-schedule"), &text).expect("replays");
    assert_eq!((report.calls, report.agreed, report.differed), (3, 3, 0), "{report:?}");
    let late = text.replace("\"fault\":\"trap\"", "\"fault\":\"late\"");
    let report = replay(&guests::component("trap-schedule"), &late).expect("replays");
    assert_eq!((report.calls, report.agreed, report.skipped), (3, 2, 1), "{report:?}");
    let report = replay(&guests::component("reverse-schedule"), &text).expect("replays");
    assert_eq!(report.differed, 3, "the trap is no answer: {report:?}");
}

/// What a policy does not read is recorded too, because another may.
#[test]
fn all_columns_are_recorded_and_policies_get_those_that_they_want() {
    let recorded = recorded(builtin::SCHEDULE, "fair");
    let rows = Table::new(3).with(kind::AGE_US, vec![5, 9, 7]).with(kind::OUTPUT_TOKENS, vec![123_456, 1, 2]);
    let answer = recorded.slot.plan_step(0, &budget(millrace_core::Stage::Decode, 1), &rows, &Table::new(0));
    assert_eq!(answer.value.run, [1, 2, 0]);
    let text = recorded.text(2);
    assert!(text.contains("123456"), "{text}");
    assert_eq!(replay(builtin::SCHEDULE, &text).expect("replays").agreed, 1);
}

#[test]
fn what_is_no_recording_is_said() {
    let source = guests::component("reverse-schedule");
    let recorded = recorded(&source, "reverse");
    drop(plan(&recorded.slot, 0));
    let text = recorded.text(2);
    assert!(matches!(replay(&source, ""), Err(ReplayError::Empty)));
    assert!(matches!(replay(&source, "{}\n"), Err(ReplayError::Format { line: 1, .. })));
    assert!(matches!(replay(&source, &format!("{text}nonsense\n")), Err(ReplayError::Format { line: 3, .. })));
    for later in ["3", "0"] {
        let other = text.replace("\"version\":2,", &format!("\"version\":{later},"));
        assert!(matches!(replay(&source, &other), Err(ReplayError::Version { .. })), "{later}");
    }
    let call = text.lines().nth(1).expect("a call");
    assert!(matches!(replay(&source, call), Err(ReplayError::Format { line: 1, .. })));
    assert!(matches!(replay(&guests::component("other-lane-route"), &text), Err(ReplayError::Load(_))));
}

/// A host starts with the built-in and then puts what is configured in force; nobody asks the former, so a recording has none of it.
#[test]
fn an_instance_begins_with_its_first_decision_and_gets_its_own_table() {
    let directory = tempfile::tempdir().expect("a directory");
    let recorder = Recorder::start(directory.path(), KIND, 1 << 20).expect("starts");
    let with = |config: &str| PolicyOptions {
        record: Some(recorder.clone()),
        config_json: config.to_owned(),
        ..PolicyOptions::new("schedule", KIND)
    };
    let component = builtin::named(KIND, "priority").expect("a built-in");
    let load = |options: PolicyOptions| engine().load(component, KIND, &options).expect("loads");
    let unasked = load(with("{}")).schedule().expect("an instance");
    // With the first table age alone decides, with the second priority does.
    let rows =
        Table::new(2).with(kind::AGE_US, vec![5_000, 9_000]).with(kind::PRIORITY, vec![1, 0]).with(kind::STATE, vec![3; 2]);
    for (config, run) in [(r#"{"level_ms":1}"#, [1, 0]), (r#"{"level_ms":5000}"#, [0, 1])] {
        let slot = support::slot_of(&load(with(config)));
        let answer = slot.plan_step(0, &budget(millrace_core::Stage::Decode, 1), &rows, &Table::new(0));
        assert_eq!(answer.value.run, run, "{config}");
    }
    let text = Recorded { slot: support::slot_of(&load(with("{}"))), recorder, directory }.text(4);
    drop(unasked);
    let first = text.lines().next().expect("a line");
    assert!(first.contains("\"instance\":1,") && first.contains(r#"{\"level_ms\":1}"#), "{first}");
    assert_eq!(text.matches("\"event\":\"init\"").count(), 2, "those that were asked: {text}");
    let report = replay(component, &text).expect("replays");
    assert_eq!((report.calls, report.agreed, report.not_started), (2, 2, None));
}

#[test]
fn a_torn_last_line_is_told_and_the_rest_is_compared() {
    let source = guests::component("reverse-schedule");
    let recorded = recorded(&source, "reverse");
    (0..3).for_each(|step| drop(plan(&recorded.slot, step)));
    let text = recorded.text(4);
    let last = text.trim_end().rfind('\n').expect("lines") + 1;
    for cut in [last + 1, last + 40, text.len() - 2] {
        let report = replay(&source, &text[..cut]).expect("replays");
        assert_eq!((report.calls, report.agreed, report.torn_line), (2, 2, Some(4)), "{report:?}");
    }
    // Only the end of the line is missing.
    let report = replay(&source, text.trim_end()).expect("replays");
    assert_eq!((report.calls, report.agreed, report.torn_line), (3, 3, None));
    assert!(matches!(replay(&source, &text[..20]), Err(ReplayError::Empty)));
}

/// One file, two components: each is compared with what it decided itself, a third with everything.
#[test]
fn across_a_swap_a_component_answers_for_its_own_decisions() {
    let (reverse, counter) = (guests::component("reverse-schedule"), guests::component("counter-schedule"));
    let recorded = recorded(&reverse, "swapped");
    (0..2).for_each(|step| drop(plan(&recorded.slot, step)));
    let options = PolicyOptions { record: Some(recorded.recorder.clone()), ..PolicyOptions::new("swapped", KIND) };
    let next = engine().load(&counter, KIND, &options).expect("loads");
    recorded.slot.swap(next.schedule().expect("an instance"), next.info().clone());
    (0..3).for_each(|step| drop(plan(&recorded.slot, step)));
    recorded.slot.roll_back();
    drop(plan(&recorded.slot, 0));
    // Three calls, three, and how the two began.
    let text = recorded.text(8);
    let of = |source: &[u8]| {
        let report = replay(source, &text).expect("replays");
        (report.calls, report.agreed, report.differed, report.skipped, report.of_others)
    };
    assert_eq!(of(&reverse), (6, 3, 0, 3, 3));
    assert_eq!(of(&counter), (6, 3, 0, 3, 3));
    let (calls, agreed, differed, skipped, of_others) = of(builtin::named(KIND, "fcfs").expect("a built-in"));
    assert_eq!((calls, agreed + differed, skipped, of_others), (6, 6, 0, 0));
    let other_kind = text.replacen("\"kind\":\"schedule\"", "\"kind\":\"route\"", 2).replacen("\"route\"", "\"schedule\"", 1);
    assert!(matches!(replay(&reverse, &other_kind), Err(ReplayError::Format { .. })));
}

/// Others' instances hold nothing and take nobody's place; of its own, one more than is held at once gives the longest idle one up.
#[test]
fn after_many_swaps_the_first_instance_still_answers_for_its_decisions() {
    let (reverse, counter) = (guests::component("reverse-schedule"), guests::component("counter-schedule"));
    for (next, agreed, others, given_up) in [(&counter, 2, 9, 0), (&reverse, 10, 0, 1)] {
        let recorded = recorded(&reverse, "swapped");
        drop(plan(&recorded.slot, 0));
        let options = PolicyOptions { record: Some(recorded.recorder.clone()), ..PolicyOptions::new("swapped", KIND) };
        for step in 0..9 {
            let next = engine().load(next, KIND, &options).expect("loads");
            recorded.slot.swap(next.schedule().expect("an instance"), next.info().clone());
            drop(plan(&recorded.slot, step));
        }
        recorded.slot.return_to_builtin();
        drop(plan(&recorded.slot, 0));
        // Eleven calls, and how ten began.
        let report = replay(&reverse, &recorded.text(21)).expect("replays");
        let of = (report.calls, report.agreed, report.skipped, report.of_others, report.of_given_up);
        assert_eq!(of, (11, agreed, others + given_up, others, given_up));
    }
}

/// Another component that says the same in other words decides the same, as on trial.
#[test]
fn answers_are_compared_by_what_a_host_does_with_them() {
    let fair = recorded(builtin::SCHEDULE, "fair");
    (0..2).for_each(|step| drop(plan(&fair.slot, step)));
    let text = fair.text(3).replace("\"reason\":0", "\"reason\":77").replace("\"tokens\":[]", "\"tokens\":[1,1,1,1]");
    assert!(text.contains("77") && text.contains("[1,1,1,1]"), "{text}");
    let other = text.replace(&fair.slot.status().info.sha256, &"0".repeat(64));
    let report = replay(builtin::SCHEDULE, &other).expect("replays");
    assert_eq!((report.agreed, report.differed), (2, 0), "{report:?}");
    let report = replay(builtin::SCHEDULE, &text).expect("replays");
    assert_eq!((report.agreed, report.differed), (0, 2), "the same component has no reason to differ: {report:?}");
}
