//! Sequences that come back from another process's decode pool while this process still has their last stay: the peer has committed it
//! and preempted the sequence, and its word of the commit is on its way. Each waits here until that stay is over.
//!
//! It does not know why a sequence was preempted. One place for each sequence, so it holds as many as the node lets run.

use std::collections::BTreeMap;

use millrace_core::SeqId;

use crate::driver::Driver;
use crate::pool::Scheduler;
use crate::{Event, Job, JobError, Replay};

struct Back {
    job: Job,
    again: Replay,
    submitted_us: u64,
}

#[derive(Default)]
pub(crate) struct Returning(BTreeMap<SeqId, Back>);

impl Returning {
    /// Forgets a sequence without an event. False: it is not here.
    pub(crate) fn remove(&mut self, seq: SeqId) -> bool {
        self.0.remove(&seq).is_some()
    }

    pub(crate) fn fail_all(&mut self, error: &JobError) {
        std::mem::take(&mut self.0).into_values().for_each(|mut back| back.job.events.emit(Event::Failed(error.clone())));
    }
}

impl Driver {
    /// Takes a sequence that was preempted in another process. Its last stay here, if it is not over, is nobody's any more: it ends as
    /// an abort would end it, and is not told of.
    pub(crate) fn resume(&mut self, job: Job, again: Replay, submitted_us: u64) {
        let (seq, lane) = (job.seq, job.lane.0 as usize);
        self.jobs.abort(seq);
        if self.is_staying(lane, seq) {
            self.drop_sequence(lane, seq);
        }
        self.returning.0.insert(seq, Back { job, again, submitted_us });
    }

    /// Begins those whose last stay is over.
    pub(crate) fn admit_returning(&mut self) {
        let over = |(&seq, back): (&SeqId, &Back)| (!self.is_staying(back.job.lane.0 as usize, seq)).then_some(seq);
        let ready: Vec<SeqId> = self.returning.0.iter().filter_map(over).collect();
        for seq in ready {
            if let Some(Back { job, again, submitted_us }) = self.returning.0.remove(&seq) {
                self.admit(job, again, submitted_us);
            }
        }
    }

    fn is_staying(&self, lane: usize, seq: SeqId) -> bool {
        let mut pools = self.lanes.get(lane).into_iter().flat_map(|lane| lane.ends.pools());
        pools.any(|pool| match &self.pools[pool].scheduler {
            Scheduler::Prefill(scheduler) => scheduler.has(seq),
            Scheduler::Decode(scheduler) => scheduler.has(seq),
        })
    }
}
