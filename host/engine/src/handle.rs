//! The engine as its callers see it: submit, abort, look, drain. Holds no state of its own beyond the inbox.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use millrace_core::{LaneId, PoolId, SeqId};
use millrace_kv::{PrefixDirectory, PrefixScope};
use millrace_transfer::Incarnation;

use crate::snapshot::EngineSnapshot;
use crate::{Job, ReadmitError, Replay, SubmitError};

/// How long a caller waits for the driver's answer. Its loop turns many times a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the driver is asked to do.
pub(crate) enum Command {
    Submit(Job, u64),
    /// One that was preempted in another process.
    Resume(Job, Replay, u64),
    Abort(SeqId),
    PeerDead(LaneId, Incarnation),
    /// Answers with how many pages were taken back into use.
    Readmit {
        pool: PoolId,
        reply: SyncSender<u32>,
    },
    Hold(PoolId, Hold),
    #[cfg(feature = "fault-injection")]
    StealPage {
        victim: SeqId,
        reply: SyncSender<Result<(), String>>,
    },
    #[cfg(feature = "fault-injection")]
    CheckInvariants {
        reply: SyncSender<Result<(), String>>,
    },
}

/// Whether a pool may begin steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It begins none.
    Held,
    Free,
}

/// Commands that wait for the driver, and the bell that wakes it. The driver takes all of them with each turn, so they are bounded by
/// what can come between two: jobs by the lanes' `max_waiting`; jobs that were preempted elsewhere, and aborts, by the jobs that exist;
/// deaths of peers by the supervisor's starts; readmissions, and what tests ask, by their callers, who wait for the answer; holds by
/// whoever measures.
#[derive(Default)]
pub(crate) struct Inbox {
    queue: Mutex<Waiting>,
    bell: Condvar,
}

#[derive(Default)]
struct Waiting {
    commands: VecDeque<Command>,
    rung: bool,
    /// Jobs, per lane, that no published count holds yet: in `commands`, or taken by a pass that has not ended.
    jobs: Vec<usize>,
    /// Of these, per lane, the ones that the running pass took.
    taken: Vec<usize>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ring(&self) {
        self.lock().rung = true;
        self.bell.notify_one();
    }

    /// Waits until the bell rings or `timeout` passes, then takes all commands.
    pub(crate) fn take(&self, timeout: Duration) -> VecDeque<Command> {
        let waiting = self.lock();
        let (mut waiting, _) = self
            .bell
            .wait_timeout_while(waiting, timeout, |w| !w.rung && w.commands.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        waiting.rung = false;
        waiting.taken = waiting.jobs.clone();
        std::mem::take(&mut waiting.commands)
    }

    /// Ends a pass: the jobs that it took are in the counts that `gates` get here. Under the inbox's lock, so that a job is
    /// counted once at any time.
    pub(crate) fn publish_waiting(&self, gates: &[LaneGate], counts: impl Iterator<Item = usize>) {
        let mut waiting = self.lock();
        for (gate, count) in gates.iter().zip(counts) {
            gate.waiting.store(count, Ordering::Release);
        }
        let taken = std::mem::take(&mut waiting.taken);
        for (jobs, taken) in waiting.jobs.iter_mut().zip(taken) {
            *jobs = jobs.saturating_sub(taken);
        }
    }
}

/// Limits of a lane that a submission is checked against before it reaches the driver.
pub(crate) struct LaneGate {
    pub(crate) name: String,
    pub(crate) max_waiting: usize,
    /// Tokens that its smaller pool can hold for one sequence.
    pub(crate) max_tokens: usize,
    /// Sequences that wait inside the scheduler, as of the driver's last pass.
    pub(crate) waiting: AtomicUsize,
}

pub(crate) struct Shared {
    pub(crate) inbox: Inbox,
    pub(crate) gates: Vec<LaneGate>,
    pub(crate) draining: AtomicBool,
    pub(crate) stopping: AtomicBool,
    /// The driver's thread has come to its end.
    pub(crate) ended: AtomicBool,
    pub(crate) snapshot: Mutex<Arc<EngineSnapshot>>,
    /// By lane, once the pools are there: what its prefill pool keeps of prompts.
    pub(crate) prefixes: OnceLock<Vec<Option<PrefixDirectory>>>,
    pub(crate) clock: Arc<dyn millrace_core::Clock>,
}

/// A running engine. Cheap to clone; the driver ends when [`EngineHandle::stop`] is called or the last handle is gone.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) shared: Arc<Shared>,
}

impl EngineHandle {
    /// Queues a job.
    ///
    /// # Errors
    /// Where the lane's queue is full, the sequence can never fit, or the engine is going down.
    pub fn submit(&self, job: Job) -> Result<(), SubmitError> {
        let gate = self.shared.gates.get(job.lane.0 as usize).ok_or(SubmitError::UnknownLane(job.lane))?;
        if job.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if self.shared.draining.load(Ordering::Acquire) {
            return Err(SubmitError::ShuttingDown);
        }
        let needed = job.prompt.len().saturating_add(1);
        if needed > gate.max_tokens {
            return Err(SubmitError::TooLong { lane: gate.name.clone(), needed, limit: gate.max_tokens });
        }
        let lane = job.lane.0 as usize;
        let mut waiting = self.shared.inbox.lock();
        waiting.jobs.resize(self.shared.gates.len(), 0);
        let ahead = waiting.jobs[lane] + gate.waiting.load(Ordering::Acquire);
        if ahead >= gate.max_waiting {
            drop(waiting);
            return Err(SubmitError::QueueFull {
                lane: gate.name.clone(),
                waiting: ahead,
                retry_after_ms: self.retry_after_ms(lane, ahead),
            });
        }
        waiting.jobs[lane] += 1;
        waiting.commands.push_back(Command::Submit(job, self.shared.clock.now_us()));
        drop(waiting);
        self.shared.inbox.bell.notify_one();
        Ok(())
    }

