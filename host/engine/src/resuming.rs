//! Sequences that come back from decode in another process. One may be here before the peer was heard to have it: the peer's word may
//! have been lost with a connection. Knows no protocol.

use crate::driver::Driver;
use crate::handoff::Link;
use crate::{Event, Job, JobError, Replay};

/// One that waits for its own pages to come free.
pub(crate) struct Returning {
    pub(crate) job: Job,
    again: Replay,
    submitted_us: u64,
}

impl Driver {
    /// Takes a sequence that was preempted elsewhere, at once or when it is over with its hand-off.
    pub(crate) fn resume(&mut self, job: Job, again: Replay, submitted_us: u64) {
        let is_leaving = match self.lanes.get_mut(job.lane.0 as usize).map(|lane| &mut lane.link) {
            Some(Link::Sending(sending)) => sending.came_back(job.seq),
            _ => false,
        };
        if is_leaving {
            self.returning.push(Returning { job, again, submitted_us });
        } else {
            self.admit(job, again, submitted_us);
        }
    }

    /// Those whose hand-off is over meanwhile.
    pub(crate) fn resume_returning(&mut self) {
        for Returning { job, again, submitted_us } in std::mem::take(&mut self.returning) {
            let is_leaving = match self.lanes.get(job.lane.0 as usize).map(|lane| &lane.link) {
                Some(Link::Sending(sending)) => sending.has(job.seq),
                _ => false,
            };
            if is_leaving {
                self.returning.push(Returning { job, again, submitted_us });
            } else {
                self.admit(job, again, submitted_us);
            }
        }
    }

    /// Nobody waits for their end but their clients.
    pub(crate) fn end_returning(&mut self) {
        for mut returning in std::mem::take(&mut self.returning) {
            returning.job.events.emit(Event::Failed(JobError::ShuttingDown));
        }
    }
}
