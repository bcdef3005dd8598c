//! Prompts and the prefix tree: where a prompt begins, and when its pages enter. Does not know how pages are found or evicted.
//!
//! ```text
//!   position  0 ..... found | ..... computed | ..... prompt
//!             the tree's    | whole pages    | no page of the tree is written: what is computed next
//!             when it came  | enter at commit| lies behind the last whole page
//! ```
//! A page enters once the step that computed it has ended well, never before; a sequence whose numbers are in doubt takes what it
//! has in the tree out again, with all that others computed on top of it.

use millrace_core::SeqId;
use millrace_kv::{PageRef, PrefixOptions, PrefixOwner, Prompt};

use super::{PrefillScheduler, PrefillSequence};

impl PrefillScheduler {
    /// Gives the pool a prefix tree, or an old one new options.
    pub fn cache_prefixes(&mut self, options: PrefixOptions) {
        self.state.pool.cache_prefixes(options);
    }

    /// Empties the prefix tree. Sequences keep what they read of it, and none of that comes back.
    pub fn forget_prefixes(&mut self) {
        let forgotten = self.state.pool.forget_all();
        debug_assert_eq!(forgotten, Ok(()), "a tag is kept back for every page in use");
    }

    /// The whole pages that the tree has of a prompt, pinned for it.
    pub(super) fn look_up(&mut self, seq: SeqId) -> Vec<PageRef> {
        let Some(PrefillSequence { entry, .. }) = self.sequences.get(&seq) else { return Vec::new() };
        let Some(scope) = entry.scope else { return Vec::new() };
        self.state.pool.lookup_and_pin(scope, &entry.prompt)
    }

    /// Takes the pins off pages that were looked up and not used.
    pub(super) fn put_back(&mut self, found: Vec<PageRef>) {
        let released = self.state.pool.release(&found, 0);
        debug_assert_eq!(released, Ok(()), "nothing came in between");
    }

    /// A prompt gets its first pages, those that were found first. What was found is not billed.
    pub(super) fn begin_behind(&mut self, seq: SeqId, found: Vec<PageRef>) {
        let found_tokens = (found.len() as u32).saturating_mul(self.state.pool.page_tokens());
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        // What it finds when it comes back may be its own from before: no hit, and no more than it found at first.
        if sequence.was_reset {
            sequence.found_tokens = sequence.found_tokens.min(found_tokens);
        } else if sequence.entry.preemptions == 0 && sequence.entry.scope.is_some() && self.state.pool.caches_prefixes() {
            sequence.found_tokens = found_tokens;
            self.state.counters.prefix_queried_tokens += u64::from(sequence.entry.prompt_tokens());
            self.state.counters.prefix_hit_tokens += u64::from(found_tokens);
        }
        sequence.computed = found_tokens;
        sequence.billed = sequence.billed.max(found_tokens);
        sequence.cached = found.len();
        sequence.pages = found;
    }

    /// A step has ended that computed more of this prompt: its whole pages enter.
    pub(super) fn enter_tree(&mut self, seq: SeqId) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        let Some(scope) = sequence.entry.scope else { return };
        let Some(tokens) = sequence.entry.prompt.get(..sequence.computed as usize) else { return };
        let prompt = Prompt { scope, owner: PrefixOwner(sequence.entry.tenant.0), tokens };
        let after_step = self.state.last_step();
        let entered = self.state.pool.insert(&prompt, &mut sequence.pages, sequence.cached, after_step);
        debug_assert!(entered.is_ok(), "a tag is kept back for every page in use");
        sequence.cached = entered.unwrap_or(sequence.cached);
    }

    /// What this sequence has in the tree is in doubt.
    pub(super) fn forget(&mut self, seq: SeqId) {
        let Some(sequence) = self.sequences.get(&seq) else { return };
        let forgotten = self.state.pool.forget(&sequence.pages[..sequence.cached.min(sequence.pages.len())]);
        debug_assert_eq!(forgotten, Ok(()), "a tag is kept back for every page in use");
    }
}
