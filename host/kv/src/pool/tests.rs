//! The pool against a naive twin under random operations, and each rule on its own.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Numerical Recipes' 64-bit congruential generator; the high bits are good enough to choose test operations.
pub(crate) struct Lcg(pub(crate) u64);

impl Lcg {
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound.max(1))) as u32
    }
}

fn pool(pages: u32, zero_freed: ZeroFreed) -> PagePool {
    PagePool::new(PoolOptions { pages, page_tokens: 16, boot_nonce: 0xA3, zero_freed }).unwrap()
}

/// The pool as a list of facts: who pins what, and for each freed page all that it waits for.
#[derive(Default)]
struct Twin {
    pinned: BTreeMap<PageId, Tag>,
    resting: BTreeMap<PageId, u64>,
    holds: BTreeMap<TransferId, BTreeSet<PageId>>,
    suspects: BTreeSet<PageId>,
    fence: u64,
    seen_tags: BTreeSet<Tag>,
}

impl Twin {
    fn held(&self, page: PageId) -> bool {
        self.holds.values().any(|pages| pages.contains(&page))
    }

    fn settle(&mut self) {
        let stays = |page: PageId, step: u64| step > self.fence || self.held(page) || self.suspects.contains(&page);
        self.resting = self.resting.iter().filter(|&(&page, &step)| stays(page, step)).map(|(p, s)| (*p, *s)).collect();
    }

    fn compare(&self, pool: &PagePool) {
        pool.check_invariants().unwrap();
        let counts = pool.counts();
        assert_eq!(counts.pinned as usize, self.pinned.len());
        assert_eq!(counts.quarantined as usize, self.resting.len());
        assert_eq!(counts.free as usize, counts.total as usize - self.pinned.len() - self.resting.len());
        let settling =
            |&(&page, &step): &(&PageId, &u64)| step > self.fence && !self.held(page) && !self.suspects.contains(&page);
        assert_eq!(counts.settling as usize, self.resting.iter().filter(settling).count());
        assert_eq!(counts.suspect as usize, self.resting.keys().filter(|page| self.suspects.contains(page)).count());
        assert_eq!((counts.suspect + counts.suspect_pinned) as usize, self.suspects.len());
        assert_eq!(pool.suspects(), self.suspects.iter().copied().collect::<Vec<_>>());
    }

    fn fresh(&mut self, tag: Tag) {
        assert!(self.seen_tags.last().is_none_or(|last| *last < tag), "tags rise");
        self.seen_tags.insert(tag);
    }

    fn pick(&self, lcg: &mut Lcg) -> Option<PageRef> {
        let nth = lcg.below(self.pinned.len() as u32) as usize;
        self.pinned.iter().nth(nth).map(|(&page, &tag)| PageRef { page, tag })
    }
}

#[test]
fn random_operations_agree_with_the_twin() {
    for seed in 0..300 {
        let mut lcg = Lcg(seed);
        let mut pool = pool(1 + lcg.below(24), if seed % 2 == 0 { ZeroFreed::Zero } else { ZeroFreed::Keep });
        let (mut twin, mut stale) = (Twin::default(), Vec::<PageRef>::new());
        let mut device = vec![0_u64; pool.counts().total as usize];
        for _ in 0..200 {
            random_operation(&mut pool, &mut twin, &mut stale, &mut lcg);
            twin.settle();
            twin.compare(&pool);
            assert!(stale.iter().all(|&page| !pool.is_current(page)));
            if lcg.below(3) == 0 {
                for change in pool.take_changes() {
                    device[change.page.0 as usize] = change.tag.raw();
                }
                assert!(twin.pinned.iter().all(|(page, tag)| device[page.0 as usize] == tag.raw()));
                assert!(stale.iter().all(|old| device[old.page.0 as usize] != old.tag.raw()));
            }
        }
    }
}

fn random_operation(pool: &mut PagePool, twin: &mut Twin, stale: &mut Vec<PageRef>, lcg: &mut Lcg) {
    match lcg.below(8) {
        0 | 1 => {
            let wanted = lcg.below(6);
            let counts = pool.counts();
            match pool.allocate(wanted) {
                Ok(pages) => {
                    assert_eq!(pages.len(), wanted as usize);
                    for PageRef { page, tag } in pages {
                        twin.fresh(tag);
                        assert!(twin.pinned.insert(page, tag).is_none() && !twin.resting.contains_key(&page));
                    }
                }
                Err(error) => {
                    let PageCounts { free, quarantined, .. } = counts;
                    assert!(wanted > free);
                    assert_eq!(error, KvError::OutOfPages { wanted, free, quarantined });
                }
            }
        }
        2 | 3 => {
            let pages: BTreeSet<PageRef> = (0..1 + lcg.below(4)).filter_map(|_| twin.pick(lcg)).collect();
            let pages: Vec<PageRef> = pages.into_iter().collect();
            let after_step = twin.fence + u64::from(lcg.below(4));
            pool.release(&pages, after_step).unwrap();
            for page in pages {
                twin.pinned.remove(&page.page);
                twin.resting.insert(page.page, after_step);
                stale.push(page);
            }
            if let Some(&old) = stale.last() {
                assert!(matches!(pool.release(&[old], 0), Err(KvError::Stale(..))));
            }
        }
        4 => {
            twin.fence += u64::from(lcg.below(3));
            pool.fence(twin.fence.saturating_sub(u64::from(lcg.below(2))));
            pool.fence(twin.fence);
        }
        5 => {
            let transfer = TransferId(u64::from(lcg.below(4)));
            match twin.pick(lcg) {
                Some(page) if lcg.below(2) == 0 => {
                    pool.hold(page, transfer).unwrap();
                    twin.holds.entry(transfer).or_default().insert(page.page);
                }
                _ => {
                    pool.drain(transfer);
                    twin.holds.remove(&transfer);
                }
            }
        }
        6 => random_suspicion(pool, twin, stale, lcg),
        _ => {
            if let Some(old) = twin.pick(lcg).filter(|_| lcg.below(4) == 0) {
                let new = pool.force_reassign(old.page).unwrap();
                twin.fresh(new.tag);
                twin.pinned.insert(new.page, new.tag);
                stale.push(old);
            }
        }
    }
}

