//! The page pool: the one owner of page state. Knows owners only as holders of the right (page, tag).
//!
//! ```text
//!            allocate: new tag            last release: new tag
//!   free ---------------------> pinned ---------------------------> quarantined
//!    ^                          |    ^                                ^      |
//!    |    last release, in tree |    | lookup                         |      |
//!    |                          v    |         evict: new tag         |      |
//!    |                        evictable ------------------------------+      |
//!    +---- fence passed, no transfer holds it, not under suspicion ----------+
//! ```
//! A page may be pinned by several sequences; its tag is theirs all alike and does not change when it is shared.
//!
//! The page that came free last is taken first: its memory is mapped already. How long a page rests is quarantine's alone to say.

mod prefix;

use std::collections::VecDeque;

use crate::changes::Changes;
use crate::page::{Page, PageState};
use crate::quarantine::Quarantine;
use crate::{KvError, PageCounts, PageId, PageRef, Tag, TagChange, TransferId};

use self::prefix::PrefixCache;

/// Whether the backend fills a page with zeros when it is freed; wanted where tenants share a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroFreed {
    Keep,
    Zero,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    /// Pages of the pool, at least 1.
    pub pages: u32,
    /// Positions per page, at least 1.
    pub page_tokens: u32,
    /// A random number of this life of the process, so that tags of an earlier one never match.
    pub boot_nonce: u16,
    pub zero_freed: ZeroFreed,
}

/// Owner of all page state of one engine.
#[derive(Debug)]
pub struct PagePool {
    pub(crate) options: PoolOptions,
    pub(crate) pages: Vec<Page>,
    pub(crate) free: VecDeque<PageId>,
    pub(crate) quarantine: Quarantine,
    pub(crate) changes: Changes,
    /// Number of the last tag that was given out.
    pub(crate) last_count: u64,
    /// Kept up by [`Self::update`] alone.
    pub(crate) counts: PageCounts,
    suspicions: u64,
    /// `None`: no page outlives its sequence.
    pub(crate) prefixes: Option<PrefixCache>,
    #[cfg(any(test, feature = "fault-injection"))]
    pub(crate) guards_off: crate::guards::GuardsOff,
}

impl PagePool {
    /// All pages free. The backend's tag array starts as zeros, which no page reference matches.
    ///
    /// # Errors
    /// No page, or no token per page.
    pub fn new(options: PoolOptions) -> Result<Self, KvError> {
        let PoolOptions { pages, page_tokens, boot_nonce, .. } = options;
        if pages == 0 || page_tokens == 0 {
            return Err(KvError::EmptyPool { pages, page_tokens });
        }
        let page = |index: u32| {
            let tag = Tag::new(boot_nonce, u64::from(index) + 1).ok_or(KvError::TagsExhausted(pages))?;
            Ok(Page::free(tag))
        };
        Ok(Self {
            options,
            pages: (0..pages).map(page).collect::<Result<_, KvError>>()?,
            free: (0..pages).map(PageId).collect(),
            quarantine: Quarantine::default(),
            changes: Changes::default(),
            last_count: u64::from(pages),
            counts: PageCounts { total: pages, free: pages, ..PageCounts::default() },
            suspicions: 0,
            prefixes: None,
            #[cfg(any(test, feature = "fault-injection"))]
            guards_off: crate::guards::GuardsOff::default(),
        })
    }

    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    pub fn page_tokens(&self) -> u32 {
        self.options.page_tokens
    }

    pub fn counts(&self) -> PageCounts {
        self.counts
    }

    /// How often a page was put under suspicion.
    pub fn suspicions(&self) -> u64 {
        self.suspicions
    }

    /// Pins `count` free pages, each under a new tag. All or nothing. Evicts nothing: see [`Self::make_room`].
    ///
    /// # Errors
    /// [`KvError::OutOfPages`]; [`KvError::TagsExhausted`] before the tags that later releases need would run out.
    pub fn allocate(&mut self, count: u32) -> Result<Vec<PageRef>, KvError> {
        let PageCounts { free, quarantined, pinned, evictable, .. } = self.counts;
        if count > free {
            return Err(KvError::OutOfPages { wanted: count, free, quarantined });
        }
        // One tag now and one when it is freed for each of these, and one for the end of each page in use.
        let needed = 2 * u64::from(count) + u64::from(pinned) + u64::from(evictable);
        if Tag::LAST_COUNT - self.last_count < needed {
            return Err(KvError::TagsExhausted(count));
        }
        let taken: Vec<PageId> = self.free.drain(..count as usize).collect();
        taken
            .into_iter()
            .map(|page| {
                let tag = self.retag(page, ZeroFreed::Keep)?;
                self.update(page, |page| *page = Page { state: PageState::Held { pins: 1, cached: false }, ..Page::free(tag) });
                Ok(PageRef { page, tag })
            })
            .collect()
    }

