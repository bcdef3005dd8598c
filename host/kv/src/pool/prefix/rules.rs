//! Each rule of the prefix cache on its own.

use crate::{
    KvError, PageCounts, PagePool, PageRef, PoolOptions, PrefixCounters, PrefixOptions, PrefixOwner, PrefixScope, Prompt, Tag,
    ZeroFreed,
};

pub(super) const SCOPE: PrefixScope = PrefixScope([1; 32]);
pub(super) const OTHER: PrefixScope = PrefixScope([2; 32]);
pub(super) const OWNER: PrefixOwner = PrefixOwner(0);

/// Pages of 4 tokens.
pub(super) fn pool(pages: u32, owner_pages: u32) -> PagePool {
    let options = PoolOptions { pages, page_tokens: 4, boot_nonce: 7, zero_freed: ZeroFreed::Zero };
    let mut pool = PagePool::new(options).unwrap();
    pool.cache_prefixes(PrefixOptions { owner_pages });
    pool
}

pub(super) fn tokens(count: u32) -> Vec<u32> {
    (0..count).collect()
}

/// A prompt that runs through the pool as a sequence would: looked up, the rest computed, inserted. Returns its table and how
/// many pages it found.
pub(super) fn prefill(pool: &mut PagePool, by: (PrefixScope, PrefixOwner), tokens: &[u32]) -> (Vec<PageRef>, usize) {
    let (scope, owner) = by;
    let mut table = pool.lookup_and_pin(scope, tokens);
    let found = table.len();
    let missing = tokens.len().div_ceil(4) as u32 - found as u32;
    pool.make_room(missing, owner);
    table.extend(pool.allocate(missing).unwrap());
    pool.insert(&Prompt { scope, owner, tokens }, &mut table, found, 0).unwrap();
    pool.check_invariants().unwrap();
    (table, found)
}

/// The same for a sequence that has left again.
pub(super) fn prefilled(pool: &mut PagePool, by: (PrefixScope, PrefixOwner), tokens: &[u32]) -> usize {
    let (table, found) = prefill(pool, by, tokens);
    pool.release(&table, 0).unwrap();
    pool.check_invariants().unwrap();
    found
}

#[test]
fn whole_pages_outlive_their_sequence_and_are_found_by_the_next() {
    let mut pool = pool(8, u32::MAX);
    assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &tokens(10)), 0);
    let counts = PageCounts { total: 8, free: 6, evictable: 2, ..PageCounts::default() };
    assert_eq!((pool.counts(), pool.counts().available()), (counts, 8), "the third page was not full");
    let found = pool.lookup_and_pin(SCOPE, &tokens(10));
    assert_eq!((found.len(), pool.counts().pinned, pool.counts().evictable), (2, 2, 0));
    let again = pool.lookup_and_pin(SCOPE, &tokens(10));
    assert_eq!((&again, pool.pins(found[0])), (&found, 2), "shared under one tag");
    pool.release(&found, 0).unwrap();
    assert_eq!(pool.counts().pinned, 2, "the other still pins them");
    pool.release(&again, 0).unwrap();
    assert_eq!(pool.counts(), counts);
}

/// There are no logits to draw from without a token to compute.
#[test]
fn at_least_one_token_is_always_computed() {
    let mut pool = pool(8, u32::MAX);
    prefilled(&mut pool, (SCOPE, OWNER), &tokens(12));
    assert_eq!(pool.counts().evictable, 3);
    let found = [0, 1, 4, 5, 8, 9, 12, 13].map(|count| {
        let pages = pool.lookup_and_pin(SCOPE, &tokens(count));
        pool.release(&pages, 0).unwrap();
        pages.len()
    });
    assert_eq!(found, [0, 0, 0, 1, 1, 2, 2, 3]);
}

#[test]
fn a_prompt_and_a_longer_one_share_what_they_have_in_common_whichever_comes_first() {
    for [first, second] in [[9, 21], [21, 9]] {
        let mut pool = pool(8, u32::MAX);
        assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &tokens(first)), 0);
        assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &tokens(second)), 2);
        assert_eq!(pool.cached_pages(), 5, "each page of tokens once");
    }
}

