//! Tag changes on their way to the backend: at most one per page, the latest. Knows no ownership.
//!
//! A backend may apply the changes of one call in parallel, so a page must not be in them twice. Merging is exact: all
//! changes of one call come before anything else touches the pages, so only the last tag counts, and a page that any of
//! the merged changes zeroes is zeroed.

use std::collections::BTreeMap;

use crate::{PageId, TagChange};

#[derive(Debug, Default)]
pub(crate) struct Changes {
    pending: BTreeMap<PageId, TagChange>,
}

impl Changes {
    pub(crate) fn push(&mut self, change: TagChange) {
        let zero = self.pending.get(&change.page).is_some_and(|earlier| earlier.zero);
        self.pending.insert(change.page, TagChange { zero: change.zero || zero, ..change });
    }

    /// Everything since the last call, oldest tag first.
    pub(crate) fn take(&mut self) -> Vec<TagChange> {
        let mut changes: Vec<TagChange> = std::mem::take(&mut self.pending).into_values().collect();
        changes.sort_by_key(|change| change.tag);
        changes
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }
}
