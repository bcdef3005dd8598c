//! Each rule of the prefill stage on its own.

use millrace_core::{FinishReason, SeqId, TenantId};
use millrace_policy::{Budget, Plan, Table, kind};

use super::{entry, limits, pool};
use crate::{
    Entry, Neighbours, Outcome, OutcomeStatus, PrefillEvent, PrefillScheduler, StageLimits, StepCost, StepPlan, SubmitError,
    TenantLedger, TenantShare,
};

pub(crate) fn in_order(_: &Budget, rows: &Table, _: &Table) -> Plan {
    Plan { run: (0..rows.rows).collect(), ..Plan::default() }
}

fn scheduler(pages: u32) -> PrefillScheduler {
    PrefillScheduler::new(limits(), pool(pages))
}

pub(crate) fn step(prefill: &mut PrefillScheduler, mut policy: impl FnMut(&Budget, &Table, &Table) -> Plan) -> Option<StepPlan> {
    let draft = prefill.plan(0, &mut policy, &Table::default())?;
    prefill.dispatch(draft)
}

pub(crate) fn commit(prefill: &mut PrefillScheduler, plan: &StepPlan) -> Vec<PrefillEvent> {
    let ok = |row: &crate::PlanRow| Outcome { seq: row.seq, epoch: row.epoch, token: 90, status: OutcomeStatus::Ok };
    let events = prefill.commit(plan.step, &plan.rows.iter().map(ok).collect::<Vec<_>>());
    prefill.check_invariants().unwrap();
    events
}

pub(crate) fn chunks(plan: &StepPlan) -> Vec<(u64, u32, usize, bool)> {
    plan.rows.iter().map(|row| (row.seq.0, row.start, row.tokens.len(), row.sample)).collect()
}

pub(crate) fn prefilled(events: &[PrefillEvent]) -> Vec<u64> {
    let seq = |event: &PrefillEvent| match event {
        PrefillEvent::Prefilled { entry, .. } => Some(entry.seq.0),
        _ => None,
    };
    events.iter().filter_map(seq).collect()
}

fn release(prefill: &mut PrefillScheduler, done: &[u64]) {
    for &seq in done {
        prefill.release_handed_off(SeqId(seq));
    }
}

#[test]
fn prompts_share_the_budget_in_order_and_go_on_where_they_stopped() {
    let mut prefill = scheduler(32);
    for (seq, tokens) in [(1, 10), (2, 10), (3, 3)] {
        prefill.submit(entry(seq, tokens, 4)).unwrap();
    }
    let first = step(&mut prefill, in_order).unwrap();
    assert_eq!(chunks(&first), [(1, 0, 10, true), (2, 0, 6, false)]);
    // Planned ahead: what is in flight counts as done.
    let ahead = prefill.plan(0, &mut in_order, &Table::default()).unwrap();
    assert_eq!(prefilled(&commit(&mut prefill, &first)), [1]);
    let second = prefill.dispatch(ahead).unwrap();
    assert_eq!(chunks(&second), [(2, 6, 4, true), (3, 0, 3, true)]);
    assert_eq!(second.rows[0].tokens, entry(2, 10, 4).prompt[6..]);
    assert_eq!(prefilled(&commit(&mut prefill, &second)), [2, 3]);
}

#[test]
fn the_policy_sets_order_and_sizes_within_the_budget() {
    let mut prefill = scheduler(32);
    for seq in 1..=3 {
        prefill.submit(entry(seq, 10, 4)).unwrap();
    }
    let plan = |run: Vec<u32>, tokens: Vec<u32>| {
        move |_: &Budget, _: &Table, _: &Table| Plan { run: run.clone(), tokens: tokens.clone(), ..Plan::default() }
    };
    let first = step(&mut prefill, plan(vec![2, 0, 1], vec![4, 99, 99])).unwrap();
    assert_eq!(chunks(&first), [(3, 0, 4, false), (1, 0, 10, true), (2, 0, 2, false)]);
    commit(&mut prefill, &first);
    let second = step(&mut prefill, plan(vec![7, 2, 2, u32::MAX, 0], vec![1; 5])).unwrap();
    // Row 0 is handing off by now, so it cannot run, and what is named twice runs once.
    assert_eq!(chunks(&second), [(3, 4, 1, false)]);
    assert_eq!(prefill.counters().policy_rows_ignored, 4);
}

