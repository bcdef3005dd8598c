//! ApplyTags: pages change hands. Their tags change in stream order, and where asked their contents become zeros.
//! Knows not who owns a page.

use millrace_ops::{ApplyTags, BackendError, TagDelta};

use crate::memory::Region;
use crate::ops::step::Cache;
use crate::task::{Arguments, Task, Worker, product};

/// Two phases: the tags by one worker in order (a page may change twice), then the zeroing by all.
pub(crate) struct ApplyTagsTask {
    arguments: Arguments,
    cache: Cache,
    deltas: Region,
    count: usize,
}

impl ApplyTagsTask {
    pub(crate) fn new(arguments: Arguments, op: ApplyTags) -> Result<Self, BackendError> {
        let cache = Cache::new(arguments, op.cache)?;
        let deltas = arguments.region("deltas", op.deltas, product(&[op.count, size_of::<TagDelta>()]))?;
        Ok(Self { arguments, cache, deltas, count: op.count })
    }

    fn deltas(&self) -> &[TagDelta] {
        // SAFETY: only uploads write deltas, in phases of their own.
        unsafe { self.deltas.items(0, self.count) }
    }

    /// Whether an earlier delta zeroes the same page: each page is zeroed once, so no two workers write it.
    fn zeroed_before(&self, at: usize) -> bool {
        let deltas = self.deltas();
        deltas[..at].iter().any(|delta| delta.page == deltas[at].page && delta.zero != 0)
    }
}

impl Task for ApplyTagsTask {
    fn phases(&self) -> usize {
        2
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let deltas = self.deltas();
        if phase == 0 {
            if worker.take(1, 1).is_none() {
                return Ok(());
            }
            for delta in deltas {
                let page = delta.page as usize;
                self.arguments.require(page < self.cache.page_count, || {
                    format!("a delta names page {page} of a pool of {}", self.cache.page_count)
                })?;
                // SAFETY: one worker took the only item of this phase, and tags are touched by this phase alone.
                unsafe { self.cache.tags.set(page, delta.tag) };
            }
            return Ok(());
        }
        while let Some(range) = worker.take(1, deltas.len()) {
            for at in range {
                if deltas[at].zero != 0 && !self.zeroed_before(at) {
                    let offset = deltas[at].page as usize * self.cache.page_bytes;
                    // SAFETY: this page is zeroed by the first delta that asks for it, which one worker took.
                    unsafe { self.cache.pages.items_at_mut::<u8>(offset, self.cache.page_bytes) }.fill(0);
                }
            }
        }
        Ok(())
    }
}
