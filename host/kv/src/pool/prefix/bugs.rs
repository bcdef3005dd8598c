//! Bugs that other servers' prefix caches had, each by its mechanism.

use super::rules::{OTHER, OWNER, SCOPE, pool, prefill, prefilled, tokens};
use crate::{PageRef, Prompt, TransferId};

/// vLLM #37164: a lookup found a block that nobody held, and another request of the same pass took it before it was touched.
#[test]
fn what_was_looked_up_is_nobody_elses() {
    let mut pool = pool(3, u32::MAX);
    prefilled(&mut pool, (SCOPE, OWNER), &tokens(9));
    assert_eq!(pool.counts().evictable, 2);
    let found = pool.lookup_and_pin(SCOPE, &tokens(9));
    pool.make_room(3, OWNER);
    assert!(pool.allocate(2).is_err(), "one page is left for whoever comes next");
    let other = pool.allocate(1).unwrap();
    assert!(found.iter().all(|&page| pool.is_current(page) && page.page != other[0].page));
}

/// vLLM #45357: a step still wrote pages of a request that had ended when another got them.
#[test]
fn an_evicted_page_rests_until_all_who_used_it_are_done() {
    let mut pool = pool(2, u32::MAX);
    let (first, _) = prefill(&mut pool, (SCOPE, OWNER), &tokens(5));
    let second = pool.lookup_and_pin(SCOPE, &tokens(5));
    // The one that leaves first was in the later step.
    pool.release(&first, 9).unwrap();
    pool.release(&second, 7).unwrap();
    pool.make_room(2, OWNER);
    assert_eq!((pool.counts().free, pool.counts().settling), (0, 2));
    pool.fence(8);
    assert!(pool.allocate(1).is_err(), "step 9 may still read it");
    pool.fence(9);
    assert_eq!(pool.counts().free, 2);
}

/// vLLM #52360, SGLang #35049: a page was freed and written while a transfer still read it, and the wrong bytes went on under a
/// content key.
#[test]
fn no_eviction_frees_what_a_transfer_reads() {
    let mut pool = pool(3, u32::MAX);
    let (table, _) = prefill(&mut pool, (SCOPE, OWNER), &tokens(9));
    pool.hold(table[1], TransferId(1)).unwrap();
    pool.release(&table, 0).unwrap();
    pool.make_room(3, OWNER);
    assert_eq!((pool.counts().free, pool.counts().evictable), (1, 2), "it stays, and so does what it is behind");
    assert_eq!((pool.counts().evictable_held, pool.counts().available()), (1, 2));
    assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &tokens(9)), 2, "it still can be found");
    pool.forget(&table[..1]).unwrap();
    assert_eq!((pool.counts().free, pool.counts().quarantined), (2, 1), "even forgotten it rests");
    pool.drain(TransferId(1));
    assert_eq!(pool.counts().free, 3);
}

/// vLLM #52234: a stale reference after a reuse of its block was answered with the prompt before.
#[test]
fn a_page_that_was_handed_out_again_is_no_hit() {
    let mut pool = pool(6, u32::MAX);
    let (table, _) = prefill(&mut pool, (SCOPE, OWNER), &tokens(13));
    let stolen = pool.force_reassign(table[1].page).unwrap();
    assert_eq!(pool.lookup_and_pin(SCOPE, &tokens(13)), table[..1], "nor is what was computed behind it");
    assert_eq!((pool.cached_pages(), pool.pins(table[0])), (1, 2));
    // Who lost the page cannot put the rest back.
    let mut lost = table.clone();
    let prompt = Prompt { scope: SCOPE, owner: OWNER, tokens: &tokens(13) };
    assert_eq!(pool.insert(&prompt, &mut lost, 3, 0).unwrap(), 3);
    assert_eq!(pool.insert(&prompt, &mut lost, 1, 0).unwrap(), 1);
    assert_eq!((pool.cached_pages(), &lost), (1, &table));
    let current: Vec<PageRef> = table.iter().copied().filter(|&page| pool.is_current(page)).collect();
    assert_eq!(current, [table[0], table[2], table[3]]);
    pool.release(&current, 0).unwrap();
    pool.release(&[table[0], stolen], 0).unwrap();
    pool.check_invariants().unwrap();
    assert_eq!((pool.counts().free, pool.counts().evictable), (5, 1));
}

