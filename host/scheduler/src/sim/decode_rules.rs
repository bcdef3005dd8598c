//! Each rule of the decode stage on its own.

use millrace_core::{FinishReason, SeqId};
use millrace_policy::{Budget, Plan, Table};

use super::prefill_rules::in_order;
use super::{entry, limits, pool};
use crate::{DecodeEvent, DecodeScheduler, Entry, NoRoom, Outcome, OutcomeStatus, StageLimits, StepPlan};

pub(crate) fn scheduler(pages: u32, watermark_pages: u32) -> DecodeScheduler {
    DecodeScheduler::new(StageLimits { watermark_pages, ..limits() }, pool(pages))
}

/// A sequence that runs, its prompt handed off.
pub(crate) fn start(decode: &mut DecodeScheduler, entry: &Entry) {
    let pages = decode.reserve(entry, entry.prompt.len() as u32, 70).unwrap();
    assert_eq!(pages.len(), entry.prompt.len().div_ceil(4));
    assert!(decode.attach(entry.seq));
}

pub(crate) fn step(decode: &mut DecodeScheduler) -> Option<StepPlan> {
    let draft = decode.plan(0, &mut in_order, &Table::default())?;
    decode.dispatch(draft)
}

pub(crate) fn commit(decode: &mut DecodeScheduler, plan: &StepPlan, status: OutcomeStatus) -> Vec<DecodeEvent> {
    let outcome = |row: &crate::PlanRow| Outcome { seq: row.seq, epoch: row.epoch, token: 80 + row.start % 10, status };
    let events = decode.commit(plan.step, &plan.rows.iter().map(outcome).collect::<Vec<_>>());
    decode.check_invariants().unwrap();
    events
}

pub(crate) fn rows(plan: &StepPlan) -> Vec<u64> {
    plan.rows.iter().map(|row| row.seq.0).collect()
}

#[test]
fn each_step_feeds_the_last_token_and_draws_the_next() {
    let mut decode = scheduler(16, 0);
    start(&mut decode, &entry(1, 5, 3));
    let first = step(&mut decode).unwrap();
    let row = &first.rows[0];
    assert_eq!((row.start, &row.tokens[..], row.sample, row.table.len()), (5, &[70][..], true, 2));
    let token = DecodeEvent::Token { seq: SeqId(1), token: 85 };
    assert_eq!(commit(&mut decode, &first, OutcomeStatus::Ok), [token]);
    let second = step(&mut decode).unwrap();
    assert_eq!((second.rows[0].start, &second.rows[0].tokens[..]), (6, &[85][..]));
    let ahead = decode.plan(0, &mut in_order, &Table::default());
    assert!(ahead.is_none(), "the step in flight draws its third and last token");
    let finished = DecodeEvent::Finished { seq: SeqId(1), reason: FinishReason::Length };
    assert_eq!(commit(&mut decode, &second, OutcomeStatus::Ok), [DecodeEvent::Token { seq: SeqId(1), token: 86 }, finished]);
    assert_eq!(decode.pool().counts().free, 16);
}

/// Positions of replayed tokens are those that they had before, so a sampler keyed by position draws alike.
#[test]
fn a_replay_feeds_known_tokens_and_draws_only_behind_them() {
    let mut decode = scheduler(16, 0);
    start(&mut decode, &Entry { replay: vec![41, 42, 43], preemptions: 1, ..entry(1, 5, 9) });
    let mut fed = Vec::new();
    let mut events = Vec::new();
    for _ in 0..4 {
        let plan = step(&mut decode).unwrap();
        let row = &plan.rows[0];
        fed.push((row.start, row.tokens[0], row.sample, row.billed_tokens));
        events.extend(commit(&mut decode, &plan, OutcomeStatus::Ok));
    }
    assert_eq!(fed, [(5, 41, false, 0), (6, 42, false, 0), (7, 43, true, 1), (8, 87, true, 1)]);
    let token = |token| DecodeEvent::Token { seq: SeqId(1), token };
    assert_eq!(events, [token(87), token(88)]);
}

