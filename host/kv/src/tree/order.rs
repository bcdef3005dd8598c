//! Which page goes next: idle leaves, the one that was used longest ago first, over all owners and for each. Knows no tokens.

use std::collections::BTreeSet;

use crate::{PageId, PrefixOwner};

/// Where a leaf stands in the order; pages of one use go by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rank {
    pub(crate) owner: PrefixOwner,
    pub(crate) used: u64,
    pub(crate) page: PageId,
}

#[derive(Debug, Default)]
pub(crate) struct EvictionOrder {
    all: BTreeSet<(u64, PageId)>,
    by_owner: BTreeSet<(PrefixOwner, u64, PageId)>,
}

impl EvictionOrder {
    pub(crate) fn insert(&mut self, rank: Rank) {
        self.all.insert((rank.used, rank.page));
        self.by_owner.insert((rank.owner, rank.used, rank.page));
    }

    /// Nothing if it is not there.
    pub(crate) fn remove(&mut self, rank: &Rank) {
        if self.all.remove(&(rank.used, rank.page)) {
            self.by_owner.remove(&(rank.owner, rank.used, rank.page));
        }
    }

    pub(crate) fn oldest(&self, owner: Option<PrefixOwner>) -> Option<PageId> {
        match owner {
            None => self.all.first().map(|&(_, page)| page),
            Some(owner) => {
                let of_owner = (owner, 0, PageId(0))..=(owner, u64::MAX, PageId(u32::MAX));
                self.by_owner.range(of_owner).next().map(|&(_, _, page)| page)
            }
        }
    }

    pub(crate) fn contains(&self, rank: &Rank) -> bool {
        self.all.contains(&(rank.used, rank.page)) && self.by_owner.contains(&(rank.owner, rank.used, rank.page))
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len().max(self.by_owner.len())
    }
}