    /// Takes one pin off each page. One that nobody pins any more becomes evictable if the prefix tree has it; else it is freed
    /// under a new tag, and rests in quarantine until the fence has passed `after_step` of all who released it (the last step
    /// that may still touch it; 0: none) and no transfer holds it. All or nothing.
    ///
    /// # Errors
    /// A reference that is stale (freed before, or handed out again), not pinned, or named twice: nothing is released.
    pub fn release(&mut self, pages: &[PageRef], after_step: u64) -> Result<(), KvError> {
        for &page in pages {
            self.require_pinned(page)?;
        }
        let mut sorted = pages.to_vec();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(KvError::Duplicate(pair[0]));
        }
        for &PageRef { page, .. } in pages {
            let after_step = self.resting_step(after_step);
            self.update(page, |page| {
                page.after_step = page.after_step.max(after_step);
                if let PageState::Held { pins, .. } = &mut page.state {
                    *pins = pins.saturating_sub(1);
                }
            });
            self.free_if_unused(page)?;
        }
        Ok(())
    }

    /// Keeps a page in quarantine, once it is released, until [`Self::drain`]. Twice is once.
    ///
    /// # Errors
    /// The reference is stale or not pinned.
    pub fn hold(&mut self, page: PageRef, transfer: TransferId) -> Result<(), KvError> {
        self.require_pinned(page)?;
        if self.quarantine.hold(page.page, transfer) {
            self.update(page.page, |page| page.holds += 1);
        }
        Ok(())
    }

    /// The transfer has ended or its peer is known to be dead: it touches no page any more. Unknown transfers hold nothing.
    pub fn drain(&mut self, transfer: TransferId) {
        for page in self.quarantine.drain(transfer) {
            self.update(page, |page| page.holds = page.holds.saturating_sub(1));
            self.free_if_settled(page);
        }
    }

    /// Every step up to `completed_step` has ended. Steps count from 1; going back changes nothing.
    pub fn fence(&mut self, completed_step: u64) {
        for page in self.quarantine.fence(completed_step) {
            self.update(page, |page| page.state = PageState::Quarantined { after_step: None });
            self.free_if_settled(page);
        }
    }

    /// Whether the page still belongs to whoever was given this reference.
    pub fn is_current(&self, page: PageRef) -> bool {
        self.pins(page) > 0
    }

    /// Whether the page still carries this tag (as the device knows it), or rests since it carried it: nobody else was given it.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn is_nobody_elses(&self, page: PageId, tag: u64) -> bool {
        let rests = |page: &Page| matches!(page.state, PageState::Quarantined { .. });
        self.get(page).is_some_and(|known| known.tag.raw() == tag || rests(known))
    }

    /// Sequences that pin the page under this tag.
    pub fn pins(&self, page: PageRef) -> u32 {
        self.get(page.page).filter(|known| known.tag == page.tag).map_or(0, Page::pins)
    }

    /// A mismatch was reported for this page: it leaves the prefix tree with all behind it, and once it is freed (at once if
    /// it is), it stays in quarantine until it is readmitted. The reference may be stale; whoever pins the page now keeps it
    /// until it releases it.
    ///
    /// # Errors
    /// The page is not of this pool.
    pub fn suspect(&mut self, page: PageRef) -> Result<(), KvError> {
        let id = page.page;
        let state = self.get(id).ok_or_else(|| self.unknown(id))?.state;
        self.suspicions += 1;
        if state == PageState::Free {
            self.free.retain(|&free| free != id);
            self.update(id, |page| page.state = PageState::Quarantined { after_step: None });
        }
        self.update(id, |page| page.suspect = true);
        self.forget_from(id)
    }

    /// Pages under suspicion, freed or not.
    pub fn suspects(&self) -> Vec<PageId> {
        let ids = (0..).map(PageId);
        ids.zip(&self.pages).filter(|(_, page)| page.suspect).map(|(id, _)| id).collect()
    }

    /// Ends the suspicion.
    ///
    /// # Errors
    /// The page is not of this pool or not under suspicion.
    pub fn readmit(&mut self, page: PageId) -> Result<(), KvError> {
        if !self.get(page).ok_or_else(|| self.unknown(page))?.suspect {
            return Err(KvError::NotSuspect(page));
        }
        self.update(page, |page| page.suspect = false);
        self.free_if_settled(page);
        Ok(())
    }

    /// What the backend must do to its tag array before the next thing that touches a page: at most one change per page.
    pub fn take_changes(&mut self) -> Vec<TagChange> {
        self.changes.take()
    }

    /// Pages with a change that [`Self::take_changes`] has not delivered.
    pub fn pending_changes(&self) -> usize {
        self.changes.len()
    }

    /// Hands a pinned page out again behind its owner's back: the bug that tags exist to catch. The new owner releases
    /// the returned reference; the old owner's is stale from now on.
    ///
    /// # Errors
    /// The page is not of this pool, not pinned, or no tag is left.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn force_reassign(&mut self, page: PageId) -> Result<PageRef, KvError> {
        let known = self.get(page).ok_or_else(|| self.unknown(page))?;
        self.require_pinned(PageRef { page, tag: known.tag })?;
        if Tag::LAST_COUNT - self.last_count <= u64::from(self.counts.pinned + self.counts.evictable) {
            return Err(KvError::TagsExhausted(1));
        }
        let tag = self.retag(page, self.options.zero_freed)?;
        // The tree and all who pinned it do not know.
        self.update(page, |page| page.state = PageState::Held { pins: 1, cached: false });
        Ok(PageRef { page, tag })
    }

    fn get(&self, page: PageId) -> Option<&Page> {
        self.pages.get(page.0 as usize)
    }

    fn unknown(&self, page: PageId) -> KvError {
        KvError::UnknownPage { page, pages: self.options.pages }
    }

    fn require_pinned(&self, page: PageRef) -> Result<(), KvError> {
        let known = self.get(page.page).ok_or_else(|| self.unknown(page.page))?;
        if known.tag != page.tag {
            return Err(KvError::Stale(page, known.tag));
        }
        if known.pins() == 0 {
            return Err(KvError::NotPinned(page));
        }
        Ok(())
    }

    /// Gives the page the next tag and tells the backend.
    fn retag(&mut self, page: PageId, zero: ZeroFreed) -> Result<Tag, KvError> {
        let count = self.last_count + 1;
        let tag = Tag::new(self.options.boot_nonce, count).ok_or(KvError::TagsExhausted(1))?;
        self.last_count = count;
        self.update(page, |page| page.tag = tag);
        self.changes.push(TagChange { page, tag, zero: zero == ZeroFreed::Zero });
        Ok(tag)
    }

    /// A page that neither a sequence nor the tree has becomes nobody's.
    fn free_if_unused(&mut self, page: PageId) -> Result<(), KvError> {
        let Some(&Page { state: PageState::Held { pins: 0, cached: false }, after_step, .. }) = self.get(page) else {
            return Ok(());
        };
        self.forget_stale(page)?;
        self.retag(page, self.options.zero_freed)?;
        self.quarantine.enter(page, after_step);
        let unfenced = (after_step > self.quarantine.completed()).then_some(after_step);
        self.update(page, |page| page.state = PageState::Quarantined { after_step: unfenced });
        self.free_if_settled(page);
        Ok(())
    }

    fn free_if_settled(&mut self, page: PageId) {
        let settled = |page: &Page| page.state == PageState::Quarantined { after_step: None } && page.holds == 0 && !page.suspect;
        if self.get(page).is_some_and(settled) {
            self.update(page, |page| page.state = PageState::Free);
            // First to be taken again: its memory is mapped and perhaps still cached, and a server that uses few pages touches few.
            self.free.push_front(page);
        }
    }

    /// The only way to change a page, so that neither the counts nor the tree's eviction order can drift.
    fn update(&mut self, id: PageId, change: impl FnOnce(&mut Page)) {
        let Some(page) = self.pages.get_mut(id.0 as usize) else { return };
        self.counts.remove(page);
        change(page);
        self.counts.add(page);
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.tree.set_idle(id, page.is_idle());
        }
    }
}

#[cfg(test)]
mod tests;
