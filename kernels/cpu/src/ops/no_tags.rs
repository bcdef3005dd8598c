//! Stands in for `tags.rs` in a build without the feature `tags`: no tag is kept and nothing is compared, so that what tags cost can be
//! measured. Pages outside the pool are refused all the same.

use millrace_ops::{BackendError, Buffer, CheckTags};

use crate::task::{Arguments, Task};

/// No tags; how many pages there are.
pub(crate) struct TagArray {
    pages: usize,
}

impl TagArray {
    pub(crate) fn new(_arguments: Arguments, _tags: Buffer, pages: usize) -> Result<Self, BackendError> {
        Ok(Self { pages })
    }

    /// Whether there is such a page.
    #[inline]
    pub(crate) fn carries(&self, page: u32, _tag: u64) -> bool {
        (page as usize) < self.pages
    }

    /// # Safety
    /// None is needed; `tags.rs` asks for some.
    pub(crate) unsafe fn set(&self, _page: usize, _tag: u64) {}
}

/// # Errors
/// Always: whoever asks for a check must not believe that it was made.
pub(crate) fn check(arguments: Arguments, _op: CheckTags) -> Result<Box<dyn Task>, BackendError> {
    Err(arguments.invalid("this build has no page tags to check; build it with the feature `tags`"))
}
