//! A naive twin of the prefix tree: a map from (scope, all tokens up to the page's end) to the page. It knows pins from the
//! sequences' own tables and finds everything by looking from end to end. `random` decides what happens.

use std::collections::{BTreeMap, BTreeSet};

use super::super::tests::Lcg;
use crate::{PageId, PagePool, PageRef, PoolOptions, PrefixOptions, PrefixOwner, PrefixScope, TransferId, ZeroFreed};

pub(super) const PAGE_TOKENS: u32 = 2;

pub(super) struct Cached {
    pub(super) page: PageRef,
    pub(super) owner: PrefixOwner,
    pub(super) used: u64,
}

pub(super) struct Sequence {
    pub(super) scope: PrefixScope,
    pub(super) owner: PrefixOwner,
    pub(super) tokens: Vec<u32>,
    pub(super) table: Vec<PageRef>,
    pub(super) cached: usize,
}

pub(super) type Key = (PrefixScope, Vec<u32>);

pub(super) struct World {
    pub(super) pool: PagePool,
    pub(super) owner_pages: u32,
    pub(super) lcg: Lcg,
    pub(super) fence: u64,
    pub(super) sequences: Vec<Sequence>,
    pub(super) thieves: Vec<PageRef>,
    pub(super) entries: BTreeMap<(PrefixScope, Vec<u32>), Cached>,
    pub(super) barred: BTreeSet<PageRef>,
    pub(super) holds: BTreeSet<(TransferId, PageId)>,
    pub(super) suspects: BTreeSet<PageId>,
    pub(super) uses: u64,
    pub(super) stale_met: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut lcg = Lcg(seed);
        let zero_freed = if lcg.below(2) == 0 { ZeroFreed::Zero } else { ZeroFreed::Keep };
        let options = PoolOptions { pages: 3 + lcg.below(20), page_tokens: PAGE_TOKENS, boot_nonce: 1, zero_freed };
        let mut pool = PagePool::new(options).unwrap();
        let owner_pages = [0, 2, 5, u32::MAX, u32::MAX][lcg.below(5) as usize];
        pool.cache_prefixes(PrefixOptions { owner_pages });
        Self {
            pool,
            owner_pages,
            lcg,
            fence: 0,
            sequences: Vec::new(),
            thieves: Vec::new(),
            entries: BTreeMap::new(),
            barred: BTreeSet::new(),
            holds: BTreeSet::new(),
            suspects: BTreeSet::new(),
            uses: 0,
            stale_met: 0,
        }
    }

    pub(super) fn pins(&self, page: PageRef) -> usize {
        let known = self.sequences.iter().flat_map(|sequence| &sequence.table).chain(&self.thieves);
        if self.is_stolen(page) { 0 } else { known.filter(|&&known| known == page).count() }
    }

    /// A later reference to the same page is among the thieves, or was.
    pub(super) fn is_stolen(&self, page: PageRef) -> bool {
        self.thieves.iter().any(|thief| thief.page == page.page && thief.tag > page.tag)
    }

    pub(super) fn twin_lookup(&mut self, scope: PrefixScope, tokens: &[u32]) -> Vec<PageRef> {
        self.uses += 1;
        let shareable = tokens.len().saturating_sub(1) / PAGE_TOKENS as usize;
        let mut found = Vec::new();
        for pages in 1..=shareable {
            let key = (scope, tokens[..pages * PAGE_TOKENS as usize].to_vec());
            let Some(page) = self.twin_current(&key) else { break };
            self.entries.get_mut(&key).unwrap().used = self.uses;
            found.push(page);
        }
        found
    }

    /// The entry's page; one that was stolen is forgotten.
    pub(super) fn twin_current(&mut self, key: &Key) -> Option<PageRef> {
        let page = self.entries.get(key)?.page;
        if !self.is_stolen(page) {
            return Some(page);
        }
        self.stale_met += 1;
        self.twin_forget(key);
        None
    }

    pub(super) fn twin_forget(&mut self, key: &Key) {
        let behind = |(scope, tokens): &Key| *scope == key.0 && tokens.starts_with(&key.1);
        let gone: Vec<Key> = self.entries.keys().filter(|other| behind(other)).cloned().collect();
        for key in gone {
            let page = self.entries.remove(&key).unwrap().page;
            self.barred.insert(page);
        }
    }

    pub(super) fn twin_forget_page(&mut self, page: PageId) {
        let key = self.entries.iter().find(|(_, cached)| cached.page.page == page).map(|(key, _)| key.clone());
        if let Some(key) = key {
            self.twin_forget(&key);
        }
    }

    pub(super) fn twin_oldest(&self, owner: Option<PrefixOwner>) -> Option<Key> {
        let is_leaf = |key: &Key| {
            !self
                .entries
                .keys()
                .any(|(scope, tokens)| *scope == key.0 && tokens.len() > key.1.len() && tokens.starts_with(&key.1))
        };
        let idle = |cached: &Cached| {
            let held = self.holds.iter().any(|&(_, page)| page == cached.page.page);
            self.pins(cached.page) == 0 && !self.is_stolen(cached.page) && !held
        };
        let owned = |cached: &Cached| owner.is_none_or(|owner| cached.owner == owner);
        let candidates = self.entries.iter().filter(|(key, cached)| owned(cached) && idle(cached) && is_leaf(key));
        candidates.min_by_key(|(_, cached)| (cached.used, cached.page.page)).map(|(key, _)| key.clone())
    }

    /// The table as it must be afterwards, and how many pages of it are cached.
    pub(super) fn twin_insert(&mut self, sequence: &Sequence, computed: usize) -> (Vec<PageRef>, usize) {
        let (mut table, mut cached) = (sequence.table.clone(), sequence.cached);
        let key = |pages: usize| (sequence.scope, sequence.tokens[..pages * PAGE_TOKENS as usize].to_vec());
        let used = match cached {
            0 => {
                self.uses += 1;
                self.uses
            }
            _ => match self.entries.get(&key(cached)) {
                Some(last) if last.page == table[cached - 1] && !self.is_stolen(last.page) => last.used,
                _ => return (table, cached),
            },
        };
        while cached < computed / PAGE_TOKENS as usize {
            let (key, own) = (key(cached + 1), table[cached]);
            if let Some(shared) = self.twin_current(&key) {
                if self.is_stolen(own) {
                    break;
                }
                self.entries.get_mut(&key).unwrap().used = used;
                table[cached] = shared;
            } else {
                let unfit = self.is_stolen(own) || self.suspects.contains(&own.page) || self.barred.contains(&own);
                if unfit || !self.twin_quota(sequence.owner) {
                    break;
                }
                self.entries.insert(key, Cached { page: own, owner: sequence.owner, used });
            }
            cached += 1;
        }
        (table, cached)
    }

    pub(super) fn twin_quota(&mut self, owner: PrefixOwner) -> bool {
        while self.entries.values().filter(|cached| cached.owner == owner).count() >= self.owner_pages as usize {
            let Some(oldest) = self.twin_oldest(Some(owner)) else { return false };
            self.entries.remove(&oldest);
        }
        true
    }

    /// Returns how many pages are pinned more than once.
    pub(super) fn compare(&self) -> u64 {
        self.pool.check_invariants().unwrap();
        let entries: BTreeMap<Key, PageRef> = self.entries.iter().map(|(key, cached)| (key.clone(), cached.page)).collect();
        assert_eq!(self.pool.prefixes.as_ref().unwrap().tree.paths(), entries);
        let tables = self.sequences.iter().flat_map(|sequence| &sequence.table).chain(&self.thieves);
        let named: BTreeSet<PageRef> = tables.copied().filter(|&page| !self.is_stolen(page)).collect();
        let mut shared = 0;
        for &page in &named {
            assert_eq!(self.pool.pins(page) as usize, self.pins(page), "{page}");
            shared += u64::from(self.pins(page) > 1);
        }
        let counts = self.pool.counts();
        let evictable = self.entries.values().filter(|cached| self.pins(cached.page) == 0 && !self.is_stolen(cached.page));
        assert_eq!((counts.pinned as usize, counts.evictable as usize), (named.len(), evictable.count()));
        let evictable = self.entries.values().filter(|cached| self.pins(cached.page) == 0 && !self.is_stolen(cached.page));
        let held = evictable.filter(|cached| self.holds.iter().any(|&(_, page)| page == cached.page.page));
        assert_eq!(counts.evictable_held as usize, held.count());
        assert_eq!(self.pool.cached_pages() as usize, self.entries.len());
        shared
    }
}