fn random_suspicion(pool: &mut PagePool, twin: &mut Twin, stale: &[PageRef], lcg: &mut Lcg) {
    let page = PageId(lcg.below(pool.counts().total));
    if lcg.below(2) == 0 {
        assert_eq!(pool.readmit(page).is_ok(), twin.suspects.remove(&page));
        return;
    }
    // Either an owner's reference or one that is long stale.
    let known = stale.iter().rev().find(|old| old.page == page).copied().or_else(|| twin.pick(lcg));
    let Some(page) = known else { return };
    pool.suspect(page).unwrap();
    twin.suspects.insert(page.page);
    if !twin.pinned.contains_key(&page.page) {
        twin.resting.entry(page.page).or_insert(0);
    }
}

#[test]
fn a_page_is_freed_once() {
    let mut pool = pool(4, ZeroFreed::Keep);
    let pages = pool.allocate(2).unwrap();
    assert_eq!(pool.release(&[pages[0], pages[1], pages[0]], 1), Err(KvError::Duplicate(pages[0])));
    pool.release(&pages[..1], 1).unwrap();
    let before = pool.counts();
    assert!(matches!(pool.release(&pages, 1), Err(KvError::Stale(page, _)) if page == pages[0]));
    assert_eq!(pool.counts(), before, "a refused release frees nothing");
    let foreign = PageRef { page: PageId(9), ..pages[1] };
    assert_eq!(pool.release(&[foreign], 1), Err(KvError::UnknownPage { page: PageId(9), pages: 4 }));
}

/// The tag changes at free, so what a page carries in quarantine verifies for nobody.
#[test]
fn a_free_page_never_verifies() {
    let mut pool = pool(1, ZeroFreed::Zero);
    let page = pool.allocate(1).unwrap()[0];
    assert_eq!(pool.take_changes(), [TagChange { page: page.page, tag: page.tag, zero: false }]);
    pool.release(&[page], 0).unwrap();
    let freed = pool.take_changes()[0];
    assert!(freed.zero && freed.tag > page.tag);
    let resting = PageRef { page: page.page, tag: freed.tag };
    assert!(!pool.is_current(page) && !pool.is_current(resting));
    assert_eq!(pool.release(&[resting], 0), Err(KvError::NotPinned(resting)));
    assert_eq!(pool.hold(page, TransferId(1)), Err(KvError::Stale(page, freed.tag)));
}

#[test]
fn changes_of_one_page_merge_and_stay_in_order() {
    let mut pool = pool(2, ZeroFreed::Zero);
    let first = pool.allocate(1).unwrap();
    pool.release(&first, 0).unwrap();
    let both = pool.allocate(2).unwrap();
    assert!(both.iter().any(|page| page.page == first[0].page));
    let changes = pool.take_changes();
    let expected: Vec<TagChange> =
        both.iter().map(|page| TagChange { page: page.page, tag: page.tag, zero: page.page == first[0].page }).collect();
    assert_eq!(changes, expected, "the old tenant's content is zeroed although the page is another's already");
    assert!(pool.take_changes().is_empty());
}

/// The backend applies them as they come: the oldest tag first, whichever page has it.
#[test]
fn changes_come_in_the_order_of_their_tags() {
    let mut pool = pool(3, ZeroFreed::Keep);
    let pages = pool.allocate(3).unwrap();
    pool.take_changes();
    for page in [2, 0, 1] {
        pool.release(&pages[page..=page], 0).unwrap();
    }
    let changes = pool.take_changes();
    assert_eq!(changes.iter().map(|change| change.page).collect::<Vec<_>>(), [2, 0, 1].map(|page| pages[page].page));
    assert!(changes.is_sorted_by_key(|change| change.tag));
}

