//! Pages that outlive their sequence: lookup, insert and eviction over the prefix tree. Knows prompts as tokens in a scope.
//!
//! Looking up and pinning are one step, so nothing can take a page in between. A page that is in the tree stays under its tag
//! and is written by nobody: a prompt goes on behind the last whole page that it shares. A page in doubt leaves the tree with
//! all that was computed on top of it, and none of these comes back before it has been freed.

use super::PagePool;
use crate::page::PageState;
use crate::tree::{Place, PrefixTree};
use crate::{KvError, PageId, PageRef, PrefixCounters, PrefixDirectory, PrefixOptions, PrefixOwner, PrefixScope, Prompt};

/// The tree with its bounds.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    pub(crate) tree: PrefixTree,
    options: PrefixOptions,
    counters: PrefixCounters,
}

/// What became of one page of a prompt that was to enter the tree.
enum Entered {
    /// It is the tree's page of these tokens now.
    Own,
    /// The tree had another by then, which the sequence pins from now on.
    Adopted(PageRef),
    /// Neither it nor what is behind it can enter.
    Not,
}

impl PagePool {
    /// From now on prompts can enter the tree. Twice changes the options alone.
    pub fn cache_prefixes(&mut self, options: PrefixOptions) {
        match &mut self.prefixes {
            Some(prefixes) => prefixes.options = options,
            None => {
                let (tree, counters) = (PrefixTree::new(self.options.page_tokens), PrefixCounters::default());
                self.prefixes = Some(PrefixCache { tree, options, counters });
            }
        }
    }

    pub fn caches_prefixes(&self) -> bool {
        self.prefixes.is_some()
    }

    pub fn prefix_counters(&self) -> PrefixCounters {
        self.prefixes.as_ref().map(|prefixes| prefixes.counters).unwrap_or_default()
    }

    /// What the tree has, for readers on other threads; none where prompts cannot enter.
    pub fn prefix_directory(&self) -> Option<PrefixDirectory> {
        self.prefixes.as_ref().map(|prefixes| prefixes.tree.directory())
    }

    /// Pages in the tree that this owner brought in.
    pub fn cached_pages_of(&self, owner: PrefixOwner) -> u32 {
        self.prefixes.as_ref().map_or(0, |prefixes| prefixes.tree.owned(owner))
    }

    /// Pages that one owner may have in the tree; none where prompts cannot enter.
    pub fn owner_pages(&self) -> Option<u32> {
        self.prefixes.as_ref().map(|prefixes| prefixes.options.owner_pages)
    }

    /// Pages in the tree, pinned or not.
    pub fn cached_pages(&self) -> u32 {
        self.prefixes.as_ref().map_or(0, |prefixes| prefixes.tree.len())
    }

    /// Whether the tree has the page, under this tag. Nobody writes it then.
    pub fn is_cached(&self, page: PageRef) -> bool {
        self.get(page.page).is_some_and(|known| known.tag == page.tag && known.is_cached())
    }

    /// The longest run of whole pages that the tree has for the beginning of these tokens, pinned for the caller, who releases
    /// them like any others. At least one token is left to compute, or there would be no logits to draw from. What hangs
    /// behind a page that is not current is forgotten.
    pub fn lookup_and_pin(&mut self, scope: PrefixScope, tokens: &[u32]) -> Vec<PageRef> {
        let mut pages = Vec::new();
        let root = self.root(scope);
        let Some(prefixes) = &mut self.prefixes else { return pages };
        let used = prefixes.tree.next_use();
        let mut place = Place::Root(root);
        let page_tokens = self.options.page_tokens as usize;
        let shareable = tokens.len().saturating_sub(1) / page_tokens;
        for tokens in tokens.chunks_exact(page_tokens).take(shareable) {
            let Some(page) = self.current_child(place, tokens) else { break };
            if !self.pin_cached(page, used) {
                break;
            }
            place = Place::Behind(page.page);
            pages.push(page);
        }
        pages
    }

