//! The tag array, and comparing page tables with it at both ends of a step. Knows not who owns a page.
//! `no_tags.rs` stands in for this file in a build without the feature `tags`.

use std::sync::atomic::Ordering;

use millrace_ops::{BackendError, Buffer, CheckPoint, CheckTags, RowStatus, StepRecord};

use crate::memory::Region;
use crate::ops::step::{Cache, Step};
use crate::task::{Arguments, Task, Worker, product};

/// The tag that each page of a pool carries now.
pub(crate) struct TagArray {
    tags: Region,
    pages: usize,
}

impl TagArray {
    pub(crate) fn new(arguments: Arguments, tags: Buffer, pages: usize) -> Result<Self, BackendError> {
        Ok(Self { tags: arguments.region("cache.tags", tags, product(&[pages, size_of::<u64>()]))?, pages })
    }

    /// Whether there is such a page and it carries that tag now.
    #[inline]
    pub(crate) fn carries(&self, page: u32, tag: u64) -> bool {
        let page = page as usize;
        // SAFETY: only `ApplyTags` writes tags, and it runs in a phase of its own.
        page < self.pages && unsafe { self.tags.items::<u64>(page, 1)[0] } == tag
    }

    /// # Safety
    /// Nobody else reads or writes tags meanwhile.
    pub(crate) unsafe fn set(&self, page: usize, tag: u64) {
        // SAFETY: as the caller says.
        unsafe { self.tags.items_mut::<u64>(page, 1)[0] = tag };
    }
}

/// The check of [`CheckTags`].
///
/// # Errors
/// [`BackendError::Invalid`] where an argument does not fit its buffer.
pub(crate) fn check(arguments: Arguments, op: CheckTags) -> Result<Box<dyn Task>, BackendError> {
    let records = match op.point {
        CheckPoint::Head => None,
        CheckPoint::Tail => Some(arguments.region("step.records", op.step.records.clone(), product(&[op.sequences, 8]))?),
    };
    let step = Step::new(arguments, &op.step, op.sequences)?;
    Ok(Box::new(CheckTagsTask { arguments, cache: Cache::new(arguments, op.cache)?, step, records }))
}

struct CheckTagsTask {
    arguments: Arguments,
    cache: Cache,
    step: Step,
    /// Tail only.
    records: Option<Region>,
}

impl Task for CheckTagsTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let chunk = worker.chunk(self.step.sequences);
        while let Some(range) = worker.take(chunk, self.step.sequences) {
            for sequence in range {
                // A page outside the pool carries no tag, so it differs from any.
                let table = self.step.table(self.arguments, sequence)?;
                let stale = table.iter().any(|entry| !self.cache.tags.carries(entry.page, entry.tag));
                match &self.records {
                    None => self.step.set_verdict(sequence, u32::from(stale)),
                    Some(records) => {
                        if stale {
                            self.step.set_verdict(sequence, 1);
                        }
                        if self.step.flagged(sequence) {
                            let word = records.double_word(sequence);
                            let record = StepRecord(word.load(Ordering::Relaxed)).with_status(RowStatus::StalePage);
                            word.store(record.0, Ordering::Release);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
