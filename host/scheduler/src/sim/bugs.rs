//! Bugs that other servers had, each by its mechanism.

use millrace_core::SeqId;
use millrace_kv::TransferId;
use millrace_policy::Table;

use super::decode_rules::{commit, rows, scheduler, start, step};
use super::prefill_rules::in_order;
use super::world::{End, World};
use super::{entry, limits, pool};
use crate::{DecodeEvent, Entry, Outcome, OutcomeStatus, PrefillScheduler};

fn world() -> World {
    World::new(limits(), 12, 12, 1)
}

/// vLLM #18485: an abort before the first plan found no pages to free and raised.
#[test]
fn abort_before_the_first_plan() {
    let mut world = world();
    world.submit(entry(1, 6, 4)).unwrap();
    world.submit(entry(2, 6, 4)).unwrap();
    world.plan_prefill();
    world.abort(SeqId(1));
    world.dispatch_prefill();
    world.quiesce();
    assert_eq!(world.clients[&SeqId(2)].end, Some(End::Length));
}

/// vLLM #25067: an abort of a finished request freed it again.
#[test]
fn abort_after_the_end() {
    let mut world = world();
    world.submit(entry(1, 6, 4)).unwrap();
    world.quiesce();
    assert_eq!(world.clients[&SeqId(1)].end, Some(End::Length));
    world.abort(SeqId(1));
    world.abort(SeqId(77));
    world.quiesce();
}

/// vLLM #29987: an abort during the last step counted as success and kept the pages.
#[test]
fn abort_during_the_last_step() {
    let mut decode = scheduler(8, 0);
    start(&mut decode, &entry(1, 3, 2));
    let last = step(&mut decode).unwrap();
    assert!(decode.abort(SeqId(1)));
    assert_eq!(decode.pool().counts().free, 7, "the step may still write: its page rests");
    assert!(commit(&mut decode, &last, OutcomeStatus::Ok).is_empty(), "no event after an abort");
    assert_eq!(decode.pool().counts().free, 8);
}

/// vLLM #23347: a row that was chosen for this step was preempted by a later row of the same step, and still ran.
#[test]
fn a_row_preempted_within_its_own_step_does_not_run() {
    let mut decode = scheduler(4, 0);
    // 1 has room in its page and is chosen first; 2 is more urgent and needs a page.
    start(&mut decode, &entry(1, 9, 20));
    start(&mut decode, &Entry { priority: 5, ..entry(2, 3, 20) });
    let first = step(&mut decode).unwrap();
    assert_eq!(rows(&first), [1, 2]);
    commit(&mut decode, &first, OutcomeStatus::Ok);
    let draft = decode.plan(0, &mut in_order, &Table::default()).unwrap();
    assert_eq!(draft.rows(), 1);
    let second = decode.dispatch(draft).unwrap();
    assert_eq!(rows(&second), [2]);
    assert!(matches!(&decode.take_events()[..], [DecodeEvent::Preempted(entry)] if entry.seq == SeqId(1)));
    commit(&mut decode, &second, OutcomeStatus::Ok);
}

/// The same with the victim still in flight from the step before: what that step draws for it is not published.
#[test]
fn a_row_preempted_in_flight_publishes_nothing() {
    let mut decode = scheduler(4, 0);
    start(&mut decode, &entry(1, 7, 20));
    start(&mut decode, &entry(2, 7, 20));
    let first = step(&mut decode).unwrap();
    let draft = decode.plan(0, &mut in_order, &Table::default());
    let events = decode.take_events();
    assert!(matches!(&events[..], [DecodeEvent::Preempted(entry)] if entry.seq == SeqId(2) && entry.replay == [70]));
    assert!(draft.is_none(), "the pages come with the fence");
    assert_eq!(commit(&mut decode, &first, OutcomeStatus::Ok), [DecodeEvent::Token { seq: SeqId(1), token: 87 }]);
    assert_eq!(rows(&step(&mut decode).unwrap()), [1]);
}