/// 10 ms at 1 ms a token, in whole pages of 4: the policy is told of 8 tokens and cannot give more.
#[test]
fn a_step_is_bounded_in_time_by_what_steps_cost() {
    let limits = crate::StageLimits { max_step_us: Some(10_000), ..limits() };
    let mut prefill = PrefillScheduler::new(limits, pool(32));
    prefill.submit(entry(1, 60, 4)).unwrap();
    let mut told = Vec::new();
    let mut run = |prefill: &mut PrefillScheduler| {
        let all = |budget: &Budget, _: &Table, _: &Table| {
            told.push(budget.tokens);
            Plan { run: vec![0], tokens: vec![99], ..Plan::default() }
        };
        let plan = step(prefill, all).unwrap();
        commit(prefill, &plan);
        chunks(&plan)
    };
    assert_eq!(run(&mut prefill), [(1, 0, 16, false)], "nothing is measured yet");
    let cost = StepCost { fixed_us: 0, token_ns: 1_000_000, largest_tokens: 16 };
    prefill.set_step_cost(Some(cost));
    assert_eq!(run(&mut prefill), [(1, 16, 8, false)]);
    prefill.set_step_cost(Some(StepCost { token_ns: 100_000_000, ..cost }));
    assert_eq!(run(&mut prefill), [(1, 24, 4, false)], "a page at least");
    prefill.set_step_cost(Some(StepCost { token_ns: 1, ..cost }));
    assert_eq!(run(&mut prefill), [(1, 28, 16, false)], "the limit in tokens at most");
    assert_eq!(told, [16, 8, 4, 16]);
}

/// The bound in time is for those who wait. A plan that was made while nobody did is cut when somebody does.
#[test]
fn a_step_that_keeps_nobody_waiting_is_bounded_in_tokens_alone() {
    let limits = crate::StageLimits { max_step_us: Some(10_000), ..limits() };
    let mut prefill = PrefillScheduler::new(limits, pool(32));
    prefill.set_step_cost(Some(StepCost { fixed_us: 0, token_ns: 1_000_000, largest_tokens: 16 }));
    prefill.submit(entry(1, 60, 4)).unwrap();
    let run = |prefill: &mut PrefillScheduler, planned: Neighbours, dispatched: Neighbours| {
        prefill.set_neighbours(planned);
        let draft = prefill.plan(0, &mut in_order, &Table::default()).unwrap();
        prefill.set_neighbours(dispatched);
        let plan = prefill.dispatch(draft).unwrap();
        commit(prefill, &plan);
        chunks(&plan)
    };
    assert_eq!(run(&mut prefill, Neighbours::Idle, Neighbours::Idle), [(1, 0, 16, false)]);
    assert_eq!(run(&mut prefill, Neighbours::Waiting, Neighbours::Waiting), [(1, 16, 8, false)]);
    assert_eq!(run(&mut prefill, Neighbours::Idle, Neighbours::Waiting), [(1, 24, 8, false)], "somebody came meanwhile");
    assert_eq!(
        run(&mut prefill, Neighbours::Waiting, Neighbours::Idle),
        [(1, 32, 8, false)],
        "nobody is left, but so it was planned"
    );
    prefill.submit(entry(2, 6, 4)).unwrap();
    assert_eq!(run(&mut prefill, Neighbours::Idle, Neighbours::Idle), [(1, 40, 8, false)], "another prompt of the pool waits");
    prefill.abort(SeqId(2));
    assert_eq!(run(&mut prefill, Neighbours::Idle, Neighbours::Idle), [(1, 48, 12, true)]);
    prefill.submit(entry(3, 12, 4)).unwrap();
    assert_eq!(run(&mut prefill, Neighbours::Idle, Neighbours::Idle), [(3, 0, 8, false)], "1 is to decode soon");
    assert_eq!(prefill.counters().stale_rows, 0, "what was cut off is no stale row");
}

