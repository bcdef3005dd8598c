//! A node of the tree: one page. Knows its place and its children by page only, so that dropping one drops no other.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::order::Rank;
use crate::directory::Path;
use crate::{PageId, PrefixOwner, PrefixScope, Tag};

/// Pages by their tokens.
pub(crate) type Children = BTreeMap<Arc<[u32]>, PageId>;

/// What a page follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing: it holds a prompt's first tokens.
    Root(PrefixScope),
    Behind(PageId),
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) tag: Tag,
    pub(crate) place: Place,
    pub(crate) tokens: Arc<[u32]>,
    /// Of the directory: its scope and all tokens up to its last.
    pub(crate) path: Path,
    pub(crate) children: Children,
    pub(crate) owner: PrefixOwner,
    /// Number of the last use of a path through it.
    pub(crate) used: u64,
    /// Nothing but the tree keeps the page.
    pub(crate) idle: bool,
}

impl Node {
    pub(crate) fn is_idle_leaf(&self) -> bool {
        self.idle && self.children.is_empty()
    }

    pub(crate) fn rank(&self, page: PageId) -> Rank {
        Rank { owner: self.owner, used: self.used, page }
    }
}
