//! Plans that the policy calls valid for further steps: how often it is asked, what makes the host ask earlier, and that the answers
//! are those of a policy that is asked for every step.

use millrace_core::SeqId;
use millrace_policy::{Budget, Plan, Table, kind};

use super::decode_rules::{commit, rows, scheduler, start};
use super::{entry, limits, pool};
use crate::{DecodeEvent, DecodeScheduler, Entry, Outcome, OutcomeStatus, PrefillScheduler, StepPlan};

/// Runs all rows in reverse; counts how often it is asked, and remembers the free pages that it was told of.
struct Asked {
    valid_steps: u32,
    free_pages: Vec<u32>,
}

impl Asked {
    fn new(valid_steps: u32) -> Self {
        Self { valid_steps, free_pages: Vec::new() }
    }

    fn times(&self) -> usize {
        self.free_pages.len()
    }

    fn answer(&mut self, budget: &Budget, rows: &Table) -> Plan {
        self.free_pages.push(budget.free_pages);
        Plan { run: (0..rows.rows).rev().collect(), valid_steps: self.valid_steps, ..Plan::default() }
    }

    fn step(&mut self, decode: &mut DecodeScheduler) -> Option<StepPlan> {
        let draft = decode.plan(0, &mut |budget, rows, _| self.answer(budget, rows), &Table::default())?;
        decode.dispatch(draft)
    }

    fn prefill(&mut self, prefill: &mut PrefillScheduler) -> Option<StepPlan> {
        let draft = prefill.plan(0, &mut |budget, rows, _| self.answer(budget, rows), &Table::default())?;
        prefill.dispatch(draft)
    }
}

/// Events of three sequences of different lengths, and how often the policy was asked.
fn decoded(valid_steps: u32) -> (Vec<DecodeEvent>, usize, u64) {
    let mut decode = scheduler(24, 0);
    for (seq, output) in [(1, 20), (2, 31), (3, 25)] {
        start(&mut decode, &entry(seq, 5, output));
    }
    let mut asked = Asked::new(valid_steps);
    let mut events = Vec::new();
    while let Some(plan) = asked.step(&mut decode) {
        events.extend(commit(&mut decode, &plan, OutcomeStatus::Ok));
    }
    (events, asked.times(), decode.counters().plans_reused)
}

#[test]
fn a_valid_plan_is_used_again_and_nothing_else_changes() {
    let (every_step, asked, reused) = decoded(0);
    // The longest takes 30 steps, as prefill drew its first token.
    assert_eq!((asked, reused), (30, 0));
    let (events, asked, reused) = decoded(9);
    assert_eq!(events, every_step);
    // Asked at steps 1 and 11, at 20 and 25 because one ended in the step before, and not again before the end.
    assert_eq!((asked, reused), (4, 26));
}

#[test]
fn no_plan_is_valid_for_more_than_the_bound() {
    let mut decode = scheduler(24, 0);
    start(&mut decode, &entry(1, 2, 60));
    let mut asked = Asked::new(u32::MAX);
    let mut asked_at = Vec::new();
    for step in 1..=50 {
        let before = asked.times();
        let plan = asked.step(&mut decode).unwrap();
        commit(&mut decode, &plan, OutcomeStatus::Ok);
        if asked.times() > before {
            asked_at.push(step);
        }
    }
    assert_eq!(asked_at, [1, 34]);
}

#[test]
fn a_row_that_comes_or_leaves_ends_a_plan() {
    let mut decode = scheduler(24, 0);
    start(&mut decode, &entry(1, 2, 60));
    start(&mut decode, &entry(2, 2, 60));
    let mut asked = Asked::new(32);
    let mut run = |decode: &mut DecodeScheduler| {
        let plan = asked.step(decode).unwrap();
        commit(decode, &plan, OutcomeStatus::Ok);
        (rows(&plan), asked.times())
    };
    assert_eq!(run(&mut decode), (vec![2, 1], 1));
    assert_eq!(run(&mut decode), (vec![2, 1], 1));
    decode.reserve(&entry(3, 2, 60), 2, 9).unwrap();
    assert_eq!(run(&mut decode), (vec![2, 1], 2), "reserved");
    decode.attach(SeqId(3));
    assert_eq!(run(&mut decode), (vec![3, 2, 1], 3), "runs now");
    assert_eq!(run(&mut decode), (vec![3, 2, 1], 3));
    decode.abort(SeqId(2));
    assert_eq!(run(&mut decode), (vec![3, 1], 4), "aborted");
    // The same number in another stay is another row.
    decode.abort(SeqId(1));
    start(&mut decode, &entry(1, 2, 60));
    assert_eq!(run(&mut decode), (vec![3, 1], 5), "came back");
    decode.forget_order();
    assert_eq!(run(&mut decode), (vec![3, 1], 6), "another policy");
    assert_eq!(run(&mut decode), (vec![3, 1], 6));
}