/// A draft of several rows is cut from its end; what was cut off comes in a later step, with the pages that it was given.
#[test]
fn what_is_cut_off_a_draft_comes_later() {
    let limits = crate::StageLimits { max_step_us: Some(10_000), ..limits() };
    let mut prefill = PrefillScheduler::new(limits, pool(32));
    for seq in 1..=3 {
        prefill.submit(entry(seq, 5, 4)).unwrap();
    }
    let draft = prefill.plan(0, &mut in_order, &Table::default()).unwrap();
    assert_eq!(draft.rows(), 3);
    prefill.set_step_cost(Some(StepCost { fixed_us: 0, token_ns: 1_000_000, largest_tokens: 16 }));
    let first = prefill.dispatch(draft).unwrap();
    assert_eq!(chunks(&first), [(1, 0, 5, true), (2, 0, 3, false)]);
    assert_eq!(prefilled(&commit(&mut prefill, &first)), [1]);
    let second = step(&mut prefill, in_order).unwrap();
    assert_eq!(chunks(&second), [(2, 3, 2, true), (3, 0, 5, true)]);
    assert_eq!(prefilled(&commit(&mut prefill, &second)), [2, 3]);
}

#[test]
fn a_new_prompt_does_not_overtake_one_that_waits_for_pages() {
    let mut prefill = scheduler(6);
    for (seq, tokens) in [(1, 12), (2, 16), (3, 4)] {
        prefill.submit(entry(seq, tokens, 4)).unwrap();
    }
    // 1 takes three of six pages; 2 needs four at once, 3 one.
    let only = |row| move |_: &Budget, _: &Table, _: &Table| Plan { run: vec![row], ..Plan::default() };
    let first = step(&mut prefill, only(0)).unwrap();
    commit(&mut prefill, &first);
    assert_eq!(step(&mut prefill, in_order), None, "3 would fit, but 2 came first");
    assert!(prefill.release_handed_off(SeqId(1)));
    assert_eq!(chunks(&step(&mut prefill, in_order).unwrap()), [(2, 0, 16, true)]);
}

#[test]
fn prompts_under_way_come_before_new_ones_when_pages_are_short() {
    let mut prefill = scheduler(6);
    prefill.submit(entry(1, 24, 4)).unwrap();
    prefill.submit(entry(2, 8, 4)).unwrap();
    let first = step(&mut prefill, in_order).unwrap();
    assert_eq!(chunks(&first), [(1, 0, 16, false)]);
    commit(&mut prefill, &first);
    let reversed = |_: &Budget, rows: &Table, _: &Table| Plan { run: (0..rows.rows).rev().collect(), ..Plan::default() };
    let second = step(&mut prefill, reversed).unwrap();
    assert_eq!(chunks(&second), [(1, 16, 8, true)], "the two free pages are what 1 needs to get done");
}

/// Half-done prompts that together exceed the pool: the youngest gives way, and all get done in the end.
#[test]
fn half_done_prompts_cannot_block_each_other_for_ever() {
    let mut prefill = scheduler(6);
    for seq in 1..=3 {
        prefill.submit(entry(seq, 20, 4)).unwrap();
    }
    let chunked = |_: &Budget, rows: &Table, _: &Table| Plan {
        run: (0..rows.rows).collect(),
        tokens: vec![5; rows.rows as usize],
        ..Plan::default()
    };
    let mut done = Vec::new();
    for _ in 0..40 {
        let Some(plan) = step(&mut prefill, chunked) else { continue };
        done.extend(prefilled(&commit(&mut prefill, &plan)));
        release(&mut prefill, &done);
    }
    assert_eq!(done, [1, 2, 3]);
    assert!((1..=3).contains(&prefill.counters().preemptions), "{}", prefill.counters().preemptions);
    assert_eq!(prefill.pool().counts().free, 6);
}