/// vllm-ascend #16315: freed pages were not usable yet, so one sequence after the other was preempted and none got on.
#[test]
fn pages_that_the_fence_will_free_are_waited_for() {
    let mut decode = scheduler(8, 0);
    for seq in 1..=4 {
        start(&mut decode, &entry(seq, 6, 30));
    }
    let first = step(&mut decode).unwrap();
    commit(&mut decode, &first, OutcomeStatus::Ok);
    let second = step(&mut decode).unwrap();
    // All four need a page for position 8. Two give two pages each, which rest until `second` has ended.
    assert!(decode.plan(0, &mut in_order, &Table::default()).is_none());
    assert_eq!((decode.counts().running, decode.counters().preemptions), (2, 2));
    commit(&mut decode, &second, OutcomeStatus::Ok);
    assert_eq!(rows(&step(&mut decode).unwrap()), [1, 2]);
    assert_eq!(decode.counters().preemptions, 2);
}

/// vLLM #45357: step N+1 still wrote pages of a request that had ended, while another had them already.
#[test]
fn pages_of_a_row_in_flight_are_nobodys() {
    let mut decode = scheduler(2, 0);
    start(&mut decode, &entry(1, 3, 20));
    let running = step(&mut decode).unwrap();
    decode.abort(SeqId(1));
    assert_eq!(decode.pool().counts().free, 1);
    assert!(decode.reserve(&entry(2, 5, 20), 5, 1).is_err(), "two pages are not free before the step has ended");
    commit(&mut decode, &running, OutcomeStatus::Ok);
    assert_eq!(decode.reserve(&entry(2, 5, 20), 5, 1).unwrap().len(), 2);
}

/// vLLM #50425: a client that left between prefill and decode kept the prefill pages for ever. SGLang #35049: an abort
/// freed destination pages under a write in flight.
#[test]
fn a_client_that_leaves_during_the_hand_off() {
    for legs in 0..4 {
        let mut world = world();
        world.submit(entry(1, 9, 8)).unwrap();
        while world.open_hand_offs() == 0 {
            world.plan_prefill();
            world.dispatch_prefill();
            world.commit_prefill();
        }
        (0..legs).for_each(|_| world.hand_off(0));
        world.abort(SeqId(1));
        world.check();
        let resting = [world.prefill.pool(), world.decode.pool()].map(|pool| pool.counts().quarantined > 0);
        assert_eq!(resting, [legs > 0; 2], "pages rest as long as the transfer may touch them ({legs} legs)");
        world.quiesce();
    }
}

/// SGLang #38961: a deferred release gave up waiting and freed under the writer.
#[test]
fn no_step_frees_what_a_transfer_holds() {
    let mut decode = scheduler(4, 0);
    let pages = decode.reserve(&entry(1, 7, 4), 7, 1).unwrap();
    decode.hold(&pages, TransferId(1)).unwrap();
    decode.cancel(SeqId(1));
    start(&mut decode, &entry(2, 3, 4));
    for _ in 0..3 {
        let plan = step(&mut decode).unwrap();
        commit(&mut decode, &plan, OutcomeStatus::Ok);
    }
    assert_eq!(decode.pool().counts().quarantined, 2);
    decode.drain(TransferId(1));
    assert_eq!(decode.pool().counts().free, 4);
}

/// vLLM #41951: preempted requests went behind new ones and recomputed again and again.
#[test]
fn a_preempted_entry_comes_back_first() {
    let mut prefill = PrefillScheduler::new(limits(), pool(8));
    prefill.submit(Entry { priority: 9, ..entry(1, 16, 4) }).unwrap();
    prefill.submit(Entry { replay: vec![3], preemptions: 1, ..entry(5, 16, 4) }).unwrap();
    let draft = prefill.plan(0, &mut in_order, &Table::default()).unwrap();
    assert_eq!(prefill.dispatch(draft).unwrap().rows[0].seq, SeqId(5));
}