    /// Puts the whole pages of a computed prompt into the tree; `table` are the sequence's pages, of which the first `cached`
    /// are in the tree already. Returns how many are now.
    ///
    /// Where the tree has a page of the same tokens, the sequence takes that one over into its table and its own is released:
    /// both hold the same numbers, and whoever pins a page in the tree so pins all before it. `after_step` is as in
    /// [`Self::release`].
    ///
    /// # Errors
    /// Only if no tag is left, which `allocate` sees to.
    pub fn insert(
        &mut self,
        prompt: &Prompt<'_>,
        table: &mut [PageRef],
        cached: usize,
        after_step: u64,
    ) -> Result<usize, KvError> {
        let Some((mut place, used)) = self.place_behind(prompt.scope, &table[..cached.min(table.len())]) else {
            return Ok(cached);
        };
        let pages = prompt.tokens.chunks_exact(self.options.page_tokens as usize).zip(table).skip(cached);
        let mut cached = cached;
        for (tokens, own) in pages {
            match self.enter(place, tokens, *own, (prompt, used))? {
                Entered::Own => {}
                Entered::Adopted(shared) => {
                    // Pinned already, so that what is released first cannot take it along.
                    self.release(&[std::mem::replace(own, shared)], after_step)?;
                }
                Entered::Not => break,
            }
            place = Place::Behind(own.page);
            cached += 1;
        }
        Ok(cached)
    }

    /// Evicts until `pages` pages are free or will be once the fence has passed, as far as there are leaves to evict: those of
    /// `owner`, who needs the room, before those of others, and of both the oldest first. So nobody's kept pages go while who
    /// asks has some. Pages that a transfer holds stay: evicting them would free nothing.
    pub fn make_room(&mut self, pages: u32, owner: PrefixOwner) {
        while self.counts.free + self.counts.settling < pages {
            let oldest = |prefixes: &PrefixCache| prefixes.tree.oldest(Some(owner)).or_else(|| prefixes.tree.oldest(None));
            let Some(page) = self.prefixes.as_ref().and_then(oldest) else { return };
            if self.evict(page).is_err() {
                return;
            }
        }
    }

    /// Takes pages out of the tree with all behind them: what they hold is in doubt, although nobody read what was not its
    /// own. Who pins them keeps them.
    ///
    /// # Errors
    /// Only if no tag is left, which `allocate` sees to.
    pub fn forget(&mut self, pages: &[PageRef]) -> Result<(), KvError> {
        pages.iter().try_for_each(|page| self.forget_from(page.page))
    }

    /// Empties the tree.
    ///
    /// # Errors
    /// Only if no tag is left, which `allocate` sees to.
    pub fn forget_all(&mut self) -> Result<(), KvError> {
        let pages: Vec<PageId> = self.prefixes.iter().flat_map(|prefixes| prefixes.tree.pages()).collect();
        pages.into_iter().try_for_each(|page| self.forget_from(page))
    }

    /// Takes a page and all behind it out of the tree, in doubt.
    pub(super) fn forget_from(&mut self, page: PageId) -> Result<(), KvError> {
        let Some(prefixes) = &mut self.prefixes else { return Ok(()) };
        let removed = prefixes.tree.remove(page);
        prefixes.counters.forgotten += removed.len() as u64;
        for PageRef { page, tag } in removed {
            // A stale node's page is another's, whom this does not touch.
            if self.get(page).is_some_and(|page| page.tag == tag) {
                self.update(page, |page| {
                    page.barred = true;
                    uncache(&mut page.state);
                });
                self.free_if_unused(page)?;
            }
        }
        Ok(())
    }

    /// Takes a node out whose page carries another tag by now.
    pub(super) fn forget_stale(&mut self, page: PageId) -> Result<(), KvError> {
        let node = self.prefixes.as_ref().and_then(|prefixes| prefixes.tree.node(page));
        let tag = self.get(page).map(|page| page.tag);
        if node.is_some_and(|node| Some(node.tag) != tag) { self.forget_from(page) } else { Ok(()) }
    }