/// A policy that asks for what does not fit, and lets rest what does, takes nobody's progress away.
#[test]
fn a_half_done_prompt_that_could_go_on_is_not_reset() {
    let mut prefill = scheduler(6);
    prefill.submit(entry(1, 20, 4)).unwrap();
    prefill.submit(entry(2, 16, 4)).unwrap();
    let first = step(&mut prefill, in_order).unwrap();
    commit(&mut prefill, &first);
    let only_new = |_: &Budget, _: &Table, _: &Table| Plan { run: vec![1], ..Plan::default() };
    assert_eq!(step(&mut prefill, only_new), None);
    assert_eq!(prefill.counters().preemptions, 0);
    assert_eq!(chunks(&step(&mut prefill, in_order).unwrap()), [(1, 16, 4, true)]);
}

#[test]
fn what_can_never_run_is_refused_at_the_door() {
    let mut prefill = scheduler(5);
    assert_eq!(prefill.submit(entry(1, 21, 1)), Err(SubmitError::TooLong { tokens: 21, max: 20 }));
    assert_eq!(prefill.submit(entry(1, 0, 1)), Err(SubmitError::EmptyPrompt(SeqId(1))));
    prefill.submit(entry(1, 20, 1)).unwrap();
    assert_eq!(prefill.submit(entry(1, 3, 1)), Err(SubmitError::Duplicate(SeqId(1))));
    let mut wide = scheduler(100);
    assert_eq!(wide.submit(entry(1, 64, 1)), Err(SubmitError::TooLong { tokens: 64, max: 63 }));
}

#[test]
fn the_queue_is_bounded_but_open_to_preempted_entries() {
    let mut prefill = scheduler(8);
    for seq in 0..16 {
        prefill.submit(entry(seq, 4, 4)).unwrap();
    }
    assert_eq!(prefill.submit(entry(99, 4, 4)), Err(SubmitError::QueueFull { max: 16 }));
    let back = Entry { replay: vec![5], preemptions: 1, ..entry(99, 4, 4) };
    prefill.submit(back).unwrap();
    let plan = step(&mut prefill, in_order).unwrap();
    assert_eq!((plan.rows[0].seq, plan.rows[0].sample), (SeqId(99), false), "it goes first, and its token is known");
    assert!(plan.rows[1].sample);
}

#[test]
fn only_so_many_sequences_hold_pages() {
    let mut prefill = PrefillScheduler::new(crate::StageLimits { max_resident: 2, ..limits() }, pool(32));
    (1..=3).for_each(|seq| prefill.submit(entry(seq, 2, 4)).unwrap());
    let plan = step(&mut prefill, in_order).unwrap();
    assert_eq!(plan.rows.len(), 2);
    commit(&mut prefill, &plan);
    assert_eq!(step(&mut prefill, in_order), None);
    prefill.release_handed_off(SeqId(2));
    assert_eq!(chunks(&step(&mut prefill, in_order).unwrap()), [(3, 0, 2, true)]);
}

#[test]
fn deadlines_hold_until_the_first_chunk() {
    let mut prefill = scheduler(8);
    for seq in 1..=3 {
        prefill.submit(Entry { deadline_us: Some(100), ..entry(seq, 20, 4) }).unwrap();
    }
    prefill.submit(Entry { deadline_us: Some(5), replay: vec![1], preemptions: 1, ..entry(4, 4, 4) }).unwrap();
    let only = |_: &Budget, _: &Table, _: &Table| Plan { run: vec![1], ..Plan::default() };
    let plan = step(&mut prefill, only).unwrap();
    assert_eq!(plan.rows[0].seq, SeqId(1));
    assert!(prefill.expire(100).is_empty());
    let expired = |seq| PrefillEvent::Expired { seq: SeqId(seq) };
    assert_eq!(prefill.expire(101), [expired(2), expired(3)]);
    assert!(prefill.expire(1000).is_empty());
    assert_eq!(prefill.counts().total(), 2);
    prefill.check_invariants().unwrap();
}

