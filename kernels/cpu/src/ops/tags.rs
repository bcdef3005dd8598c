//! Tags: applying changes, and comparing page tables with the tag array at both ends of a step.
//! Knows not who owns a page.

use std::sync::atomic::Ordering;

use millrace_ops::{ApplyTags, BackendError, CheckPoint, CheckTags, RowStatus, StepRecord, TagDelta};

use crate::memory::Region;
use crate::ops::step::{Cache, Step};
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
                unsafe { self.cache.tags.items_mut::<u64>(page, 1)[0] = delta.tag };
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

pub(crate) struct CheckTagsTask {
    arguments: Arguments,
    cache: Cache,
    step: Step,
    /// Tail only.
    records: Option<Region>,
}

impl CheckTagsTask {
    pub(crate) fn new(arguments: Arguments, op: CheckTags) -> Result<Self, BackendError> {
        let records = match op.point {
            CheckPoint::Head => None,
            CheckPoint::Tail => Some(arguments.region("step.records", op.step.records.clone(), product(&[op.sequences, 8]))?),
        };
        let step = Step::new(arguments, &op.step, op.sequences)?;
        Ok(Self { arguments, cache: Cache::new(arguments, op.cache)?, step, records })
    }
}

impl Task for CheckTagsTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let chunk = worker.chunk(self.step.sequences);
        while let Some(range) = worker.take(chunk, self.step.sequences) {
            for sequence in range {
                // A page outside the pool carries no tag, so it differs from any.
                let table = self.step.table(self.arguments, sequence)?;
                let stale = table.iter().any(|entry| self.cache.tag(entry.page) != Some(entry.tag));
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