/// Its memory is mapped already, so a server that uses few pages touches few.
#[test]
fn the_page_that_came_free_last_is_taken_first() {
    let mut pool = pool(8, ZeroFreed::Keep);
    let pages = pool.allocate(2).unwrap();
    pool.release(&pages[..1], 1).unwrap();
    pool.release(&pages[1..], 2).unwrap();
    pool.fence(1);
    pool.fence(2);
    let again: Vec<PageId> = pool.allocate(2).unwrap().iter().map(|page| page.page).collect();
    assert_eq!(again, [pages[1].page, pages[0].page]);
}

#[test]
fn a_page_rests_until_fence_transfers_and_suspicion_are_over() {
    let mut pool = pool(1, ZeroFreed::Keep);
    let page = pool.allocate(1).unwrap()[0];
    pool.hold(page, TransferId(1)).unwrap();
    pool.hold(page, TransferId(1)).unwrap();
    pool.hold(page, TransferId(2)).unwrap();
    pool.suspect(page).unwrap();
    pool.release(&[page], 5).unwrap();
    pool.drain(TransferId(1));
    pool.fence(4);
    assert!(matches!(pool.allocate(1), Err(KvError::OutOfPages { wanted: 1, free: 0, quarantined: 1 })));
    pool.readmit(page.page).unwrap();
    pool.fence(5);
    assert_eq!((pool.counts().free, pool.counts().settling), (0, 0), "transfer 2 still names it");
    pool.drain(TransferId(2));
    assert_eq!(pool.counts().free, 1);
    assert_eq!(pool.readmit(page.page), Err(KvError::NotSuspect(page.page)));
}

/// A page that the fence alone will free is told apart from one that may never come back.
#[test]
fn settling_counts_what_the_fence_alone_will_free() {
    let mut pool = pool(4, ZeroFreed::Keep);
    let pages = pool.allocate(3).unwrap();
    pool.hold(pages[0], TransferId(1)).unwrap();
    pool.suspect(pages[1]).unwrap();
    pool.release(&pages, 1).unwrap();
    let counts = pool.counts();
    assert_eq!((counts.quarantined, counts.settling, counts.suspect), (3, 1, 1));
    pool.fence(u64::MAX);
    assert_eq!((pool.counts().free, pool.counts().settling), (2, 0));
}

#[test]
fn the_tag_counter_ends_instead_of_wrapping() {
    let mut pool = pool(4, ZeroFreed::Keep);
    let kept = pool.allocate(1).unwrap();
    pool.last_count = Tag::LAST_COUNT - 5;
    assert_eq!(pool.allocate(3), Err(KvError::TagsExhausted(3)));
    let last = pool.allocate(2).unwrap();
    assert_eq!(pool.allocate(1), Err(KvError::TagsExhausted(1)));
    assert_eq!(pool.force_reassign(last[0].page), Err(KvError::TagsExhausted(1)));
    pool.release(&last, 0).unwrap();
    pool.release(&kept, 0).unwrap();
    assert_eq!(pool.last_count, Tag::LAST_COUNT, "every pinned page could still be freed");
    pool.check_invariants().unwrap();
    assert_eq!(Tag::new(1, Tag::LAST_COUNT + 1), None);
    assert_eq!(Tag::new(1, 0), None);
}

#[test]
fn a_tag_of_another_boot_is_stale() {
    let mut ours = pool(1, ZeroFreed::Keep);
    let mut earlier = PagePool::new(PoolOptions { boot_nonce: 1, ..*ours.options() }).unwrap();
    let (mine, old) = (ours.allocate(1).unwrap()[0], earlier.allocate(1).unwrap()[0]);
    assert_eq!((mine.page, mine.tag.count()), (old.page, old.tag.count()));
    assert!(!ours.is_current(old));
    assert_eq!((mine.tag.boot_nonce(), old.tag.boot_nonce()), (0xA3, 1));
}

#[test]
fn a_stolen_page_is_released_by_the_thief_alone() {
    let mut pool = pool(2, ZeroFreed::Zero);
    let pages = pool.allocate(2).unwrap();
    pool.take_changes();
    let stolen = pool.force_reassign(pages[0].page).unwrap();
    assert_eq!(pool.take_changes(), [TagChange { page: stolen.page, tag: stolen.tag, zero: true }]);
    assert!(matches!(pool.release(&pages, 0), Err(KvError::Stale(..))));
    pool.suspect(pages[0]).unwrap();
    pool.release(&pages[1..], 0).unwrap();
    assert!(pool.is_current(stolen), "whoever pins it keeps it");
    pool.release(&[stolen], 0).unwrap();
    assert_eq!((pool.counts().free, pool.counts().suspect), (1, 1));
    assert!(matches!(pool.force_reassign(stolen.page), Err(KvError::NotPinned(_))));
    pool.check_invariants().unwrap();
}

#[test]
fn an_empty_pool_is_refused() {
    let options = PoolOptions { pages: 0, page_tokens: 16, boot_nonce: 0, zero_freed: ZeroFreed::Keep };
    assert_eq!(PagePool::new(options).unwrap_err(), KvError::EmptyPool { pages: 0, page_tokens: 16 });
    assert!(PagePool::new(PoolOptions { pages: 1, page_tokens: 0, ..options }).is_err());
}