#[test]
fn the_first_token_may_end_it() {
    let mut prefill = scheduler(32);
    prefill.submit(entry(1, 4, 1)).unwrap();
    prefill.submit(Entry { stop_tokens: [90].into(), ..entry(2, 4, 9) }).unwrap();
    prefill.submit(entry(3, 4, 9)).unwrap();
    let plan = step(&mut prefill, in_order).unwrap();
    let ends: Vec<Option<FinishReason>> = commit(&mut prefill, &plan)
        .into_iter()
        .map(|event| match event {
            PrefillEvent::Prefilled { finished, .. } => finished,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ends, [Some(FinishReason::Length), Some(FinishReason::Stop), None]);
}

#[test]
fn a_policy_that_lets_all_work_rest_is_overruled() {
    let mut prefill = scheduler(8);
    prefill.submit(entry(1, 4, 4)).unwrap();
    let idle = |_: &Budget, _: &Table, _: &Table| Plan::default();
    let rests = (0..20).take_while(|_| step(&mut prefill, idle).is_none()).count();
    assert_eq!((rests, prefill.counters().policy_overruled), (8, 1));
}

#[test]
fn priority_and_age_order_the_queue_that_a_policy_sees() {
    let mut prefill = PrefillScheduler::new(crate::StageLimits { max_view_rows: 2, ..limits() }, pool(8));
    for (seq, priority) in [(1, 0), (2, -3), (3, 8), (4, 8)] {
        prefill.submit(Entry { priority, deadline_us: Some(500), ..entry(seq, 4, 4) }).unwrap();
    }
    let mut seen = Table::default();
    let mut look = |_: &Budget, rows: &Table, _: &Table| {
        seen = rows.clone();
        Plan::default()
    };
    prefill.plan(100, &mut look, &Table::default());
    assert_eq!(seen.column(kind::PRIORITY), Some(&[8, 8][..]), "an urgent one is not hidden behind older ones");
    assert_eq!(seen.column(kind::AGE_US), Some(&[97, 96][..]));
    assert_eq!(seen.column(kind::SLACK_US), Some(&[400, 400][..]));
    assert_eq!(seen.column(kind::PAGES_FOR_NEXT_STEP), Some(&[1, 1][..]));
}

/// The prompt and the first token are billed once, however often the host computes them.
#[test]
fn what_is_computed_again_is_not_billed_again() {
    let mut prefill = scheduler(6);
    let mut ledger = TenantLedger::new(&[TenantShare { weight: 1, tier: 1 }; 4], 0);
    for seq in 1..=3 {
        prefill.submit(Entry { tenant: TenantId(seq as u32), ..entry(seq, 20, 4) }).unwrap();
    }
    let chunked = |_: &Budget, rows: &Table, _: &Table| Plan {
        run: (0..rows.rows).collect(),
        tokens: vec![5; rows.rows as usize],
        ..Plan::default()
    };
    for _ in 0..40 {
        let Some(plan) = step(&mut prefill, chunked) else { continue };
        ledger.charge(&plan);
        let done = prefilled(&commit(&mut prefill, &plan));
        release(&mut prefill, &done);
    }
    assert!(prefill.counters().preemptions > 0);
    assert_eq!([1, 2, 3].map(|tenant| ledger.served(TenantId(tenant))), [21, 21, 21]);
}

/// Found by the simulator: prompts that had lost their pages filled the queue, so one that the engine's door had let in was refused here,
/// and its client heard that the engine had failed.
#[test]
fn whoever_lost_its_pages_takes_no_place_in_the_queue() {
    let mut prefill = PrefillScheduler::new(StageLimits { max_waiting: 2, ..limits() }, pool(16));
    for seq in 1..=3 {
        prefill.submit(Entry { replay: vec![1], preemptions: 1, ..entry(seq, 4, 4) }).unwrap();
    }
    prefill.submit(entry(4, 4, 4)).unwrap();
    prefill.submit(entry(5, 4, 4)).unwrap();
    assert_eq!(prefill.submit(entry(6, 4, 4)), Err(SubmitError::QueueFull { max: 2 }));
    assert_eq!(prefill.counts().waiting, 5);
}