/// The thief gives the page back before anybody looked: its number may be another's by the next lookup.
#[test]
fn a_node_does_not_outlive_its_page() {
    let mut pool = pool(2, u32::MAX);
    let (table, _) = prefill(&mut pool, (SCOPE, OWNER), &tokens(8));
    let stolen = pool.force_reassign(table[0].page).unwrap();
    pool.release(&[stolen], 0).unwrap();
    assert_eq!((pool.cached_pages(), pool.counts().free), (0, 1));
    let taken = pool.allocate(1).unwrap();
    assert_eq!(taken[0].page, table[0].page);
    assert!(pool.lookup_and_pin(SCOPE, &tokens(8)).is_empty());
    pool.check_invariants().unwrap();
}

/// SGLang #22811, vLLM #52360: pages under a content key that nobody doubts poison every prompt that begins alike, for ever.
#[test]
fn a_page_in_doubt_leaves_with_all_behind_it_and_does_not_come_back() {
    let mut pool = pool(10, u32::MAX);
    let (table, _) = prefill(&mut pool, (SCOPE, OWNER), &tokens(13));
    let mut shared = pool.lookup_and_pin(SCOPE, &tokens(21));
    assert_eq!(shared.len(), 3);
    shared.extend(pool.allocate(3).unwrap());
    pool.suspect(table[1]).unwrap();
    assert_eq!((pool.cached_pages(), pool.counts().suspect_pinned), (1, 1));
    // Another sequence that reads the same pages brings none of them back, nor what it computed from them.
    let prompt = Prompt { scope: SCOPE, owner: OWNER, tokens: &tokens(21) };
    assert_eq!(pool.insert(&prompt, &mut shared, 3, 0).unwrap(), 3);
    assert_eq!(pool.insert(&prompt, &mut shared, 1, 0).unwrap(), 1);
    assert_eq!(pool.cached_pages(), 1);
    pool.release(&table, 0).unwrap();
    pool.release(&shared, 0).unwrap();
    assert_eq!((pool.counts().suspect, pool.counts().evictable, pool.counts().free), (1, 1, 8));
    // Computed anew, they are welcome.
    assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &tokens(13)), 1);
    assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &tokens(13)), 3);
}

/// Numbers that are none (a NaN among keys) are no tag's business, but reach every prompt that shares the page.
#[test]
fn what_is_forgotten_may_not_come_back_before_it_is_computed_anew() {
    let mut pool = pool(8, u32::MAX);
    let (mut table, _) = prefill(&mut pool, (SCOPE, OWNER), &tokens(9));
    pool.forget(&table).unwrap();
    let prompt = Prompt { scope: SCOPE, owner: OWNER, tokens: &tokens(9) };
    assert_eq!(pool.insert(&prompt, &mut table, 0, 0).unwrap(), 0);
    assert_eq!((pool.cached_pages(), pool.suspects()), (0, vec![]));
    pool.release(&table, 0).unwrap();
    assert_eq!(pool.counts().free, 8, "without suspicion they are free at once");
}

/// vLLM #53347, SGLang #26747, LMCache #4825, ktransformers #2184: a salt that got lost on the way. "No reuse" alone would also
/// pass with the cache off, so the same prompt must hit in its own scope.
#[test]
fn another_scope_misses_where_the_same_scope_hits() {
    let mut pool = pool(8, u32::MAX);
    prefilled(&mut pool, (SCOPE, OWNER), &tokens(9));
    assert!(pool.lookup_and_pin(OTHER, &tokens(9)).is_empty());
    assert_eq!(pool.lookup_and_pin(SCOPE, &tokens(9)).len(), 2);
}

/// vLLM #46283: blocks that were held back never came back. The cache gives everything up that nobody uses.
#[test]
fn a_full_cache_never_keeps_a_prompt_out() {
    let mut pool = pool(4, u32::MAX);
    for prompt in 0..50_u32 {
        let tokens: Vec<u32> = (prompt * 100..prompt * 100 + 16).collect();
        assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &tokens), 0);
        assert_eq!(pool.counts().available(), 4);
    }
}

/// mistral.rs #121: three messages, then the first alone: a cached run that is longer than the prompt.
#[test]
fn a_prompt_that_is_shorter_than_what_is_cached() {
    let mut pool = pool(16, u32::MAX);
    prefilled(&mut pool, (SCOPE, OWNER), &tokens(40));
    for count in 1..40 {
        let found = prefilled(&mut pool, (SCOPE, OWNER), &tokens(count));
        assert_eq!(found as u32, (count - 1) / 4);
    }
}
