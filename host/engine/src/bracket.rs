//! The tag array of a pool, and the two checks around a step: before it touches a page, and before its tokens are published. Knows no
//! plan and no rows. `no_bracket.rs` stands in for this file in a build without the feature `tags`.

use millrace_ops::{Backend, BackendError, Buffer, CheckTags, Op, Queue, Upload};

use crate::{EngineError, PoolSpec, TagChecks};

/// Whether this build has page tags at all; without them no pool with [`TagChecks::On`] starts.
pub const TAGS_BUILT: bool = true;

/// What one pool was told to check.
pub(crate) struct Bracket(TagChecks);

impl Bracket {
    /// # Errors
    /// None; a build without tags has some.
    pub(crate) fn new(spec: &PoolSpec) -> Result<Self, EngineError> {
        Ok(Self(spec.tag_checks))
    }

    /// Enqueues one end of the bracket, where the pool has it.
    pub(crate) fn check(&self, queue: &mut dyn Queue, check: impl FnOnce() -> CheckTags) {
        if self.0 == TagChecks::On {
            queue.enqueue(Op::CheckTags(check()));
        }
    }

    /// How many of a step's page-table entries are checked.
    pub(crate) fn checked(&self, entries: usize) -> u64 {
        match self.0 {
            TagChecks::On => entries as u64,
            TagChecks::Off => 0,
        }
    }

    /// Whether the head check of the next step clears what a write flagged.
    pub(crate) fn clears_flags(&self) -> bool {
        self.0 == TagChecks::On
    }
}

/// Where the tags of so many pages are kept.
///
/// # Errors
/// [`BackendError::OutOfMemory`].
pub(crate) fn tag_array(backend: &dyn Backend, pages: usize) -> Result<Buffer, BackendError> {
    backend.allocate(pages * size_of::<u64>())
}

/// Gives pages that have no owner, from the first on, the tags 1, 2, 3 ..; for pages that only convert.
pub(crate) fn number_pages(tags: &Buffer, pages: usize) -> Option<Op> {
    let bytes = (1..=pages as u64).flat_map(u64::to_le_bytes).collect();
    Some(Op::Upload(Upload { to: tags.clone(), offset: 0, bytes }))
}