/// Two that fill the pool: the policy is asked again before anybody loses pages, and names the victim.
#[test]
fn a_shortage_of_pages_ends_a_plan() {
    let mut decode = scheduler(5, 0);
    start(&mut decode, &entry(1, 6, 20));
    start(&mut decode, &entry(2, 6, 20));
    let mut asked = Asked::new(32);
    for _ in 0..2 {
        let plan = asked.step(&mut decode).unwrap();
        commit(&mut decode, &plan, OutcomeStatus::Ok);
    }
    assert_eq!(asked.free_pages, [1], "positions 6 and 7 have their pages");
    // Position 8 needs one more page each; one is free.
    let mut calls = 0;
    let mut policy = |budget: &Budget, rows: &Table, _: &Table| {
        calls += 1;
        assert_eq!((budget.free_pages, rows.column(kind::PAGES_FOR_NEXT_STEP)), (1, Some(&[1, 1][..])));
        Plan { run: vec![0, 1], preempt: vec![0], valid_steps: 32, ..Plan::default() }
    };
    let draft = decode.plan(0, &mut policy, &Table::default()).unwrap();
    assert_eq!(calls, 1);
    assert_eq!(rows(&decode.dispatch(draft).unwrap()), [2]);
    assert!(matches!(&decode.take_events()[..], [DecodeEvent::Preempted(Entry { seq: SeqId(1), .. })]));
}

#[test]
fn a_plan_that_runs_nothing_is_not_kept() {
    let mut decode = scheduler(8, 0);
    start(&mut decode, &entry(1, 2, 20));
    let mut calls = 0;
    let mut idle = |_: &Budget, _: &Table, _: &Table| {
        calls += 1;
        Plan { valid_steps: 32, ..Plan::default() }
    };
    assert!((0..5).all(|_| decode.plan(0, &mut idle, &Table::default()).is_none()));
    assert_eq!(calls, 5);
}

#[test]
fn chunks_of_a_long_prompt_need_one_plan() {
    let mut prefill = PrefillScheduler::new(limits(), pool(32));
    prefill.submit(entry(1, 60, 4)).unwrap();
    let mut asked = Asked::new(32);
    let run = |prefill: &mut PrefillScheduler, asked: &mut Asked| -> Vec<(u64, usize)> {
        let plan = asked.prefill(prefill).unwrap();
        let ok = |row: &crate::PlanRow| Outcome { seq: row.seq, epoch: row.epoch, token: 90, status: OutcomeStatus::Ok };
        prefill.commit(plan.step, &plan.rows.iter().map(ok).collect::<Vec<_>>());
        prefill.check_invariants().unwrap();
        plan.rows.iter().map(|row| (row.seq.0, row.tokens.len())).collect()
    };
    assert_eq!((run(&mut prefill, &mut asked), asked.times()), (vec![(1, 16)], 1));
    assert_eq!((run(&mut prefill, &mut asked), asked.times()), (vec![(1, 16)], 1));
    prefill.submit(entry(2, 6, 4)).unwrap();
    assert_eq!((run(&mut prefill, &mut asked), asked.times()), (vec![(2, 6), (1, 10)], 2), "a new prompt ends the plan");
    assert_eq!((run(&mut prefill, &mut asked), asked.times()), (vec![(1, 16)], 3), "a finished one too");
    assert_eq!(prefill.counters().plans_reused, 1);
}
