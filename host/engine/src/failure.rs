//! What the driver does when the queue of a pool fails: the lanes that use the pool go out of service, their sequences end with the
//! error and leave every pool, and whoever comes later hears it at once. Other lanes go on. Does not know what broke; the queue says.
//!
//! A failed queue runs nothing any more ([`millrace_ops::Queue`]), so what it had under way has passed. What a healthy queue has
//! under way goes on naming pages: those of a running step rest in quarantine, and a hand-off ends once its copy has passed.

use millrace_ops::{BackendError, Ticket};

use crate::JobError;
use crate::driver::Driver;
use crate::pool::{Pool, Scheduler};

impl Driver {
    /// A queue has reported an error: its pool's. Heard once, however often the queue repeats it.
    pub(crate) fn pool_failed(&mut self, index: usize, why: &BackendError) {
        let pool = &mut self.pools[index];
        if !pool.is_healthy() {
            return;
        }
        tracing::error!(
            pool = pool.name,
            %why,
            "the engine of this pool failed; its lanes are out of service until the server is started again"
        );
        let error = JobError::Device(format!("pool `{}`: {why}", pool.name));
        pool.failure = Some(error.clone());
        let hit: Vec<bool> = self.lanes.iter().map(|lane| lane.ends.pools().any(|pool| pool == index)).collect();
        let ended = self.jobs.fail_all(&error, |job| hit.get(job.lane.0 as usize).copied().unwrap_or(false));
        self.counters.failed += ended.len() as u64;
        for (seq, lane) in ended {
            self.drop_sequence(lane.0 as usize, seq);
        }
        self.pools[index].give_up();
    }

    /// Why a lane takes no sequences: one of its pools has failed.
    pub(crate) fn lane_failure(&self, lane: usize) -> Option<JobError> {
        self.lanes.get(lane)?.ends.pools().find_map(|pool| self.pools.get(pool)?.failure.clone())
    }
}

impl Pool {
    /// Whether nothing of a submission runs any more.
    ///
    /// # Errors
    /// The queue's, until the pool is known to have failed.
    pub(crate) fn has_passed(&mut self, ticket: Ticket) -> Result<bool, BackendError> {
        if !self.is_healthy() {
            return Ok(true);
        }
        let queue = self.runner.queue();
        if queue.completed() < ticket {
            return Ok(false);
        }
        queue.wait(ticket).map(|()| true)
    }

    /// Ends the step that the failed queue had, without outcomes, so that the pages of its sequences leave quarantine. Those sequences
    /// are gone, so nothing is heard of them.
    fn give_up(&mut self) {
        self.draft = None;
        self.runner.give_up();
        match &mut self.scheduler {
            Scheduler::Prefill(scheduler) => {
                scheduler.in_flight().map(|step| scheduler.commit(step, &[]));
            }
            Scheduler::Decode(scheduler) => {
                scheduler.in_flight().map(|step| scheduler.commit(step, &[]));
            }
        }
    }
}