#[test]
fn prompts_that_part_within_a_page_share_up_to_that_page() {
    let mut pool = pool(12, u32::MAX);
    prefilled(&mut pool, (SCOPE, OWNER), &tokens(12));
    let mut other = tokens(12);
    other[7] = 99;
    assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &other), 1, "one token differs, at the end of the second page");
    assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &other), 2);
    let mut behind = tokens(12);
    behind[0] = 99;
    assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &behind), 0, "equal tokens behind another beginning are others");
}

#[test]
fn identical_prompts_that_arrive_together_end_on_one_set_of_pages() {
    let mut pool = pool(12, u32::MAX);
    let prompt = Prompt { scope: SCOPE, owner: OWNER, tokens: &tokens(9) };
    let mut tables = [pool.allocate(3).unwrap(), pool.allocate(3).unwrap()];
    let own = tables[1].clone();
    // Both compute their first page before either has the second.
    for (computed, cached) in [(5, 0), (9, 1)] {
        let part = Prompt { tokens: &prompt.tokens[..computed], ..prompt };
        for table in &mut tables {
            assert_eq!(pool.insert(&part, table, cached, 3).unwrap(), computed / 4);
            pool.check_invariants().unwrap();
        }
    }
    assert_eq!(tables[0][..2], tables[1][..2]);
    assert_ne!(tables[0][2], tables[1][2], "what does not fill a page is each one's own");
    assert!(!pool.is_current(own[0]) && !pool.is_current(own[1]));
    assert_eq!((pool.counts().pinned, pool.counts().settling), (4, 2), "its own pages rest until step 3 has passed");
    assert_eq!(pool.prefix_counters(), PrefixCounters { inserted: 2, adopted: 2, ..PrefixCounters::default() });
}

#[test]
fn scopes_share_nothing() {
    let mut pool = pool(8, u32::MAX);
    prefilled(&mut pool, (SCOPE, OWNER), &tokens(9));
    assert_eq!(prefilled(&mut pool, (OTHER, OWNER), &tokens(9)), 0);
    assert_eq!(prefilled(&mut pool, (SCOPE, PrefixOwner(5)), &tokens(9)), 2, "a scope is shared by whoever is let into it");
    assert_eq!(pool.cached_pages(), 4);
}

#[test]
fn the_oldest_leaf_goes_first_and_what_is_pinned_stays() {
    let mut pool = pool(6, u32::MAX);
    let mut second = tokens(9);
    second[4] = 99;
    prefilled(&mut pool, (SCOPE, OWNER), &tokens(9));
    prefilled(&mut pool, (SCOPE, OWNER), &second);
    prefilled(&mut pool, (OTHER, OWNER), &tokens(5));
    assert_eq!((pool.cached_pages(), pool.counts().free), (4, 2));
    // The first prompt is used again: the branch of the second is the oldest now.
    let pinned = pool.lookup_and_pin(SCOPE, &tokens(9));
    pool.make_room(3, OWNER);
    assert_eq!((pool.cached_pages(), prefilled(&mut pool, (OTHER, OWNER), &tokens(5))), (3, 1));
    pool.make_room(6, OWNER);
    assert_eq!((pool.counts().free, pool.cached_pages()), (4, 2), "no more than there is");
    assert!(pinned.iter().all(|&page| pool.is_current(page)));
    pool.release(&pinned, 0).unwrap();
    pool.make_room(6, OWNER);
    assert_eq!((pool.counts().free, pool.prefix_counters().evicted), (6, 4));
}

