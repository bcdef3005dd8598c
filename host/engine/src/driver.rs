//! The loop that owns everything an engine has: it hears commands, commits finished steps, moves hand-offs, plans and launches
//! the next steps, and publishes. One thread; all decisions are the schedulers' and the policy's, all numbers the device's.
//!
//! A step's plan is made while the step before it runs, so a policy's time is hidden behind the device.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_core::{FinishReason, LaneId, Precision, SeqId, Stage, TenantId};
use millrace_scheduler::{DecodeEvent, Entry, PrefillEvent, TenantLedger};

use crate::devices::Devices;
use crate::handle::{Command, Shared};
use crate::handoff::Link;
use crate::jobs::JobTable;
use crate::pool::{Pool, Scheduler, smooth};
use crate::returning::Returning;
use crate::runner::Finished;
use crate::spec::SinkOf;
use crate::{Counters, EngineSnapshot, Job, JobError, LaneFacts, LaneSpeed, Replay, TenantFacts, TokenHistogram};

/// How long the loop sleeps when nothing rings; deadlines are looked at this often.
const IDLE_WAIT: Duration = Duration::from_millis(20);

pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) precision: Precision,
    pub(crate) ends: Ends,
    pub(crate) link: Link,
    pub(crate) ttft_us: u32,
    pub(crate) itl_us: u32,
}

/// The pools of a lane that are in this process: rows of the driver's pools.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) prefill: Option<usize>,
    pub(crate) decode: Option<usize>,
}

impl Ends {
    pub(crate) fn pools(self) -> impl Iterator<Item = usize> {
        [self.prefill, self.decode].into_iter().flatten()
    }
}

pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) jobs: JobTable,
    pub(crate) returning: Returning,
    pub(crate) ledger: TenantLedger,
    pub(crate) schedule: Arc<millrace_policy::ScheduleSlot>,
    /// Number of the schedule policy that was asked last.
    pub(crate) schedule_generation: u64,
    pub(crate) counters: Counters,
    pub(crate) step_tokens: TokenHistogram,
    pub(crate) devices: Devices,
    /// Tenants of the configuration.
    pub(crate) tenants: usize,
    /// Where the events of sequences go that come from other processes.
    pub(crate) sinks: Option<Box<SinkOf>>,
}

impl Driver {
    pub(crate) fn run(mut self) {
        while !self.shared.stopping.load(Ordering::Acquire) {
            self.turn(IDLE_WAIT);
        }
        self.end();
    }

    /// One turn of the loop: hears what was asked for, waiting at most so long for something to happen, and does what it can do now.
    pub(crate) fn turn(&mut self, wait: Duration) {
        for command in self.shared.inbox.take(wait) {
            self.obey(command);
        }
        self.pass();
        self.publish_snapshot();
    }

    /// Whoever is still owed an end hears that the engine goes down.
    pub(crate) fn end(&mut self) {
        self.jobs.fail_all(&JobError::ShuttingDown, |_| true);
        self.returning.fail_all(&JobError::ShuttingDown);
    }

    /// One look at everything that may have moved on.
    fn pass(&mut self) {
        let now_us = self.shared.clock.now_us();
        self.commit_finished(now_us);
        for lane in 0..self.lanes.len() {
            self.move_hand_offs(lane);
        }
        self.admit_returning();
        self.count_tenants(now_us);
        for index in 0..self.pools.len() {
            self.expire(index, now_us);
            self.launch(index);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(job, submitted_us) => {
                self.admit(job, Replay { tokens: Vec::new(), preemptions: 0 }, submitted_us);
            }
            Command::Resume(job, replay, submitted_us) => self.resume(job, replay, submitted_us),
            Command::Abort(seq) => self.abort(seq),
            Command::PeerDead(lane, peer) => {
                self.lanes.get_mut(lane.0 as usize).into_iter().for_each(|lane| lane.link.peer_dead(peer));
            }
            Command::Readmit { pool, reply } => {
                let readmitted = self.pools.get_mut(pool.0 as usize).map_or(0, Pool::readmit_all);
                // The asker may have given up waiting; then nobody needs the answer.
                let _ = reply.send(readmitted);
            }
            Command::Hold(pool, hold) => {
                if let Some(pool) = self.pools.get_mut(pool.0 as usize) {
                    pool.hold = hold;
                }
            }
            #[cfg(feature = "fault-injection")]
            Command::StealPage { victim, reply } => {
                let stolen = self.steal_page(victim);
                let _ = reply.send(stolen);
            }
            #[cfg(feature = "fault-injection")]
            Command::CheckInvariants { reply } => {
                let _ = reply.send(self.check_invariants());
            }
        }
    }

