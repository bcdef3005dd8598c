//! The tokens that rows of sparse attention see, as operations find them: one line of positions per row. Knows no scores.

use millrace_ops::{BackendError, Selection};

use crate::memory::Region;
use crate::task::{Arguments, product};

pub(crate) struct Lines {
    /// u32 `[rows, limit]`.
    pub(crate) tokens: Region,
    limit: usize,
}

impl Lines {
    pub(crate) fn new(arguments: Arguments, selection: Selection, rows: usize) -> Result<Self, BackendError> {
        let Selection { tokens, limit } = selection;
        arguments.require(limit > 0, || "a selection of no tokens".into())?;
        Ok(Self { tokens: arguments.region("selection.tokens", tokens, product(&[rows, limit, 4]))?, limit })
    }

    /// How many tokens the row at `position` sees.
    pub(crate) fn count(&self, position: usize) -> usize {
        self.limit.min(position + 1)
    }

    /// The tokens of `row` at `position`: checked to ascend, without repetition, to `position` at most.
    ///
    /// # Safety
    /// Nobody writes the line while the slice lives.
    pub(crate) unsafe fn line(&self, arguments: Arguments, row: usize, position: usize) -> Result<&[u32], BackendError> {
        // SAFETY: this function's condition.
        let line = unsafe { self.tokens.items::<u32>(row * self.limit, self.count(position)) };
        let fine = line.is_sorted_by(|a, b| a < b) && line.last().is_some_and(|last| *last as usize <= position);
        arguments.require(fine, || {
            format!("the selection of row {row} must name positions up to its own, {position}, in ascending order")
        })?;
        Ok(line)
    }

    /// The line of `row` at `position`, to be written.
    ///
    /// # Safety
    /// Nobody else accesses the line while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "device memory; exclusive use is the caller's condition")]
    pub(crate) unsafe fn line_mut(&self, row: usize, position: usize) -> &mut [u32] {
        // SAFETY: this function's condition.
        unsafe { self.tokens.items_mut(row * self.limit, self.count(position)) }
    }
}
