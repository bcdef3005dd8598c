//! Ways to break pages and guards on purpose, and to see who is where, for tests (feature `fault-injection`).

use millrace_core::SeqId;
use millrace_kv::{Guard, PageId, PageRef, PageTable};

use crate::decode::{DecodeScheduler, DecodeState};
use crate::prefill::{PrefillScheduler, PrefillState};

/// What a sequence does in its stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceState {
    /// Prefill: holds no pages.
    Waiting,
    Prefilling,
    /// Prefill: done, pages still held. Decode: reserved, not attached yet.
    HandingOff,
    Running,
}

impl PrefillScheduler {
    /// Every sequence here.
    pub fn states(&self) -> Vec<(SeqId, SequenceState)> {
        let state = |state| match state {
            PrefillState::Waiting => SequenceState::Waiting,
            PrefillState::Prefilling => SequenceState::Prefilling,
            PrefillState::HandingOff => SequenceState::HandingOff,
        };
        self.sequences.iter().map(|(&seq, sequence)| (seq, state(sequence.state))).collect()
    }
}

impl DecodeScheduler {
    /// Every sequence here.
    pub fn states(&self) -> Vec<(SeqId, SequenceState)> {
        let state = |state| match state {
            DecodeState::Reserved => SequenceState::HandingOff,
            DecodeState::Running => SequenceState::Running,
        };
        self.sequences.iter().map(|(&seq, sequence)| (seq, state(sequence.state))).collect()
    }
}

/// Methods that both schedulers have in the same words.
macro_rules! fault_methods {
    ($scheduler:ty) => {
        impl $scheduler {
            /// Switches a guard of the pool off for good.
            pub fn switch_off(&mut self, guard: Guard) {
                self.state.pool.switch_off(guard);
            }

            /// The pages of a sequence; none if it is not here.
            pub fn table(&self, seq: SeqId) -> Vec<PageRef> {
                self.sequences.get(&seq).map(|sequence| sequence.pages.clone()).unwrap_or_default()
            }

            /// Hands a page of a sequence out again behind its back: the bug that tags exist to catch. `None` if the
            /// sequence has no such page. Give the page back with [`Self::return_stolen`].
            pub fn steal_page(&mut self, seq: SeqId, index: usize) -> Option<PageRef> {
                let page = *self.sequences.get(&seq)?.pages.get(index)?;
                if !self.state.pool.is_current(page) {
                    return None;
                }
                let stolen = self.state.pool.force_reassign(page.page).ok()?;
                self.state.stolen.push(stolen);
                Some(stolen)
            }

            /// Sequences whose tables name this page, under whatever tag.
            pub fn readers(&self, page: PageId) -> Vec<SeqId> {
                let names_it = |pages: &PageTable| pages.iter().any(|known| known.page == page);
                let reading = self.sequences.iter().filter(|(_, sequence)| names_it(&sequence.pages));
                reading.map(|(&seq, _)| seq).collect()
            }

            /// Frees all stolen pages, as their new owners would.
            pub fn return_all_stolen(&mut self) {
                let stolen = std::mem::take(&mut self.state.stolen);
                self.state.give_back(stolen);
            }

            /// Frees a stolen page, as its new owner would. False if it is none.
            pub fn return_stolen(&mut self, page: PageRef) -> bool {
                let before = self.state.stolen.len();
                self.state.stolen.retain(|&stolen| stolen != page);
                let known = self.state.stolen.len() < before;
                if known {
                    self.state.give_back(vec![page]);
                }
                known
            }
        }
    };
}

fault_methods!(PrefillScheduler);
fault_methods!(DecodeScheduler);
