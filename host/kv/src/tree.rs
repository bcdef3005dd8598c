//! The prefix tree: which page holds the keys and values of which whole page of tokens, behind which others. Knows tokens and
//! pages; not who pins a page, nor what a scope stands for.
//!
//! ```text
//!   scope --tokens 0..16--> page 7 --tokens 16..32--> page 3
//!                             |
//!                             +------tokens 16..32--> page 9        a node per page, a page in one node at most
//! ```
//!
//! A page is found by its tokens themselves, never by a hash of them, and only along the path from its scope: its keys and
//! values depend on every token before it. Nothing here recurses: prompts, and with them paths, are as long as clients make them.
//!
//! A path is used from its root, so a node was used no later than its parent, and the oldest leaf is the oldest node.

mod invariants;
mod node;
mod order;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use node::Place;

use self::node::{Children, Node};
use self::order::EvictionOrder;
use crate::directory::Path;
use crate::{PageId, PageRef, PrefixDirectory, PrefixOwner, PrefixScope};

#[derive(Debug)]
pub(crate) struct PrefixTree {
    nodes: BTreeMap<PageId, Node>,
    /// First pages of each scope; a scope without pages has no entry.
    roots: BTreeMap<PrefixScope, Children>,
    order: EvictionOrder,
    /// Pages that each owner brought in; an owner without pages has no entry.
    owned: BTreeMap<PrefixOwner, u32>,
    /// Number of the last use.
    uses: u64,
    /// What is here, for readers on other threads.
    directory: PrefixDirectory,
}

impl PrefixTree {
    /// Empty, of pages of so many tokens.
    pub(crate) fn new(page_tokens: u32) -> Self {
        Self {
            nodes: BTreeMap::new(),
            roots: BTreeMap::new(),
            order: EvictionOrder::default(),
            owned: BTreeMap::new(),
            uses: 0,
            directory: PrefixDirectory::new(page_tokens),
        }
    }

    /// Another reader of what is here.
    pub(crate) fn directory(&self) -> PrefixDirectory {
        self.directory.clone()
    }

    /// A number for one use of a path, for [`Self::touch`] and [`Self::add`].
    pub(crate) fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// The page of these tokens behind `place`. Whether it is still current the tree cannot know.
    pub(crate) fn child(&self, place: Place, tokens: &[u32]) -> Option<PageRef> {
        let page = *self.children(place)?.get(tokens)?;
        Some(PageRef { page, tag: self.nodes.get(&page)?.tag })
    }

    /// The node's tag, if the page has one; it may be stale.
    pub(crate) fn node(&self, page: PageId) -> Option<PageRef> {
        self.nodes.get(&page).map(|node| PageRef { page, tag: node.tag })
    }

    /// 0 for a page that is not in the tree.
    pub(crate) fn last_use(&self, page: PageId) -> u64 {
        self.nodes.get(&page).map_or(0, |node| node.used)
    }

    pub(crate) fn owned(&self, owner: PrefixOwner) -> u32 {
        self.owned.get(&owner).copied().unwrap_or_default()
    }

    pub(crate) fn len(&self) -> u32 {
        // As many as the pool has pages at most.
        self.nodes.len() as u32
    }

    pub(crate) fn touch(&mut self, page: PageId, used: u64) {
        self.change(page, |node| node.used = used);
    }

    /// Whether nothing but the tree keeps the page; unknown pages are ignored.
    pub(crate) fn set_idle(&mut self, page: PageId, idle: bool) {
        if self.nodes.get(&page).is_some_and(|node| node.idle != idle) {
            self.change(page, |node| node.idle = idle);
        }
    }

    /// Puts a page behind `place`, not idle. False, and nothing is changed, if the place is gone, has a page of these tokens,
    /// or the page is in the tree already.
    pub(crate) fn add(&mut self, place: Place, tokens: &[u32], page: PageRef, by: (PrefixOwner, u64)) -> bool {
        let (owner, used) = by;
        let taken = self.nodes.contains_key(&page.page) || self.child(place, tokens).is_some();
        if taken || matches!(place, Place::Behind(parent) if !self.nodes.contains_key(&parent)) {
            return false;
        }
        let path = match place {
            Place::Root(scope) => Path::of(scope),
            Place::Behind(parent) => self.nodes.get(&parent).map_or_else(|| Path::of(PrefixScope([0; 32])), |node| node.path),
        }
        .then(tokens);
        let tokens: Arc<[u32]> = tokens.into();
        match place {
            Place::Root(scope) => {
                self.roots.entry(scope).or_default().insert(Arc::clone(&tokens), page.page);
            }
            Place::Behind(parent) => self.change(parent, |node| {
                node.children.insert(Arc::clone(&tokens), page.page);
            }),
        }
        *self.owned.entry(owner).or_default() += 1;
        self.directory.enter(path);
        let children = Children::new();
        self.nodes.insert(page.page, Node { tag: page.tag, place, tokens, path, children, owner, used, idle: false });
        true
    }

    /// Takes a page and all behind it out. Nothing if it is not in the tree.
    pub(crate) fn remove(&mut self, page: PageId) -> Vec<PageRef> {
        if let Some((place, tokens)) = self.nodes.get(&page).map(|node| (node.place, Arc::clone(&node.tokens))) {
            self.unlink(place, &tokens);
        }
        let mut left = vec![page];
        let mut removed = Vec::new();
        while let Some(page) = left.pop() {
            let Some(node) = self.nodes.remove(&page) else { continue };
            self.order.remove(&node.rank(page));
            self.disown(node.owner);
            self.directory.leave(node.path);
            removed.push(PageRef { page, tag: node.tag });
            left.extend(node.children.into_values());
        }
        removed
    }

    /// The idle leaf that was used longest ago: of one owner, or of all.
    pub(crate) fn oldest(&self, owner: Option<PrefixOwner>) -> Option<PageId> {
        self.order.oldest(owner)
    }

    /// Every page of the tree, without its tag.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageId> {
        self.nodes.keys().copied()
    }

    fn children(&self, place: Place) -> Option<&Children> {
        match place {
            Place::Root(scope) => self.roots.get(&scope),
            Place::Behind(parent) => self.nodes.get(&parent).map(|node| &node.children),
        }
    }

    fn unlink(&mut self, place: Place, tokens: &[u32]) {
        match place {
            Place::Root(scope) => {
                if let Some(children) = self.roots.get_mut(&scope) {
                    children.remove(tokens);
                    if children.is_empty() {
                        self.roots.remove(&scope);
                    }
                }
            }
            Place::Behind(parent) => self.change(parent, |node| {
                node.children.remove(tokens);
            }),
        }
    }

    fn disown(&mut self, owner: PrefixOwner) {
        let Some(count) = self.owned.get_mut(&owner) else { return };
        *count -= 1;
        if *count == 0 {
            self.owned.remove(&owner);
        }
    }

    /// The only way to change a node, so that the eviction order cannot drift.
    fn change(&mut self, page: PageId, change: impl FnOnce(&mut Node)) {
        let Some(node) = self.nodes.get_mut(&page) else { return };
        self.order.remove(&node.rank(page));
        change(node);
        if node.is_idle_leaf() {
            self.order.insert(node.rank(page));
        }
    }
}