#[test]
fn an_owner_at_its_quota_makes_room_among_its_own() {
    let mut pool = pool(20, 3);
    let (mine, theirs) = ((SCOPE, PrefixOwner(1)), (OTHER, PrefixOwner(2)));
    prefilled(&mut pool, theirs, &tokens(9));
    prefilled(&mut pool, mine, &tokens(13));
    let flood: Vec<u32> = (100..109).collect();
    prefilled(&mut pool, mine, &flood);
    assert_eq!(pool.cached_pages(), 5);
    assert_eq!(prefilled(&mut pool, theirs, &tokens(9)), 2, "another's pages stay");
    assert_eq!(prefilled(&mut pool, mine, &flood), 2);
    // All of them in use: nothing can make room, and the prompt does without.
    let (table, found) = prefill(&mut pool, mine, &(200..220).collect::<Vec<u32>>());
    assert_eq!((found, pool.cached_pages(), pool.prefix_counters().over_quota), (0, 5, 1));
    pool.release(&table, 0).unwrap();
    pool.cache_prefixes(PrefixOptions { owner_pages: 0 });
    prefilled(&mut pool, mine, &(300..309).collect::<Vec<u32>>());
    assert_eq!(pool.cached_pages(), 2, "a lower limit holds from the next page on");
}

#[test]
fn without_a_tree_nothing_outlives_its_sequence() {
    let options = *pool(8, 0).options();
    let mut pool = PagePool::new(options).unwrap();
    assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &tokens(9)), 0);
    assert_eq!(prefilled(&mut pool, (SCOPE, OWNER), &tokens(9)), 0);
    assert_eq!((pool.counts().free, pool.cached_pages()), (8, 0));
    pool.forget_all().unwrap();
}

/// A tenant that floods the pool gives up its own kept pages before another's, whoever's are older.
#[test]
fn who_needs_room_gives_up_its_own_first() {
    let (flood, quiet) = (PrefixOwner(8), PrefixOwner(9));
    let mut pool = pool(20, 10);
    prefilled(&mut pool, (OTHER, quiet), &tokens(33));
    for prompt in 0..6 {
        let prompt: Vec<u32> = (0..41).map(|token| 1_000 * prompt + token).collect();
        prefilled(&mut pool, (SCOPE, flood), &prompt);
    }
    // Looked up only now, so that they were the oldest of all.
    let found = pool.lookup_and_pin(OTHER, &tokens(33));
    assert_eq!((found.len(), pool.prefix_counters().evicted), (8, 50), "all of the other's are there");
    pool.release(&found, 0).unwrap();
    pool.make_room(20, flood);
    assert_eq!((pool.counts().free, pool.cached_pages()), (20, 0), "and then the other's too");
}

/// The tags that freeing them takes are kept back for cached pages too.
#[test]
fn the_last_tags_are_kept_for_evictions() {
    let mut pool = pool(6, u32::MAX);
    prefilled(&mut pool, (SCOPE, OWNER), &tokens(12));
    pool.last_count = Tag::LAST_COUNT - 6;
    assert_eq!(pool.allocate(2), Err(KvError::TagsExhausted(2)));
    let last = pool.allocate(1).unwrap();
    pool.release(&last, 0).unwrap();
    pool.make_room(6, OWNER);
    assert_eq!((pool.counts().free, pool.last_count), (6, Tag::LAST_COUNT - 1));
}

/// A prompt is as long as a client makes it: its path is walked and dropped without recursion, in the stack of a test thread.
#[test]
fn the_longest_path_is_walked_and_dropped_in_a_loop() {
    let pages = 50_000;
    let mut pool = pool(pages, u32::MAX);
    let prompt = tokens(4 * pages);
    let (table, _) = prefill(&mut pool, (SCOPE, OWNER), &prompt);
    pool.release(&table, 0).unwrap();
    let found = pool.lookup_and_pin(SCOPE, &prompt);
    assert_eq!(found.len(), pages as usize - 1);
    pool.suspect(found[0]).unwrap();
    assert_eq!((pool.cached_pages(), pool.counts().free, pool.counts().pinned), (0, 1, pages - 1));
    pool.release(&found, 0).unwrap();
    assert_eq!((pool.counts().free, pool.counts().suspect), (pages - 1, 1));
    prefilled(&mut pool, (SCOPE, OWNER), &prompt[..4 * pages as usize - 4]);
    pool.make_room(pages - 1, OWNER);
    assert_eq!((pool.cached_pages(), pool.counts().free), (0, pages - 1));
}