    pub(crate) fn admit(&mut self, mut job: Job, again: Replay, now_us: u64) {
        if let Some(error) = self.lane_failure(job.lane.0 as usize) {
            self.counters.failed += 1;
            return job.events.emit(crate::Event::Failed(error));
        }
        let Some(prefill) = self.lanes.get(job.lane.0 as usize).and_then(|lane| lane.ends.prefill) else { return };
        let entry = Entry {
            seq: job.seq,
            request: job.request,
            tenant: job.tenant,
            lane: job.lane,
            priority: job.priority,
            arrival_us: now_us,
            deadline_us: job.deadline_us,
            prompt: job.prompt.clone(),
            max_output: job.sampling.max_tokens,
            stop_tokens: job.sampling.stop_tokens.as_slice().into(),
            replay: again.tokens,
            preemptions: again.preemptions,
            scope: job.scope,
        };
        let (seq, ran_before) = (job.seq, again.preemptions > 0);
        let Scheduler::Prefill(scheduler) = &mut self.pools[prefill].scheduler else { return };
        match scheduler.submit(entry) {
            Ok(()) => {
                self.pools[prefill].draft_is_old = true;
                self.jobs.insert(job, now_us);
                // It takes no place of those that wait to run at all, which the node counts too.
                if ran_before {
                    self.jobs.started(seq, now_us);
                }
            }
            // The gate counted a moment ago; whoever lost the race hears it as an event.
            Err(error) => job.events.emit(crate::Event::Failed(JobError::Device(error.to_string()))),
        }
    }

    fn abort(&mut self, seq: SeqId) {
        if self.returning.remove(seq) {
            self.counters.aborted += 1;
            return;
        }
        let Some(lane) = self.jobs.abort(seq) else { return };
        self.counters.aborted += 1;
        self.drop_sequence(lane.0 as usize, seq);
    }

    /// Takes a sequence out of wherever it is. One in hand-off leaves both sides once its copies have passed.
    pub(crate) fn drop_sequence(&mut self, lane: usize, seq: SeqId) {
        if self.lanes[lane].link.cancel(seq) {
            return;
        }
        let _ = self.lanes[lane].ends.pools().any(|pool| self.pools[pool].abort(seq));
    }

    /// In the order in which they ended, so that the time that one waited for another is not counted as its own.
    fn commit_finished(&mut self, now_us: u64) {
        let pools = self.pools.iter().enumerate();
        let mut ended: Vec<(u64, usize)> = pools.filter_map(|(index, pool)| Some((pool.ended_us(now_us)?, index))).collect();
        ended.sort_unstable();
        for (ended_us, index) in ended {
            self.commit(index, ended_us, now_us);
        }
    }

    fn commit(&mut self, index: usize, ended_us: u64, now_us: u64) {
        let began_commit_us = self.shared.clock.now_us();
        let pool = &mut self.pools[index];
        let Finished { step, launched_us, tokens, outcomes } = match pool.runner.collect() {
            Ok(finished) => finished,
            Err(error) => return self.pool_failed(index, &error),
        };
        let began_us = self.devices.begin_of(pool.device, launched_us);
        self.devices.end(pool.device, ended_us);
        self.step_tokens.record(tokens);
        pool.phases.device_us += ended_us.saturating_sub(launched_us);
        pool.phases.notice_us += began_commit_us.saturating_sub(ended_us);
        pool.observe_step(tokens, ended_us.saturating_sub(launched_us), ended_us.saturating_sub(began_us));
        match &mut pool.scheduler {
            Scheduler::Prefill(scheduler) => {
                let events = scheduler.commit(step, &outcomes);
                events.into_iter().for_each(|event| self.hear_prefill(index, event, now_us));
            }
            Scheduler::Decode(scheduler) => {
                let events = scheduler.commit(step, &outcomes);
                events.into_iter().for_each(|event| self.hear_decode(event, now_us));
            }
        }
        self.pools[index].phases.commit_us += self.shared.clock.now_us().saturating_sub(began_commit_us);
    }

