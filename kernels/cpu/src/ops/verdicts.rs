//! PublishVerdicts: what page checks found, as records that the host may read. Knows not what was checked.

use std::sync::atomic::Ordering;

use millrace_ops::{BackendError, PublishVerdicts, RowStatus, StepRecord};

use crate::memory::Region;
use crate::task::{Arguments, Task, Worker, product};

pub(crate) struct PublishVerdictsTask {
    verdicts: Region,
    records: Region,
    count: usize,
    step_number: u32,
}

impl PublishVerdictsTask {
    pub(crate) fn new(arguments: Arguments, op: PublishVerdicts) -> Result<Self, BackendError> {
        let PublishVerdicts { verdicts, records, count, step_number } = op;
        let verdicts = arguments.region("verdicts", verdicts, product(&[count, 4]))?;
        let records = arguments.region("records", records, product(&[count, 8]))?;
        arguments.distinct(&verdicts, &records)?;
        Ok(Self { verdicts, records, count, step_number })
    }
}

impl Task for PublishVerdictsTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let chunk = worker.chunk(self.count);
        while let Some(range) = worker.take(chunk, self.count) {
            for i in range {
                let stale = self.verdicts.word(i).load(Ordering::Relaxed) != 0;
                let status = if stale { RowStatus::StalePage } else { RowStatus::Ok };
                self.records.double_word(i).store(StepRecord::new(0, status, self.step_number).0, Ordering::Release);
            }
        }
        Ok(())
    }
}