#[test]
fn a_stop_token_is_no_output() {
    let mut decode = scheduler(16, 0);
    start(&mut decode, &Entry { stop_tokens: [85].into(), ..entry(1, 5, 9) });
    let plan = step(&mut decode).unwrap();
    let finished = DecodeEvent::Finished { seq: SeqId(1), reason: FinishReason::Stop };
    assert_eq!(commit(&mut decode, &plan, OutcomeStatus::Ok), [finished]);
}

#[test]
fn the_end_of_the_context_ends_it() {
    // Two pages hold eight positions; the ninth token needs none.
    let mut decode = scheduler(2, 0);
    start(&mut decode, &entry(1, 6, 50));
    let mut events = Vec::new();
    while let Some(plan) = step(&mut decode) {
        events.extend(commit(&mut decode, &plan, OutcomeStatus::Ok));
    }
    assert_eq!(events.len(), 3);
    assert_eq!(events[2], DecodeEvent::Finished { seq: SeqId(1), reason: FinishReason::Length });
    // A prompt that fills the pool still gets its first token, which prefill drew.
    start(&mut decode, &entry(2, 8, 50));
    assert_eq!(decode.take_events(), [DecodeEvent::Finished { seq: SeqId(2), reason: FinishReason::Length }]);
}

#[test]
fn admission_keeps_a_watermark_for_those_that_run() {
    let mut decode = scheduler(8, 2);
    start(&mut decode, &entry(1, 19, 9));
    assert_eq!(decode.pool().counts().pinned, 5, "alone it may have all; the next position has its page");
    let second = entry(2, 7, 9);
    assert_eq!(decode.reserve(&second, 7, 1), Err(NoRoom::Pages { wanted: 2, free: 3, watermark: 2 }));
    assert_eq!(decode.reserve(&entry(3, 3, 9), 3, 1).unwrap().len(), 1);
    assert_eq!(decode.reserve(&entry(3, 3, 9), 3, 1), Err(NoRoom::Duplicate(SeqId(3))));
    assert_eq!(decode.reserve(&entry(4, 33, 9), 33, 1), Err(NoRoom::Never { tokens: 33, max: 32 }));
    let mismatch = NoRoom::Mismatch { seq: SeqId(4), prompt_tokens: 2, expected: 3 };
    assert_eq!(decode.reserve(&entry(4, 3, 9), 2, 1), Err(mismatch));
    assert!(decode.cancel(SeqId(3)) && !decode.cancel(SeqId(3)) && !decode.cancel(SeqId(1)));
    assert!(!decode.attach(SeqId(3)) && decode.abort(SeqId(1)));
    assert_eq!(decode.pool().counts().free, 8);
}

#[test]
fn only_so_many_sequences_are_in_decode() {
    let mut decode = DecodeScheduler::new(StageLimits { max_resident: 1, ..limits() }, pool(8));
    start(&mut decode, &entry(1, 2, 9));
    assert_eq!(decode.reserve(&entry(2, 2, 9), 2, 1), Err(NoRoom::Sequences { max: 1 }));
}

/// Two that fill the pool and both want more: the younger leaves with all that it has said.
#[test]
fn the_younger_gives_way() {
    let mut decode = scheduler(4, 0);
    start(&mut decode, &entry(1, 7, 20));
    start(&mut decode, &entry(2, 7, 20));
    let first = step(&mut decode).unwrap();
    commit(&mut decode, &first, OutcomeStatus::Ok);
    let second = step(&mut decode).unwrap();
    assert_eq!(rows(&second), [1]);
    let back = Entry { replay: vec![70, 87], preemptions: 1, ..entry(2, 7, 20) };
    assert_eq!(decode.take_events(), [DecodeEvent::Preempted(back)]);
}

/// A sequence whose last token is being drawn gives its pages in a moment; nobody is preempted for one.
#[test]
fn the_pages_of_an_ending_sequence_are_waited_for() {
    let mut decode = scheduler(4, 0);
    start(&mut decode, &entry(1, 7, 2));
    start(&mut decode, &entry(2, 7, 20));
    let first = step(&mut decode).unwrap();
    assert!(decode.plan(0, &mut in_order, &Table::default()).is_none());
    commit(&mut decode, &first, OutcomeStatus::Ok);
    assert_eq!(rows(&step(&mut decode).unwrap()), [2]);
    assert_eq!(decode.counters().preemptions, 0);
}

