//! What must hold for the tree after every call, checked from first principles. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::PrefixTree;
use super::node::{Node, Place};
use crate::directory::Path;
use crate::{PageId, PrefixOwner};

impl PrefixTree {
    /// Every node hangs where it says, is reached from a root once, holds one whole page of tokens, was used no later than its
    /// parent, and is in the eviction order if and only if it is an idle leaf; owners' counts add up.
    pub(crate) fn check(&self, page_tokens: u32) -> Result<(), String> {
        self.check_links()?;
        let mut owned: BTreeMap<PrefixOwner, u32> = BTreeMap::new();
        let mut leaves = 0;
        for (&page, node) in &self.nodes {
            if node.tokens.len() != page_tokens as usize {
                return Err(format!("page {page} is cached for {} tokens", node.tokens.len()));
            }
            if let Place::Behind(parent) = node.place
                && self.nodes.get(&parent).is_none_or(|parent| parent.used < node.used)
            {
                return Err(format!("page {page} was used after page {parent}, which it is behind"));
            }
            leaves += usize::from(node.is_idle_leaf());
            if self.order.contains(&node.rank(page)) != node.is_idle_leaf() {
                return Err(format!("page {page} ({node:?}) disagrees with the eviction order"));
            }
            *owned.entry(node.owner).or_default() += 1;
        }
        if self.order.len() != leaves {
            return Err(format!("{} pages in the eviction order, {leaves} idle leaves", self.order.len()));
        }
        let paths: BTreeSet<Path> = self.nodes.values().map(|node| node.path).collect();
        if !self.directory.is(&paths) {
            return Err("the directory and the tree have different pages".into());
        }
        if owned != self.owned {
            return Err(format!("owners' pages drifted: kept {:?}, counted {owned:?}", self.owned));
        }
        Ok(())
    }

    /// Whether the tree has the page, and what it is behind.
    pub(crate) fn parent(&self, page: PageId) -> Option<Option<PageId>> {
        self.nodes.get(&page).map(|Node { place, .. }| match *place {
            Place::Root(_) => None,
            Place::Behind(parent) => Some(parent),
        })
    }

    fn check_links(&self) -> Result<(), String> {
        if self.roots.values().any(BTreeMap::is_empty) {
            return Err("a scope without pages is still known".into());
        }
        let mut reached = BTreeSet::new();
        let firsts = |(&scope, children)| (Place::Root(scope), children);
        let mut left: Vec<_> = self.roots.iter().map(firsts).collect();
        while let Some((place, children)) = left.pop() {
            for (tokens, &page) in children {
                let Some(node) = self.nodes.get(&page) else { return Err(format!("a child, page {page}, has no node")) };
                if node.place != place || node.tokens != *tokens {
                    return Err(format!("page {page} hangs elsewhere than it says"));
                }
                if !reached.insert(page) {
                    return Err(format!("page {page} is reached twice"));
                }
                left.push((Place::Behind(page), &node.children));
            }
        }
        if reached.len() == self.nodes.len() {
            return Ok(());
        }
        Err(format!("{} nodes, {} reached from the roots", self.nodes.len(), reached.len()))
    }

    /// Every page under its scope and all tokens up to its own.
    #[cfg(test)]
    pub(crate) fn paths(&self) -> BTreeMap<(crate::PrefixScope, Vec<u32>), crate::PageRef> {
        let mut paths = BTreeMap::new();
        for (&page, node) in &self.nodes {
            let (mut tokens, mut place) = (vec![&node.tokens], node.place);
            while let Place::Behind(parent) = place {
                let parent = &self.nodes[&parent];
                tokens.push(&parent.tokens);
                place = parent.place;
            }
            let Place::Root(scope) = place else { continue };
            let tokens: Vec<u32> = tokens.into_iter().rev().flat_map(|tokens| tokens.iter().copied()).collect();
            paths.insert((scope, tokens), crate::PageRef { page, tag: node.tag });
        }
        paths
    }
}
