//! What must hold for a pool after every call, checked from first principles. Changes nothing.

use std::collections::BTreeSet;

use crate::page::PageState;
use crate::{PageCounts, PageId, PagePool, Tag};

impl PagePool {
    /// Every page is in exactly one state and list, the counts add up, tags are unique and of this boot.
    ///
    /// # Errors
    /// The first invariant that is broken, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.check_counts()?;
        self.check_lists()?;
        self.check_tags()?;
        self.check_prefixes()
    }

    fn check_counts(&self) -> Result<(), String> {
        let mut counted = PageCounts { total: self.options.pages, ..PageCounts::default() };
        self.pages.iter().for_each(|page| counted.add(page));
        let kept = self.counts();
        if counted != kept {
            return Err(format!("counts drifted: kept {kept:?}, counted {counted:?}"));
        }
        let sum = kept.free + kept.quarantined + kept.pinned + kept.evictable;
        if sum != kept.total || self.pages.len() != kept.total as usize {
            return Err(format!("{sum} pages in all states, {} in the pool of {}", self.pages.len(), kept.total));
        }
        Ok(())
    }

    fn check_lists(&self) -> Result<(), String> {
        let free: BTreeSet<PageId> = self.free.iter().copied().collect();
        if free.len() != self.free.len() {
            return Err("a page is twice in the free list".into());
        }
        let unfenced: BTreeSet<(PageId, u64)> = self.quarantine.unfenced().map(|(step, page)| (page, step)).collect();
        let waiting = self.pages.iter().filter(|page| matches!(page.state, PageState::Quarantined { after_step: Some(_) }));
        if waiting.count() != unfenced.len() {
            return Err("pages that wait for the fence and their list differ in number".into());
        }
        let mut holds = vec![0_u32; self.pages.len()];
        for page in self.quarantine.holds() {
            *holds.get_mut(page.0 as usize).ok_or_else(|| format!("a transfer holds page {page} of another pool"))? += 1;
        }
        for ((index, page), held) in (0..).map(PageId).zip(&self.pages).zip(holds) {
            let listed = match page.state {
                PageState::Free => free.contains(&index) && held == 0 && !page.suspect,
                PageState::Held { pins, cached } => !free.contains(&index) && (pins > 0 || cached),
                PageState::Quarantined { after_step: Some(step) } => {
                    !free.contains(&index) && unfenced.contains(&(index, step)) && step > self.quarantine.completed()
                }
                PageState::Quarantined { after_step: None } => !free.contains(&index) && (held > 0 || page.suspect),
            };
            if !listed || held != page.holds {
                return Err(format!("page {index} ({page:?}) disagrees with the lists, {held} transfers hold it"));
            }
        }
        Ok(())
    }

    fn check_tags(&self) -> Result<(), String> {
        let tags: BTreeSet<Tag> = self.pages.iter().map(|page| page.tag).collect();
        if tags.len() != self.pages.len() {
            return Err("two pages carry the same tag".into());
        }
        match tags.iter().find(|tag| tag.boot_nonce() != self.options.boot_nonce || !(1..=self.last_count).contains(&tag.count()))
        {
            Some(tag) => Err(format!("tag {tag} was never given out")),
            None => Ok(()),
        }
    }

    /// Pages and nodes of the tree agree. A node whose page was reassigned behind its back is stale and keeps nothing.
    fn check_prefixes(&self) -> Result<(), String> {
        let cached = self.pages.iter().filter(|page| page.is_cached()).count();
        let Some(prefixes) = &self.prefixes else {
            return if cached == 0 { Ok(()) } else { Err(format!("{cached} pages cached without a tree")) };
        };
        prefixes.tree.check(self.options.page_tokens)?;
        let mut current = 0;
        for id in prefixes.tree.pages() {
            let Some(page) = self.pages.get(id.0 as usize) else { return Err(format!("a node of page {id} of another pool")) };
            let stale = prefixes.tree.node(id).is_none_or(|node| node.tag != page.tag);
            if stale && page.is_cached() || !stale && (!page.is_cached() || page.suspect || page.barred) {
                return Err(format!("page {id} ({page:?}) disagrees with its node, stale: {stale}"));
            }
            let parent = prefixes.tree.parent(id).flatten().and_then(|parent| self.pages.get(parent.0 as usize));
            // Whoever pins a page pins all before it, so that what is evictable can be reached from leaves.
            if !stale && page.pins() > 0 && parent.is_some_and(|parent| parent.is_cached() && parent.pins() == 0) {
                return Err(format!("page {id} is pinned, what it is behind is not"));
            }
            current += usize::from(!stale);
        }
        if current == cached { Ok(()) } else { Err(format!("{current} nodes, {cached} cached pages")) }
    }
}
