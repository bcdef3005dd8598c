//! Each rule of prefill over the prefix tree on its own. Pages have 4 tokens, steps 16.

use millrace_core::{SeqId, TenantId};
use millrace_policy::Table;

use super::prefill_rules::{chunks, commit, in_order, prefilled, step};
use super::{caching_pool, entry, limits, pool, stemmed};
use crate::{Entry, Outcome, OutcomeStatus, PrefillEvent, PrefillScheduler, StepPlan, TenantLedger, TenantShare};

pub(super) fn scheduler(pages: u32) -> PrefillScheduler {
    PrefillScheduler::new(limits(), caching_pool(pages, u32::MAX))
}

/// All of its prompt is the stem's.
pub(super) fn alike(seq: u64, tokens: u32) -> Entry {
    stemmed(entry(seq, tokens, 4), 1, (0, tokens))
}

/// Submits a prompt and runs it to its hand-off; returns the first position that was computed, and what was said of it.
fn run(prefill: &mut PrefillScheduler, entry: Entry) -> (u32, u32) {
    let seq = entry.seq;
    prefill.submit(entry).unwrap();
    let mut first = None;
    loop {
        let plan = step(prefill, in_order).unwrap();
        first = first.or_else(|| plan.rows.iter().find(|row| row.seq == seq).map(|row| row.start));
        for event in commit(prefill, &plan) {
            match event {
                PrefillEvent::Prefilled { entry, cached_tokens, .. } if entry.seq == seq => {
                    return (first.unwrap(), cached_tokens);
                }
                _ => {}
            }
        }
    }
}

pub(super) fn run_and_leave(prefill: &mut PrefillScheduler, entry: Entry) -> (u32, u32) {
    let seq = entry.seq;
    let ran = run(prefill, entry);
    assert!(prefill.release_handed_off(seq));
    prefill.check_invariants().unwrap();
    ran
}

fn fail(prefill: &mut PrefillScheduler, plan: &StepPlan, status: OutcomeStatus) {
    let of = |row: &crate::PlanRow| Outcome { seq: row.seq, epoch: row.epoch, token: 0, status };
    prefill.commit(plan.step, &plan.rows.iter().map(of).collect::<Vec<_>>());
    prefill.check_invariants().unwrap();
}

#[test]
fn a_prompt_begins_behind_what_the_tree_has_of_it() {
    let mut prefill = scheduler(16);
    assert_eq!(run_and_leave(&mut prefill, alike(1, 14)), (0, 0));
    assert_eq!(run_and_leave(&mut prefill, alike(2, 30)), (12, 12));
    assert_eq!(run_and_leave(&mut prefill, alike(3, 30)), (28, 28));
    assert_eq!(run_and_leave(&mut prefill, alike(4, 9)), (8, 8), "a prompt that is the beginning of a cached one");
    assert_eq!(run_and_leave(&mut prefill, alike(5, 16)), (12, 12), "one token at least, so the last page again");
    let counters = prefill.counters();
    assert_eq!(counters.computed_tokens, 14 + 18 + 2 + 1 + 4);
    assert_eq!((counters.prefix_queried_tokens, counters.prefix_hit_tokens), (14 + 30 + 30 + 9 + 16, 12 + 28 + 8 + 12));
    let counts = prefill.pool().counts();
    assert_eq!((counts.evictable, counts.pinned, counts.free), (7, 0, 9));
}

#[test]
fn pages_enter_when_their_step_has_ended_and_not_before() {
    let mut prefill = scheduler(16);
    prefill.submit(alike(1, 16)).unwrap();
    let first = step(&mut prefill, in_order).unwrap();
    // Planned ahead, while the pages are being written.
    prefill.submit(alike(2, 16)).unwrap();
    let ahead = prefill.plan(0, &mut in_order, &Table::default()).unwrap();
    assert_eq!(prefill.pool().cached_pages(), 0);
    commit(&mut prefill, &first);
    assert_eq!(prefill.pool().cached_pages(), 4);
    let second = prefill.dispatch(ahead).unwrap();
    assert_eq!(chunks(&second), [(2, 0, 16, true)]);
    let events = commit(&mut prefill, &second);
    assert!(matches!(&events[..], [PrefillEvent::Prefilled { cached_tokens: 0, .. }]));
    assert_eq!((prefill.pool().cached_pages(), prefill.pool().counts().pinned), (4, 4), "both end on one set of pages");
}

#[test]
fn what_did_not_run_does_not_enter() {
    let mut prefill = scheduler(16);
    prefill.submit(alike(1, 16)).unwrap();
    let plan = step(&mut prefill, in_order).unwrap();
    prefill.commit(plan.step, &[]);
    assert_eq!(prefill.pool().cached_pages(), 0);
    prefill.abort(SeqId(1));
    assert_eq!(run(&mut prefill, alike(2, 16)), (0, 0));
}