/// Tag changes travel with steps; those of a step that never comes must travel with the next.
#[test]
fn a_draft_whose_rows_are_all_gone_loses_no_tag_change() {
    let mut decode = scheduler(4, 0);
    start(&mut decode, &entry(1, 3, 20));
    decode.take_changes();
    let draft = decode.plan(0, &mut in_order, &Table::default()).unwrap();
    decode.abort(SeqId(1));
    assert!(decode.dispatch(draft).is_none() && decode.in_flight().is_none());
    assert_eq!(decode.counters().stale_rows, 1);
    start(&mut decode, &entry(2, 7, 20));
    let plan = step(&mut decode).unwrap();
    let changed: Vec<bool> = plan.changes.iter().map(|change| change.zero).collect();
    assert_eq!(
        (plan.step, changed),
        (1, vec![true, false]),
        "the freed page, taken again, is zeroed and tagged, the other tagged"
    );
}

/// A page forced away from a running sequence: that one ends as stale, its neighbours with the tokens that they have alone.
#[test]
fn a_stolen_page_costs_one_sequence() {
    let mut world = world();
    for seq in 1..=3 {
        world.submit(entry(seq, 6, 12)).unwrap();
    }
    while world.decode.counts().running < 3 {
        world.turn();
    }
    while world.thefts.is_empty() {
        world.steal(SeqId(2));
    }
    while world.clients[&SeqId(2)].end.is_none() {
        world.turn();
    }
    assert_eq!(world.clients[&SeqId(2)].end, Some(End::Stale));
    world.return_theft();
    assert_eq!(world.decode.pool().suspects().len(), 1, "the page that was stolen, and no other");
    world.readmit_all();
    world.quiesce();
    for seq in [1, 3] {
        let client = &world.clients[&SeqId(seq)];
        assert_eq!((client.end, client.tokens.len()), (Some(End::Length), 12));
    }
}

/// A sequence may be preempted, prefilled again and handed off again while the step that it was in still runs.
#[test]
fn an_outcome_of_an_earlier_stay_is_not_this_ones() {
    let mut decode = scheduler(8, 0);
    start(&mut decode, &entry(1, 3, 20));
    let old = step(&mut decode).unwrap();
    decode.abort(SeqId(1));
    start(&mut decode, &entry(1, 3, 20));
    assert!(commit(&mut decode, &old, OutcomeStatus::Ok).is_empty());
    let new = step(&mut decode).unwrap();
    assert_eq!((new.rows[0].start, new.rows[0].tokens[0]), (3, 70));

    let mut prefill = PrefillScheduler::new(limits(), pool(8));
    prefill.submit(entry(1, 3, 20)).unwrap();
    let draft = prefill.plan(0, &mut in_order, &Table::default()).unwrap();
    let old = prefill.dispatch(draft).unwrap();
    prefill.abort(SeqId(1));
    prefill.submit(entry(1, 3, 20)).unwrap();
    let row = &old.rows[0];
    let outcome = Outcome { seq: row.seq, epoch: row.epoch, token: 1, status: OutcomeStatus::NotFinite };
    assert!(prefill.commit(old.step, &[outcome]).is_empty());
    prefill.check_invariants().unwrap();
    assert_eq!(prefill.counts().waiting, 1);
}

/// vLLM #47728: what was scheduled is not what was computed. A draft that counted on a chunk that never ran is stale, and so
/// is one whose rows ran already.
#[test]
fn a_draft_holds_only_for_the_position_that_it_was_made_for() {
    let mut prefill = PrefillScheduler::new(limits(), pool(16));
    prefill.submit(entry(1, 40, 4)).unwrap();
    let draft = prefill.plan(0, &mut in_order, &Table::default()).unwrap();
    let first = prefill.dispatch(draft).unwrap();
    let ahead = prefill.plan(0, &mut in_order, &Table::default()).unwrap();
    assert!(prefill.commit(first.step, &[]).is_empty());
    assert!(prefill.dispatch(ahead).is_none());

    let mut decode = scheduler(8, 0);
    start(&mut decode, &entry(1, 3, 20));
    let draft = decode.plan(0, &mut in_order, &Table::default()).unwrap();
    let twin = decode.plan(0, &mut in_order, &Table::default()).unwrap();
    let plan = decode.dispatch(draft).unwrap();
    commit(&mut decode, &plan, OutcomeStatus::Ok);
    assert!(decode.dispatch(twin).is_none());
}