    pub(crate) fn hear_prefill(&mut self, pool: usize, event: PrefillEvent, now_us: u64) {
        match event {
            PrefillEvent::Prefilled { entry, first_token, finished, pages, tokens, cached_tokens } => {
                let fresh = entry.replay.is_empty();
                let seq = entry.seq;
                if fresh {
                    self.jobs.prefilled(seq, cached_tokens, now_us);
                    self.counters.prompt_tokens += entry.prompt.len() as u64;
                    if finished != Some(FinishReason::Stop) {
                        self.token(seq, first_token, now_us);
                    }
                }
                match finished {
                    Some(reason) => {
                        self.release_prefilled(pool, seq);
                        self.finished(seq, reason);
                    }
                    None => self.offer(entry, first_token, pages, tokens, cached_tokens),
                }
            }
            PrefillEvent::Stale { seq } => self.stale(seq),
            PrefillEvent::NotFinite { seq } => self.not_finite(seq, Stage::Prefill),
            PrefillEvent::Expired { seq } => self.failed(seq, JobError::DeadlinePassed),
            PrefillEvent::NoRoom { seq } => {
                self.failed(seq, JobError::HandOff("the page pool lost too many pages to suspicion".into()))
            }
        }
    }

    pub(crate) fn hear_decode(&mut self, event: DecodeEvent, now_us: u64) {
        match event {
            DecodeEvent::Token { seq, token } => self.token(seq, token, now_us),
            DecodeEvent::Finished { seq, reason } => self.finished(seq, reason),
            DecodeEvent::Stale { seq } => self.stale(seq),
            DecodeEvent::NotFinite { seq } => self.not_finite(seq, Stage::Decode),
            DecodeEvent::Preempted(entry) => self.preempted(entry),
        }
    }

    fn token(&mut self, seq: SeqId, token: u32, now_us: u64) {
        let Some((job, before)) = self.jobs.token(seq, token, now_us) else { return };
        let lane = &mut self.lanes[job.lane.0 as usize];
        match before {
            Some(before) => lane.itl_us = smooth(lane.itl_us, now_us.saturating_sub(before)),
            None => lane.ttft_us = smooth(lane.ttft_us, now_us.saturating_sub(job.submitted_us)),
        }
        self.counters.output_tokens += 1;
    }

    pub(crate) fn finished(&mut self, seq: SeqId, reason: FinishReason) {
        if self.jobs.finish(seq, reason) {
            self.counters.finished += 1;
        }
    }

    pub(crate) fn failed(&mut self, seq: SeqId, error: JobError) {
        if self.jobs.fail(seq, error) {
            self.counters.failed += 1;
        }
    }

    pub(crate) fn stale(&mut self, seq: SeqId) {
        self.counters.page_mismatches += 1;
        tracing::error!(
            target: "millrace::audit",
            seq = seq.0,
            "a KV page of this sequence no longer carried its tag; the sequence was stopped, the page quarantined, nothing of the step was published"
        );
        #[cfg(feature = "fault-injection")]
        self.return_stolen();
        self.failed(seq, JobError::PageMismatch);
    }

    fn not_finite(&mut self, seq: SeqId, stage: Stage) {
        self.counters.not_finite += 1;
        let lane = self.jobs.lane(seq).and_then(|lane| self.lanes.get(lane.0 as usize)).map(|lane| lane.name.as_str());
        tracing::error!(
            seq = seq.0,
            %stage,
            lane = lane.unwrap_or_default(),
            "the model's output for this sequence is not finite, so it was stopped; if others of the lane end so too, check the \
             weights of its pool for this stage"
        );
        self.failed(seq, JobError::NotFinite);
    }