#[test]
fn identical_prompts_of_one_step_hand_the_same_pages_off() {
    let mut prefill = scheduler(16);
    prefill.submit(alike(1, 7)).unwrap();
    prefill.submit(alike(2, 7)).unwrap();
    let plan = step(&mut prefill, in_order).unwrap();
    assert_eq!(chunks(&plan), [(1, 0, 7, true), (2, 0, 7, true)]);
    let handed: Vec<_> = commit(&mut prefill, &plan)
        .into_iter()
        .map(|event| match event {
            PrefillEvent::Prefilled { pages, .. } => pages,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(handed[0][0], handed[1][0]);
    assert_ne!(handed[0][1], handed[1][1], "the last page is part full and each one's own");
    assert!(prefill.release_handed_off(SeqId(1)));
    assert!(handed[1].iter().all(|&page| prefill.pool().is_current(page)), "the other's hand-off still reads it");
    assert!(prefill.release_handed_off(SeqId(2)));
    assert_eq!((prefill.pool().counts().evictable, prefill.pool().counts().free), (1, 15));
}

/// Waiting, with a chunk in flight, between chunks, handing off.
#[test]
fn an_abort_gives_pins_back_in_every_state() {
    for steps in 0..4 {
        let mut prefill = scheduler(16);
        run_and_leave(&mut prefill, alike(1, 9));
        prefill.submit(alike(2, 40)).unwrap();
        let mut running = None;
        for _ in 0..steps {
            if let Some(plan) = running.take() {
                commit(&mut prefill, &plan);
            } else {
                running = step(&mut prefill, in_order);
            }
        }
        assert_eq!(prefill.pool().counts().pinned > 0, steps > 0);
        assert!(prefill.abort(SeqId(2)) && !prefill.abort(SeqId(2)));
        prefill.check_invariants().unwrap();
        assert_eq!(prefill.pool().counts().pinned, 0);
        if let Some(plan) = running {
            commit(&mut prefill, &plan);
        }
        let counts = prefill.pool().counts();
        assert_eq!(counts.available(), 16, "{steps} steps");
        assert_eq!(counts.evictable, if steps < 2 { 2 } else { 6 });
    }
    let mut prefill = scheduler(16);
    run(&mut prefill, alike(1, 9));
    assert!(prefill.abort(SeqId(1)));
    assert_eq!((prefill.pool().counts().pinned, prefill.pool().counts().available()), (0, 16));
}

#[test]
fn cached_pages_go_before_anybody_is_reset() {
    let mut prefill = scheduler(10);
    run_and_leave(&mut prefill, alike(1, 24));
    assert_eq!(prefill.pool().counts().evictable, 6);
    // Ten pages in all for two prompts of five.
    for seq in [2, 3] {
        prefill.submit(stemmed(entry(seq, 20, 4), 1, (seq as u32, 20))).unwrap();
    }
    let mut done = Vec::new();
    while let Some(plan) = step(&mut prefill, in_order) {
        done.extend(prefilled(&commit(&mut prefill, &plan)));
    }
    assert_eq!((done, prefill.counters().preemptions), (vec![2, 3], 0));
    assert_eq!(prefill.pool().prefix_counters().evicted, 6);
}

/// vLLM #37164 in one pass: the first prompt finds pages that nobody holds, the second wants every page there is.
#[test]
fn what_one_prompt_found_no_other_of_the_same_pass_gets() {
    let mut prefill = scheduler(4);
    run_and_leave(&mut prefill, alike(1, 9));
    prefill.submit(alike(2, 12)).unwrap();
    prefill.submit(entry(3, 16, 4)).unwrap();
    let plan = step(&mut prefill, in_order).unwrap();
    assert_eq!(chunks(&plan), [(2, 8, 4, true)], "one page was free for each, and the third waits for three more");
    assert_eq!(prefilled(&commit(&mut prefill, &plan)), [2]);
    assert_eq!(prefill.counts().waiting, 1);
}

/// What a waiting prompt finds and cannot use stays where it was.
#[test]
fn a_lookup_that_leads_nowhere_pins_nothing() {
    let mut prefill = scheduler(5);
    run_and_leave(&mut prefill, alike(1, 9));
    run(&mut prefill, entry(2, 12, 4));
    prefill.submit(alike(3, 16)).unwrap();
    for _ in 0..3 {
        assert!(step(&mut prefill, in_order).is_none());
        prefill.check_invariants().unwrap();
        assert_eq!((prefill.pool().counts().pinned, prefill.pool().counts().evictable), (3, 2));
    }
    prefill.release_handed_off(SeqId(2));
    assert_eq!(chunks(&step(&mut prefill, in_order).unwrap()), [(3, 8, 8, true)]);
    assert_eq!(prefill.counters().prefix_queried_tokens, 9 + 16, "counted when it gets its pages");
}

/// One blocked prompt would else empty the tree, and again in every plan.
#[test]
fn a_prompt_that_cannot_fit_evicts_nothing() {
    let mut prefill = scheduler(9);
    run_and_leave(&mut prefill, alike(1, 13));
    run(&mut prefill, entry(2, 12, 4));
    run(&mut prefill, entry(3, 12, 4));
    assert_eq!((prefill.pool().counts().free, prefill.pool().counts().evictable), (0, 3));
    prefill.submit(entry(4, 16, 4)).unwrap();
    for _ in 0..3 {
        assert!(step(&mut prefill, in_order).is_none(), "it wants four pages");
        assert_eq!((prefill.pool().counts().evictable, prefill.pool().prefix_counters().evicted), (3, 0));
    }
    prefill.release_handed_off(SeqId(2));
    assert_eq!(chunks(&step(&mut prefill, in_order).unwrap()), [(4, 0, 16, true)]);
    assert_eq!((prefill.pool().counts().evictable, prefill.pool().prefix_counters().evicted), (2, 1), "only what it lacks");
}

#[test]
fn numbers_that_are_none_take_their_pages_out_of_the_tree() {
    let mut prefill = scheduler(16);
    run_and_leave(&mut prefill, stemmed(entry(9, 9, 4), 1, (5, 9)));
    prefill.submit(alike(1, 20)).unwrap();
    let first = step(&mut prefill, in_order).unwrap();
    commit(&mut prefill, &first);
    assert_eq!(prefill.pool().cached_pages(), 2 + 4);
    let second = step(&mut prefill, in_order).unwrap();
    fail(&mut prefill, &second, OutcomeStatus::NotFinite);
    assert_eq!((prefill.pool().cached_pages(), prefill.pool().counts().available()), (2, 16));
    assert_eq!(run(&mut prefill, alike(2, 20)), (0, 0));
}

/// A mismatch keeps the sequence and all that it read out of the tree; who computes the same again is served by it.
#[test]
fn a_mismatch_takes_the_sequences_pages_out_of_the_tree() {
    let mut prefill = scheduler(16);
    run_and_leave(&mut prefill, alike(1, 9));
    prefill.submit(alike(2, 40)).unwrap();
    let plan = step(&mut prefill, in_order).unwrap();
    fail(&mut prefill, &plan, OutcomeStatus::StalePage);
    let counts = prefill.pool().counts();
    assert_eq!((prefill.pool().cached_pages(), counts.suspect, counts.pinned), (0, 6, 0));
    assert_eq!(run_and_leave(&mut prefill, alike(3, 9)), (0, 0));
    assert_eq!(run_and_leave(&mut prefill, alike(4, 9)), (8, 8));
}

#[test]
fn a_prompt_without_a_scope_shares_nothing() {
    let mut prefill = scheduler(16);
    let alone = |seq| Entry { scope: None, ..alike(seq, 14) };
    assert_eq!(run_and_leave(&mut prefill, alone(1)), (0, 0));
    assert_eq!(run_and_leave(&mut prefill, alone(2)), (0, 0));
    assert_eq!((prefill.pool().cached_pages(), prefill.counters().prefix_queried_tokens), (0, 0));
}

#[test]
fn without_a_tree_a_scope_changes_nothing() {
    let mut prefill = PrefillScheduler::new(limits(), pool(16));
    assert_eq!(run_and_leave(&mut prefill, alike(1, 14)), (0, 0));
    assert_eq!(run_and_leave(&mut prefill, alike(2, 14)), (0, 0));
    let counters = prefill.counters();
    assert_eq!((prefill.pool().counts().free, counters.computed_tokens, counters.prefix_queried_tokens), (16, 28, 0));
}

/// As many tokens are computed for a prompt whether or not another scope has it; the control in its own scope shows that it
/// was there to be found.
#[test]
fn no_scope_sees_what_another_has_cached() {
    let of_scope = |seq, scope| stemmed(entry(seq, 30, 4), scope, (0, 30));
    let computed = |before: Option<u8>, scope: u8| {
        let mut prefill = scheduler(32);
        if let Some(before) = before {
            run_and_leave(&mut prefill, of_scope(1, before));
        }
        let then = prefill.counters().computed_tokens;
        run_and_leave(&mut prefill, of_scope(2, scope));
        prefill.counters().computed_tokens - then
    };
    assert_eq!([computed(None, 1), computed(Some(2), 1), computed(Some(1), 1)], [30, 30, 2]);
}

#[test]
fn what_was_found_is_not_billed() {
    let mut prefill = scheduler(16);
    let mut ledger = TenantLedger::new(&[TenantShare { weight: 1, tier: 1 }; 2], 0);
    for seq in [1, 2] {
        prefill.submit(Entry { tenant: TenantId(seq as u32 - 1), ..alike(seq, 10) }).unwrap();
        let plan = step(&mut prefill, in_order).unwrap();
        ledger.charge(&plan);
        commit(&mut prefill, &plan);
    }
    // And the first token of each.
    assert_eq!([0, 1].map(|tenant| ledger.served(TenantId(tenant))), [11, 3]);
}