#[test]
fn the_policy_names_the_victim_until_it_is_protected() {
    for (preemptions, left) in [(0, 2), (2, 2), (3, 1)] {
        let mut decode = scheduler(4, 0);
        start(&mut decode, &Entry { preemptions, replay: vec![70; preemptions.min(1) as usize], ..entry(1, 7, 20) });
        start(&mut decode, &entry(2, 7, 20));
        let first = step(&mut decode).unwrap();
        commit(&mut decode, &first, OutcomeStatus::Ok);
        let mut policy = |_: &Budget, _: &Table, _: &Table| Plan { run: vec![1, 0], preempt: vec![0], ..Plan::default() };
        let draft = decode.plan(0, &mut policy, &Table::default()).unwrap();
        assert_eq!(rows(&decode.dispatch(draft).unwrap()), [left], "{preemptions} preemptions");
    }
}

/// Pages that were lost to suspicion can leave a sequence alone without a page: it ends with what it has.
#[test]
fn alone_and_out_of_pages_is_an_end() {
    let mut decode = scheduler(4, 0);
    start(&mut decode, &entry(1, 7, 20));
    start(&mut decode, &entry(2, 3, 20));
    let plan = step(&mut decode).unwrap();
    let outcome = |row: &crate::PlanRow, status| Outcome { seq: row.seq, epoch: row.epoch, token: 9, status };
    let outcomes = [outcome(&plan.rows[0], OutcomeStatus::Ok), outcome(&plan.rows[1], OutcomeStatus::StalePage)];
    let events = decode.commit(plan.step, &outcomes);
    assert_eq!(events, [DecodeEvent::Token { seq: SeqId(1), token: 9 }, DecodeEvent::Stale { seq: SeqId(2) }]);
    let mut events = Vec::new();
    while let Some(plan) = step(&mut decode) {
        events.extend(commit(&mut decode, &plan, OutcomeStatus::Ok));
    }
    events.extend(decode.take_events());
    assert_eq!(events.last(), Some(&DecodeEvent::Finished { seq: SeqId(1), reason: FinishReason::Length }));
    let suspects = decode.pool().suspects();
    assert_eq!((suspects.len(), decode.pool().counts().free), (1, 3));
    decode.readmit(suspects[0]).unwrap();
    assert_eq!(decode.pool().counts().free, 4);
    decode.check_invariants().unwrap();
}

#[test]
fn numbers_that_are_none_end_one_sequence() {
    let mut decode = scheduler(8, 0);
    start(&mut decode, &entry(1, 3, 20));
    start(&mut decode, &entry(2, 3, 20));
    let plan = step(&mut decode).unwrap();
    let bad = Outcome { seq: SeqId(2), epoch: plan.rows[1].epoch, token: 0, status: OutcomeStatus::NotFinite };
    assert_eq!(decode.commit(plan.step, &[bad]), [DecodeEvent::NotFinite { seq: SeqId(2) }]);
    let again = step(&mut decode).unwrap();
    assert_eq!((rows(&again), again.rows[0].start), (vec![1], plan.rows[0].start), "no outcome: it runs again");
    assert_eq!((decode.pool().counts().suspect, decode.counters().not_finite), (0, 1));
}

#[test]
fn a_step_is_committed_once_and_by_its_number() {
    let mut decode = scheduler(8, 0);
    start(&mut decode, &entry(1, 3, 20));
    let plan = step(&mut decode).unwrap();
    assert_eq!(decode.in_flight(), Some(1));
    let outcome = Outcome { seq: SeqId(1), epoch: plan.rows[0].epoch, token: 3, status: OutcomeStatus::Ok };
    assert!(decode.commit(2, &[outcome]).is_empty());
    let foreign = Outcome { seq: SeqId(9), ..outcome };
    let old = Outcome { epoch: outcome.epoch.wrapping_sub(1), token: 55, ..outcome };
    assert_eq!(decode.commit(1, &[foreign, old, outcome]), [DecodeEvent::Token { seq: SeqId(1), token: 3 }]);
    assert!(decode.commit(1, &[outcome]).is_empty());
    assert_eq!(decode.in_flight(), None);
}