    fn preempted(&mut self, entry: Entry) {
        self.counters.preemptions += 1;
        let seq = entry.seq;
        let Some(prefill) = self.lanes[entry.lane.0 as usize].ends.prefill else {
            return self.jobs.preempted(seq, Replay { tokens: entry.replay, preemptions: entry.preemptions });
        };
        let Scheduler::Prefill(scheduler) = &mut self.pools[prefill].scheduler else { return };
        match scheduler.submit(entry) {
            Ok(()) => self.pools[prefill].draft_is_old = true,
            Err(error) => self.failed(seq, JobError::Device(error.to_string())),
        }
    }

    fn count_tenants(&mut self, now_us: u64) {
        self.ledger.advance(now_us);
        self.ledger.begin_counts();
        self.pools.iter().for_each(|pool| pool.count_into(&mut self.ledger));
    }

    fn expire(&mut self, index: usize, now_us: u64) {
        if let Scheduler::Prefill(scheduler) = &mut self.pools[index].scheduler {
            for event in scheduler.expire(now_us) {
                self.hear_prefill(index, event, now_us);
            }
        }
    }

    pub(crate) fn publish_snapshot(&mut self) {
        let snapshot = Arc::new(self.snapshot());
        let counts = snapshot.lanes.iter().map(|lane| lane.waiting as usize);
        self.shared.inbox.publish_waiting(&self.shared.gates, counts);
        *self.shared.snapshot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = snapshot;
    }

    fn snapshot(&self) -> EngineSnapshot {
        let census = self.jobs.census(self.lanes.len(), self.tenants);
        let mut lanes: Vec<LaneFacts> = (0..self.lanes.len()).map(|index| self.lane_facts(index)).collect();
        for (facts, load) in lanes.iter_mut().zip(&census.lanes) {
            (facts.waiting, facts.running) = (load.waiting, load.running);
        }
        let tenants = census.tenants.iter().enumerate().map(|(index, load)| TenantFacts {
            waiting: load.waiting,
            running: load.running,
            tokens_served: self.ledger.served(TenantId(index as u32)),
            cached_pages: self.pools.iter().map(|pool| pool.cached_pages_of(index)).fold(0, u32::saturating_add),
            page_quota: self.pools.iter().filter_map(|pool| pool.pages().owner_pages()).fold(0, u32::saturating_add),
        });
        EngineSnapshot {
            lanes,
            pools: self.pools.iter().map(Pool::facts).collect(),
            tenants: tenants.collect(),
            links: self.lanes.iter().filter_map(|lane| lane.link.facts()).collect(),
            counters: self.counters,
            step_tokens: self.step_tokens,
            taken_us: self.shared.clock.now_us(),
        }
    }

    fn lane_facts(&self, index: usize) -> LaneFacts {
        let lane = &self.lanes[index];
        let counts = lane.ends.decode.map(|decode| self.pools[decode].counts()).unwrap_or_default();
        LaneFacts {
            lane: LaneId(index as u32),
            name: lane.name.clone(),
            precision: lane.precision,
            waiting: 0,
            running: 0,
            kv_used_per_mille: (counts.pinned * 1000).checked_div(counts.total).unwrap_or(0),
            free_pages: counts.free,
            total_pages: counts.total,
            ttft_us: lane.ttft_us,
            itl_us: lane.itl_us,
            speed: self.speed(lane.ends),
            healthy: lane.ends.pools().all(|pool| self.pools[pool].is_healthy()) && lane.link.is_up(),
        }
    }

    fn speed(&self, ends: Ends) -> LaneSpeed {
        let rate = |pool: Option<usize>| pool.map_or(0, |pool| self.pools[pool].rate.tokens_per_s());
        LaneSpeed {
            prefill_tokens_per_s: rate(ends.prefill),
            decode_tokens_per_s: rate(ends.decode),
            decode_step_us: ends.decode.map_or(0, |decode| self.pools[decode].step_us),
        }
    }
}
