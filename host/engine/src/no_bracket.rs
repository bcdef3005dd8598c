//! Stands in for `bracket.rs` in a build without the feature `tags`: no tag is kept and no step is checked, so that what tags cost can be
//! measured. A pool that asks for checks does not start.

use millrace_ops::{Backend, BackendError, Buffer, CheckTags, Op, Queue};

use crate::{EngineError, PoolSpec, TagChecks};

/// Whether this build has page tags at all; without them no pool with [`TagChecks::On`] starts.
pub const TAGS_BUILT: bool = false;

/// Nothing.
pub(crate) struct Bracket;

impl Bracket {
    /// # Errors
    /// Where the pool asks for checks: it must not serve without them.
    pub(crate) fn new(spec: &PoolSpec) -> Result<Self, EngineError> {
        match spec.tag_checks {
            TagChecks::Off => Ok(Self),
            TagChecks::On => Err(EngineError::NoTags { pool: spec.name.clone() }),
        }
    }

    pub(crate) fn check(&self, _queue: &mut dyn Queue, _check: impl FnOnce() -> CheckTags) {}

    pub(crate) fn checked(&self, _entries: usize) -> u64 {
        0
    }

    pub(crate) fn clears_flags(&self) -> bool {
        false
    }
}

/// # Errors
/// As [`Backend::allocate`].
pub(crate) fn tag_array(backend: &dyn Backend, _pages: usize) -> Result<Buffer, BackendError> {
    backend.allocate(0)
}

pub(crate) fn number_pages(_tags: &Buffer, _pages: usize) -> Option<Op> {
    None
}
