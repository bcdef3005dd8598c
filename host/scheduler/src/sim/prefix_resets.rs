//! Prompts that lose their pages and come back to a prefix tree that may have them. Pages have 4 tokens, steps 16.

use std::collections::BTreeMap;

use millrace_policy::{Budget, Plan, Table};

use super::prefill_rules::{commit, step};
use super::prefix_rules::{alike, run_and_leave, scheduler};
use super::{entry, stemmed};
use crate::{Entry, PrefillEvent};

/// What decode threw out comes back as a new prompt, and finds what it had computed itself.
#[test]
fn what_a_preempted_prompt_finds_of_its_own_is_no_hit() {
    let mut prefill = scheduler(16);
    run_and_leave(&mut prefill, alike(1, 14));
    assert_eq!(run_and_leave(&mut prefill, Entry { preemptions: 1, ..alike(2, 14) }), (12, 0));
    let counters = prefill.counters();
    assert_eq!((counters.prefix_queried_tokens, counters.prefix_hit_tokens, counters.computed_tokens), (14, 0, 16));
}

/// A prompt that lost its pages may find its own again; that was no hit for its client.
#[test]
fn what_a_reset_prompt_finds_of_its_own_is_no_hit() {
    let mut prefill = scheduler(6);
    for seq in [1, 2] {
        prefill.submit(stemmed(entry(seq, 20, 4), 1, (seq as u32, 20))).unwrap();
    }
    let halves = |_: &_, rows: &Table, _: &_| Plan {
        run: (0..rows.rows).collect(),
        tokens: vec![8; rows.rows as usize],
        ..Default::default()
    };
    let (mut hits, mut turns) = (Vec::new(), 0);
    while hits.len() < 2 && turns < 40 {
        turns += 1;
        let Some(plan) = step(&mut prefill, halves) else { continue };
        for event in commit(&mut prefill, &plan) {
            let PrefillEvent::Prefilled { entry, cached_tokens, .. } = event else { continue };
            hits.push(cached_tokens);
            prefill.release_handed_off(entry.seq);
        }
    }
    assert_eq!((hits, prefill.counters().preemptions), (vec![0, 0], 1));
    let counters = prefill.counters();
    assert_eq!((counters.prefix_hit_tokens, counters.computed_tokens), (0, 44), "one of its two pages was still there");
}

/// What it began behind is gone when it comes back, so that it was computed after all.
#[test]
fn a_reset_prompt_says_no_more_than_it_found_in_the_end() {
    let mut prefill = scheduler(6);
    run_and_leave(&mut prefill, alike(9, 9));
    for seq in [1, 2] {
        prefill.submit(stemmed(entry(seq, 20, 4), 1, (0, 8))).unwrap();
    }
    let mut cached = BTreeMap::new();
    for _ in 0..40 {
        let Some(plan) = step(&mut prefill, quarters) else { continue };
        if prefill.counters().preemptions == 1 {
            prefill.forget_prefixes();
        }
        for event in commit(&mut prefill, &plan) {
            let PrefillEvent::Prefilled { entry, cached_tokens, .. } = event else { continue };
            cached.insert(entry.seq.0, cached_tokens);
            prefill.release_handed_off(entry.seq);
        }
    }
    assert_eq!((cached, prefill.counters().preemptions), ([(1, 8), (2, 0)].into(), 1));
}

/// All rows, 4 tokens each.
fn quarters(_: &Budget, rows: &Table, _: &Table) -> Plan {
    Plan { run: (0..rows.rows).collect(), tokens: vec![4; rows.rows as usize], ..Default::default() }
}