    /// Queues a job that was preempted in another process, ahead of those that wait: it was admitted before.
    ///
    /// # Errors
    /// Where there is no such lane or the engine is going down.
    pub fn resume(&self, job: Job, replay: Replay) -> Result<(), SubmitError> {
        if self.shared.gates.get(job.lane.0 as usize).is_none() {
            return Err(SubmitError::UnknownLane(job.lane));
        }
        if self.shared.stopping.load(Ordering::Acquire) {
            return Err(SubmitError::ShuttingDown);
        }
        self.shared.inbox.lock().commands.push_back(Command::Resume(job, replay, self.shared.clock.now_us()));
        self.shared.inbox.bell.notify_one();
        Ok(())
    }

    /// That life of the process at the other end of a lane is over, as whoever supervises it saw: nothing that it had with this
    /// one will come from it any more.
    pub fn peer_dead(&self, lane: LaneId, peer: Incarnation) {
        self.shared.inbox.lock().commands.push_back(Command::PeerDead(lane, peer));
        self.shared.inbox.bell.notify_one();
    }

    /// Ends a sequence: it is in no later plan, and its pages are free once the running step has passed.
    pub fn abort(&self, seq: SeqId) {
        self.shared.inbox.lock().commands.push_back(Command::Abort(seq));
        self.shared.inbox.bell.notify_one();
    }

    /// From the driver's next pass on, a held pool plans no step; one that is planned already still runs. Sequences may be handed to
    /// it all the while. For whoever wants them all in place before the first step, as a measurement does.
    pub fn hold(&self, pool: PoolId, hold: Hold) {
        self.shared.inbox.lock().commands.push_back(Command::Hold(pool, hold));
        self.shared.inbox.bell.notify_one();
    }

    /// Now on the engine's clock.
    pub fn now_us(&self) -> u64 {
        self.shared.clock.now_us()
    }

    /// Whether the driver's thread has come to its end: stopped, or unwound by a panic. Nothing is done any more then.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    pub fn snapshot(&self) -> Arc<EngineSnapshot> {
        self.shared.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tokens at the beginning of a prompt that the lane's prefill pool has within this scope, as of now; none where it keeps no
    /// prompts or is elsewhere. Asks no other thread, and changes nothing: neither pins nor order of eviction.
    pub fn prefix_hit_tokens(&self, lane: LaneId, scope: PrefixScope, prompt: &[u32]) -> Option<u32> {
        Some(self.prefixes(lane)?.hit_tokens(scope, prompt))
    }

    /// What the prefill pool of a lane keeps of prompts; none where it keeps none or is elsewhere. Lanes of one pool have the same.
    pub fn prefixes(&self, lane: LaneId) -> Option<&PrefixDirectory> {
        self.shared.prefixes.get()?.get(lane.0 as usize)?.as_ref()
    }

    /// Takes no new jobs from now on; those that are in go on to their end.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }

    /// Ends the driver: sequences that still run fail with [`crate::JobError::ShuttingDown`].
    pub fn stop(&self) {
        self.drain();
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.inbox.ring();
    }

    /// Takes the pages of a pool back into use that a tag mismatch had put under suspicion; tells how many. Waits for the driver:
    /// not for a runtime's threads.
    ///
    /// # Errors
    /// Where there is no such pool or the driver does not answer.
    pub fn readmit(&self, pool: PoolId) -> Result<u32, ReadmitError> {
        if self.snapshot().pools.get(pool.0 as usize).is_none() {
            return Err(ReadmitError::UnknownPool(pool));
        }
        let (reply, answer) = sync_channel(1);
        self.shared.inbox.lock().commands.push_back(Command::Readmit { pool, reply });
        self.shared.inbox.bell.notify_one();
        answer.recv_timeout(PATIENCE).map_err(|_| ReadmitError::NoAnswer { seconds: PATIENCE.as_secs() })
    }

    /// Takes a page away from a running sequence behind its owner's back, as a bug in the pool would.
    ///
    /// # Errors
    /// Where the sequence holds no page.
    #[cfg(feature = "fault-injection")]
    pub fn steal_page(&self, victim: SeqId) -> Result<(), String> {
        self.ask(|reply| Command::StealPage { victim, reply })
    }

    /// Whether the pages and sequences of every pool agree.
    ///
    /// # Errors
    /// The first thing that does not hold, in words.
    #[cfg(feature = "fault-injection")]
    pub fn check_invariants(&self) -> Result<(), String> {
        self.ask(|reply| Command::CheckInvariants { reply })
    }

    #[cfg(feature = "fault-injection")]
    fn ask(&self, command: impl FnOnce(SyncSender<Result<(), String>>) -> Command) -> Result<(), String> {
        let (reply, answer) = sync_channel(1);
        self.shared.inbox.lock().commands.push_back(command(reply));
        self.shared.inbox.bell.notify_one();
        answer.recv_timeout(PATIENCE).map_err(|_| format!("the driver did not answer within {} s", PATIENCE.as_secs()))?
    }

    /// Time until about half the queue ahead is served, from the lane's recent time to first token.
    fn retry_after_ms(&self, lane: usize, ahead: usize) -> u64 {
        let ttft_us = self.snapshot().lanes.get(lane).map_or(0, |l| u64::from(l.ttft_us));
        (ttft_us * (ahead as u64 / 2).max(1) / 1000 / (ahead as u64).max(1)).clamp(1_000, 60_000)
    }
}
