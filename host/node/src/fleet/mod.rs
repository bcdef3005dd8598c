//! The engine processes of a deployment as the node uses them: sequences go out, events come back, facts are at hand. Each process
//! is supervised by a task of its own; what a sequence goes through is in `jobs`.

mod jobs;
mod member;
mod schedule;
mod starting;
mod supervisor;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::{Clock, LaneId, PoolId, Precision, SeqId, Stage};
use millrace_engine::{EngineSnapshot, Event, Job, JobError, Replay, SubmitError};
use millrace_kv::PrefixScope;
use millrace_transfer::tcp::{Endpoint, Secret};
use tokio::sync::watch;

use crate::control::{Order, Ready, Submission};
use crate::error::NotTaken;

use self::jobs::{Errand, Jobs, Route};
use self::member::{Member, Sent};
use self::schedule::Schedules;
pub(crate) use self::starting::Starting;

/// A lane whose pools are processes.
struct RemoteLane {
    name: String,
    prefill: PoolId,
    decode: PoolId,
    max_waiting: usize,
    max_tokens: usize,
    precision: Option<Precision>,
}

/// See the module.
pub(crate) struct Fleet {
    members: Vec<Member>,
    /// By row of the configuration; `None`: a lane within this process.
    lanes: Vec<Option<RemoteLane>>,
    jobs: Mutex<Jobs>,
    schedules: Schedules,
    clock: Arc<dyn Clock>,
    endpoint: Endpoint,
    secret: Secret,
    epoch: AtomicU64,
    config_file: String,
    stopping: watch::Sender<bool>,
}

/// What a process has to say for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFacts {
    pub pool: String,
    pub stage: Stage,
    pub up: bool,
    pub starts: u64,
    pub pid: Option<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// What a process said of its pool when it came up first.
    pub(crate) fn ready(&self, pool: PoolId) -> Option<Ready> {
        self.member(pool)?.first()
    }

    pub(crate) fn has_lane(&self, lane: LaneId) -> bool {
        self.lanes.get(lane.0 as usize).is_some_and(Option::is_some)
    }

    /// Hands a sequence to the prefill engine of its lane.
    ///
    /// # Errors
    /// Where the lane's queue is full, the sequence can never fit, or its processes are down.
    pub(crate) fn submit(&self, job: Job) -> Result<(), NotTaken> {
        let row = job.lane.0 as usize;
        let lane = self.lanes.get(row).and_then(Option::as_ref).ok_or(SubmitError::UnknownLane(job.lane))?;
        if *self.stopping.borrow() {
            return Err(SubmitError::ShuttingDown.into());
        }
        if job.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt.into());
        }
        let needed = job.prompt.len().saturating_add(1);
        if needed > lane.max_tokens {
            return Err(SubmitError::TooLong { lane: lane.name.clone(), needed, limit: lane.max_tokens }.into());
        }
        let down = || NotTaken::Down { lane: lane.name.clone() };
        let member = self.member(lane.prefill).filter(|member| member.takes_orders()).ok_or_else(down)?;
        let full = |waiting| SubmitError::QueueFull { lane: lane.name.clone(), waiting, retry_after_ms: 1_000 };
        let Job { seq, request, tenant, priority, deadline_us, prompt, scope, sampling, mut events, .. } = job;
        let now_us = self.clock.now_us();
        if deadline_us.is_some_and(|at| at <= now_us) {
            events.emit(Event::Failed(JobError::DeadlinePassed));
            return Ok(());
        }
        let within_us = deadline_us.map(|at| at - now_us);
        let replay = Replay { tokens: Vec::new(), preemptions: 0 };
        let name = lane.name.clone();
        let submission =
            Submission { seq, request, lane: name, tenant, priority, within_us, prompt, scope, sampling, replay, round: 0 };
        let mut jobs = lock(&self.jobs);
        let waiting = jobs.waiting(row);
        let room = member.room().filter(|_| waiting < lane.max_waiting).ok_or_else(|| full(waiting))?;
        jobs.insert(Route { lane: row, prefill: lane.prefill, decode: lane.decode }, submission.clone(), deadline_us, events);
        // Under the lock, so that nothing is heard of it before it is known.
        room.send(Order::Submit(Box::new(submission)));
        Ok(())
    }

    /// Tokens at the beginning of a prompt that the lane's prefill engine said that it keeps within this scope.
    pub(crate) fn prefix_hit_tokens(&self, lane: LaneId, scope: PrefixScope, prompt: &[u32]) -> Option<u32> {
        let lane = self.lanes.get(lane.0 as usize)?.as_ref()?;
        self.member(lane.prefill)?.prefix_hit_tokens(scope, prompt)
    }

    pub(crate) fn abort(&self, seq: SeqId) {
        self.ask(|jobs| jobs.abort(seq));
    }

    /// Ends all processes.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
        lock(&self.jobs).fail_all(&JobError::ShuttingDown);
    }

    /// Takes suspect pages of a pool back into use; the count comes with the log of its process. False: it is down, or no such.
    pub(crate) fn readmit(&self, pool: &str) -> bool {
        let member = self.members.iter().find(|member| member.name == pool);
        member.is_some_and(|member| member.order(Order::Readmit) == Sent::Taken)
    }

    pub(crate) fn processes(&self) -> Vec<ProcessFacts> {
        self.members.iter().map(Member::process).collect()
    }

    /// What a process said of itself last, and whether it is up. Of one that is down: how it was last.
    pub(crate) fn facts(&self, pool: PoolId) -> Option<(EngineSnapshot, bool)> {
        self.member(pool)?.facts()
    }

    pub(crate) fn ends(&self, lane: usize) -> Option<(PoolId, PoolId)> {
        self.lanes.get(lane)?.as_ref().map(|lane| (lane.prefill, lane.decode))
    }

    pub(crate) fn lane_name(&self, lane: usize) -> Option<String> {
        self.lanes.get(lane)?.as_ref().map(|lane| lane.name.clone())
    }

    pub(crate) fn precision(&self, lane: usize) -> Option<Precision> {
        self.lanes.get(lane)?.as_ref()?.precision
    }

    fn member(&self, pool: PoolId) -> Option<&Member> {
        self.members.iter().find(|member| member.pool == pool)
    }

    /// Sends what is to be sent. To a process that is down, a sequence is sent when it is back; an abort has nothing to end there.
    /// Asks the table, and sends what comes out before anybody else may ask: errands of one sequence go in their order. Nothing here
    /// waits.
    fn ask(&self, question: impl FnOnce(&mut Jobs) -> Vec<Errand>) {
        let mut jobs = lock(&self.jobs);
        jobs.it_is(self.clock.now_us());
        for errand in question(&mut jobs) {
            self.member(errand.pool()).into_iter().for_each(|member| member.run(errand.clone()));
        }
    }
}
