//! Trials from beginning to end: whose decisions they see, what they know of each other, and when they end by themselves.

use std::thread;
use std::time::{Duration, Instant};

use millrace_core::Stage;
use millrace_policy::{Budget, Table, kind};

use super::super::tests::{clock, config, guest};
use super::*;

const KIND: PolicyKind = PolicyKind::Schedule;

fn policies() -> Policies {
    Policies::load(&config("", ""), clock()).expect("policies")
}

fn source(name: &str) -> Vec<u8> {
    std::fs::read(guest(name)).expect("a guest")
}

/// So many decisions of the policy in force; all that are on trial have seen them by the end.
fn decide(policies: &Policies, count: u64) {
    let asked = |policies: &Policies| policies.shadow(KIND).map_or(0, |report| report.compared + report.faults + report.skipped);
    for step in 0..count {
        let before = asked(policies);
        let rows = Table::new(3).with(kind::STATE, vec![3; 3]).with(kind::AGE_US, vec![1, 2, 3]);
        let budget = Budget {
            stage: Stage::Decode,
            step,
            tokens: 8,
            sequences: 8,
            free_pages: 8,
            total_pages: 8,
            page_tokens: 16,
            step_us: 1_000,
            answer_within_us: None,
        };
        let answer = policies.slots.schedule.plan_step(0, &budget, &rows, &Table::new(0));
        assert_eq!(answer.fault, None);
        let began = Instant::now();
        while policies.shadow(KIND).is_some_and(|report| report.ended.is_none()) && asked(policies) == before {
            assert!(began.elapsed() < Duration::from_secs(30), "nobody compares");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Who is given up late, while the next trial has begun, takes nothing from it.
#[test]
fn a_trial_that_ends_late_leaves_the_next_one_alone() {
    let policies = policies();
    policies.start_shadow(KIND, &source("reverse-schedule"), None).expect("a trial");
    let first = policies.take_shadow(KIND).expect("on trial");
    policies.start_shadow(KIND, &source("reverse-schedule"), None).expect("a trial");
    drop(first);
    decide(&policies, 3);
    assert_eq!(policies.shadow(KIND).expect("on trial").compared, 3);
    policies.stop_shadow(KIND).expect("given up");
    decide(&policies, 1);
}

/// The guest counts its decisions in its state and tells the count as its reason.
#[test]
fn each_trial_begins_with_a_state_of_its_own() {
    let policies = policies();
    for _ in 0..2 {
        policies.start_shadow(KIND, &source("counter-schedule"), None).expect("a trial");
        decide(&policies, 3);
        let report = policies.stop_shadow(KIND).expect("on trial");
        assert_eq!((report.compared, report.disagreed), (3, 3), "{report:?}");
        let reasons: Vec<bool> =
            report.examples.iter().zip(1..).map(|(e, n)| e.candidate.contains(&format!("reason: {n} "))).collect();
        assert_eq!(reasons, [true; 3], "{:?}", report.examples);
    }
}

#[test]
fn a_trial_that_only_fails_ends_says_why_and_cannot_be_activated() {
    let policies = policies();
    policies.start_shadow(KIND, &source("trap-schedule"), None).expect("a trial");
    decide(&policies, 60);
    let report = policies.shadow(KIND).expect("on trial");
    assert_eq!((report.faults, report.skipped), (32, 0), "{report:?}");
    assert!(report.ended.as_ref().is_some_and(|why| why.contains("trap")), "{report:?}");
    assert!(matches!(policies.activate(KIND), Err(SwapError::TrialEnded(why)) if why.contains("trap")));
    assert!(policies.stop_shadow(KIND).is_ok());
}