    /// The tree's page of these tokens, if it is what the node says; if not, it is forgotten.
    fn current_child(&mut self, place: Place, tokens: &[u32]) -> Option<PageRef> {
        let page = self.prefixes.as_ref()?.tree.child(place, tokens)?;
        if self.is_cached(page) {
            return Some(page);
        }
        let forgotten = self.forget_from(page.page);
        debug_assert_eq!(forgotten, Ok(()), "a tag was kept back for every page in use");
        None
    }

    /// Where a prompt goes on that has these pages in the tree, and the number of the use that it belongs to. `None` without a
    /// tree, or if the last of them was forgotten since.
    fn place_behind(&mut self, scope: PrefixScope, cached: &[PageRef]) -> Option<(Place, u64)> {
        let is_current = cached.last().is_none_or(|&last| self.is_current(last));
        let root = self.root(scope);
        let tree = &mut self.prefixes.as_mut().filter(|_| is_current)?.tree;
        match cached.last() {
            None => Some((Place::Root(root), tree.next_use())),
            Some(last) if tree.node(last.page) == Some(*last) => Some((Place::Behind(last.page), tree.last_use(last.page))),
            Some(_) => None,
        }
    }

    /// False, and nothing is pinned, for one pin more than can be counted.
    fn pin_cached(&mut self, page: PageRef, used: u64) -> bool {
        let mut pinned = false;
        self.update(page.page, |page| {
            if let PageState::Held { pins, .. } = &mut page.state
                && let Some(more) = pins.checked_add(1)
            {
                *pins = more;
                pinned = true;
            }
        });
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.tree.touch(page.page, used);
        }
        pinned
    }

    fn enter(&mut self, place: Place, tokens: &[u32], own: PageRef, by: (&Prompt<'_>, u64)) -> Result<Entered, KvError> {
        let (Prompt { owner, .. }, used) = by;
        if let Some(shared) = self.current_child(place, tokens) {
            // A page that is not the sequence's any more cannot be given back for the shared one.
            if !self.is_current(own) || !self.pin_cached(shared, used) {
                return Ok(Entered::Not);
            }
            if let Some(prefixes) = &mut self.prefixes {
                prefixes.counters.adopted += 1;
            }
            return Ok(Entered::Adopted(shared));
        }
        let may_enter = self.get(own.page).is_some_and(|page| !page.suspect && !page.barred && !page.is_cached());
        if !may_enter || !self.is_current(own) || !self.room_in_quota(by.0)? {
            return Ok(Entered::Not);
        }
        let Some(prefixes) = &mut self.prefixes else { return Ok(Entered::Not) };
        if !prefixes.tree.add(place, tokens, own, (*owner, used)) {
            return Ok(Entered::Not);
        }
        prefixes.counters.inserted += 1;
        self.update(own.page, |page| {
            if let PageState::Held { cached, .. } = &mut page.state {
                *cached = true;
            }
        });
        Ok(Entered::Own)
    }

    /// Whether the owner may have one page more, for which its oldest may go. The path that the page is to be put behind is
    /// pinned and stays.
    fn room_in_quota(&mut self, prompt: &Prompt<'_>) -> Result<bool, KvError> {
        // Each turn but the last evicts one of the owner's pages.
        loop {
            let Some(prefixes) = &mut self.prefixes else { return Ok(false) };
            let owner_pages = prefixes.options.owner_pages;
            if prefixes.tree.owned(prompt.owner) < owner_pages {
                return Ok(true);
            }
            let Some(oldest) = prefixes.tree.oldest(Some(prompt.owner)) else {
                prefixes.counters.over_quota += 1;
                return Ok(false);
            };
            self.evict(oldest)?;
        }
    }

    /// Frees a leaf that nobody pins.
    fn evict(&mut self, leaf: PageId) -> Result<(), KvError> {
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.tree.remove(leaf);
            prefixes.counters.evicted += 1;
        }
        self.update(leaf, |page| uncache(&mut page.state));
        self.free_if_unused(leaf)
    }
}

fn uncache(state: &mut PageState) {
    if let PageState::Held { cached, .. } = state {
        *cached = false;
    }
}

#[cfg(test)]
mod bugs;
#[cfg(test)]
mod random;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod twin;
