//! One page's state, and how many pages are in which. Knows neither who owns a page nor why.
//!
//! ```text
//!                  pins > 0    pins = 0
//!   in the tree     pinned     evictable
//!   outside         pinned       never
//! ```

use crate::Tag;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageState {
    Free,
    /// In use: by so many sequences, by the prefix tree, or by both.
    Held {
        pins: u32,
        cached: bool,
    },
    /// Until the fence has passed this step; `None` once it has.
    Quarantined {
        after_step: Option<u64>,
    },
}

#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) tag: Tag,
    pub(crate) state: PageState,
    /// Transfers that name it.
    pub(crate) holds: u32,
    pub(crate) suspect: bool,
    /// Left the prefix tree in doubt; stays out of it until it is handed out again.
    pub(crate) barred: bool,
    /// The last step that may still touch it, as far as those said who released it.
    pub(crate) after_step: u64,
}

impl Page {
    pub(crate) fn free(tag: Tag) -> Self {
        Self { tag, state: PageState::Free, holds: 0, suspect: false, barred: false, after_step: 0 }
    }

    /// Sequences that pin it.
    pub(crate) fn pins(&self) -> u32 {
        match self.state {
            PageState::Held { pins, .. } => pins,
            PageState::Free | PageState::Quarantined { .. } => 0,
        }
    }

    pub(crate) fn is_cached(&self) -> bool {
        matches!(self.state, PageState::Held { cached: true, .. })
    }

    /// Nothing but the prefix tree keeps it.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_cached() && self.pins() == 0 && self.holds == 0
    }
}

/// `free + quarantined + pinned + evictable == total`, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageCounts {
    pub total: u32,
    pub free: u32,
    pub quarantined: u32,
    /// By one sequence or more, whether or not the prefix tree has them too.
    pub pinned: u32,
    /// Held by the prefix tree alone; 0 for a pool without one.
    pub evictable: u32,
    /// Of the evictable: those that stay until a transfer has drained.
    pub evictable_held: u32,
    /// Of the quarantined: those that the fence alone will free.
    pub settling: u32,
    /// Of the quarantined: those that stay until they are readmitted.
    pub suspect: u32,
    /// Of the pinned: those that will be among these once they are released.
    pub suspect_pinned: u32,
}

impl PageCounts {
    /// Pages that an allocation may get: free ones, and those that the prefix tree gives up for it.
    pub fn available(&self) -> u32 {
        self.free + (self.evictable - self.evictable_held)
    }

    pub(crate) fn add(&mut self, page: &Page) {
        self.tally(page, |count| *count += 1);
    }

    pub(crate) fn remove(&mut self, page: &Page) {
        self.tally(page, |count| *count -= 1);
    }

    fn tally(&mut self, page: &Page, apply: impl Fn(&mut u32)) {
        match page.state {
            PageState::Free => apply(&mut self.free),
            PageState::Held { pins: 0, .. } => {
                apply(&mut self.evictable);
                if page.holds > 0 {
                    apply(&mut self.evictable_held);
                }
            }
            PageState::Held { .. } => {
                apply(&mut self.pinned);
                if page.suspect {
                    apply(&mut self.suspect_pinned);
                }
            }
            PageState::Quarantined { after_step } => {
                apply(&mut self.quarantined);
                if page.suspect {
                    apply(&mut self.suspect);
                } else if page.holds == 0 && after_step.is_some() {
                    apply(&mut self.settling);
                }
            }
        }
    }
}
