//! Where freed pages rest until nothing can touch them any more: neither a step that was dispatched before they were
//! freed, nor a transfer that names them. Time alone never frees a page. Knows no owner and no tag.
//!
//! ```text
//! release(after_step) --> waits for fence(after_step) --> waits for its transfers --> not suspect --> free
//! ```

use std::collections::BTreeSet;

use crate::PageId;

/// A transfer that reads or writes pages outside of the step's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u64);

#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    /// (step to wait for, page): only those that the fence has not passed.
    unfenced: BTreeSet<(u64, PageId)>,
    holds: BTreeSet<(TransferId, PageId)>,
    /// The last step that is known to have ended.
    completed: u64,
}

impl Quarantine {
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    pub(crate) fn enter(&mut self, page: PageId, after_step: u64) {
        if after_step > self.completed {
            self.unfenced.insert((after_step, page));
        }
    }

    /// Pages that waited for a step up to `completed_step`, in order of page.
    pub(crate) fn fence(&mut self, completed_step: u64) -> Vec<PageId> {
        self.completed = self.completed.max(completed_step);
        let Some(next) = self.completed.checked_add(1) else {
            return std::mem::take(&mut self.unfenced).into_iter().map(|(_, page)| page).collect();
        };
        let later = self.unfenced.split_off(&(next, PageId(0)));
        std::mem::replace(&mut self.unfenced, later).into_iter().map(|(_, page)| page).collect()
    }

    /// False if this transfer holds the page already.
    pub(crate) fn hold(&mut self, page: PageId, transfer: TransferId) -> bool {
        self.holds.insert((transfer, page))
    }

    /// Pages that this transfer held.
    pub(crate) fn drain(&mut self, transfer: TransferId) -> Vec<PageId> {
        let held: Vec<PageId> =
            self.holds.range((transfer, PageId(0))..=(transfer, PageId(u32::MAX))).map(|&(_, page)| page).collect();
        for &page in &held {
            self.holds.remove(&(transfer, page));
        }
        held
    }

    pub(crate) fn holds(&self) -> impl Iterator<Item = PageId> {
        self.holds.iter().map(|&(_, page)| page)
    }

    pub(crate) fn unfenced(&self) -> impl Iterator<Item = (u64, PageId)> {
        self.unfenced.iter().copied()
    }
}
