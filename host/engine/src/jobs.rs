//! The sequences that the engine owes an end to, and their event sinks. Knows no pages and no device.

use std::collections::BTreeMap;

use millrace_core::{FinishReason, LaneId, SamplingParams, SeqId, TenantId};
use millrace_transfer::Incarnation;

use crate::{Event, EventSink, Job, JobError, Replay};

/// One sequence, from submission to its last event.
pub(crate) struct LiveJob {
    pub(crate) lane: LaneId,
    pub(crate) tenant: TenantId,
    pub(crate) sampling: SamplingParams,
    pub(crate) submitted_us: u64,
    /// When the first step that ran any of it was launched.
    pub(crate) started_us: Option<u64>,
    pub(crate) last_token_us: Option<u64>,
    /// Set once `Prefilled` was sent; a preempted sequence is prefilled again without telling.
    prefilled: bool,
    events: Box<dyn EventSink>,
}

/// Sequences before and after their first step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) waiting: u32,
    pub(crate) running: u32,
}

/// Live sequences per lane and per tenant.
pub(crate) struct Census {
    pub(crate) lanes: Vec<Load>,
    pub(crate) tenants: Vec<Load>,
}

/// All live sequences.
#[derive(Default)]
pub(crate) struct JobTable {
    jobs: BTreeMap<SeqId, LiveJob>,
}

impl JobTable {
    pub(crate) fn insert(&mut self, job: Job, now_us: u64) {
        let live = LiveJob {
            lane: job.lane,
            tenant: job.tenant,
            sampling: job.sampling,
            submitted_us: now_us,
            started_us: None,
            last_token_us: None,
            prefilled: false,
            events: job.events,
        };
        self.jobs.insert(job.seq, live);
    }

    pub(crate) fn census(&self, lanes: usize, tenants: usize) -> Census {
        let mut census = Census { lanes: vec![Load::default(); lanes], tenants: vec![Load::default(); tenants] };
        for job in self.jobs.values() {
            let loads = [census.lanes.get_mut(job.lane.0 as usize), census.tenants.get_mut(job.tenant.0 as usize)];
            for load in loads.into_iter().flatten() {
                match job.started_us {
                    Some(_) => load.running += 1,
                    None => load.waiting += 1,
                }
            }
        }
        census
    }

    pub(crate) fn sampling(&self, seq: SeqId) -> Option<&SamplingParams> {
        self.jobs.get(&seq).map(|job| &job.sampling)
    }

    pub(crate) fn lane(&self, seq: SeqId) -> Option<LaneId> {
        self.jobs.get(&seq).map(|job| job.lane)
    }

    pub(crate) fn started(&mut self, seq: SeqId, now_us: u64) {
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.started_us.get_or_insert(now_us);
        }
    }

    /// Tells of the end of prefill, once, and how many of its tokens were not computed.
    pub(crate) fn prefilled(&mut self, seq: SeqId, cached_tokens: u32, now_us: u64) {
        if let Some(job) = self.jobs.get_mut(&seq)
            && !job.prefilled
        {
            job.prefilled = true;
            let queued_us = job.started_us.unwrap_or(now_us).saturating_sub(job.submitted_us);
            job.events.emit(Event::Prefilled { cached_tokens, queued_us });
        }
    }

    /// Publishes a token. Returns the job and the time of its previous token.
    pub(crate) fn token(&mut self, seq: SeqId, token: u32, now_us: u64) -> Option<(&LiveJob, Option<u64>)> {
        let job = self.jobs.get_mut(&seq)?;
        job.events.emit(Event::Token(token));
        let before = job.last_token_us.replace(now_us);
        Some((job, before))
    }

    pub(crate) fn finish(&mut self, seq: SeqId, reason: FinishReason) -> bool {
        self.end(seq, Event::Finished(reason))
    }

    pub(crate) fn fail(&mut self, seq: SeqId, error: JobError) -> bool {
        self.end(seq, Event::Failed(error))
    }

    /// When a sequence was submitted, and when it began.
    pub(crate) fn queued_us(&self, seq: SeqId, now_us: u64) -> u64 {
        self.jobs.get(&seq).map_or(0, |job| job.started_us.unwrap_or(now_us).saturating_sub(job.submitted_us))
    }

    /// Forgets a sequence that another process has from here on.
    pub(crate) fn handed_over(&mut self, seq: SeqId, to: Incarnation) {
        if let Some(mut job) = self.jobs.remove(&seq) {
            job.events.handed_over(to);
        }
    }

    /// Forgets a sequence that has to go through another process's prefill again.
    pub(crate) fn preempted(&mut self, seq: SeqId, again: Replay) {
        if let Some(mut job) = self.jobs.remove(&seq) {
            job.events.preempted(again);
        }
    }

    /// A sequence came from another process and runs; told what that process told already, lest it is not heard in time.
    pub(crate) fn attached(&mut self, seq: SeqId, prefilled: Event, now_us: u64) {
        self.resumed(seq, now_us);
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.events.emit(prefilled);
        }
    }

    /// A sequence came from another process and runs; whatever it has was published.
    pub(crate) fn resumed(&mut self, seq: SeqId, now_us: u64) {
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.started_us.get_or_insert(now_us);
            job.last_token_us = Some(now_us);
            job.prefilled = true;
        }
    }

    /// Forgets a sequence without an event.
    pub(crate) fn abort(&mut self, seq: SeqId) -> Option<LaneId> {
        self.jobs.remove(&seq).map(|job| job.lane)
    }

    /// Fails every sequence that `which` picks; returns them with their lanes.
    pub(crate) fn fail_all(&mut self, error: &JobError, which: impl Fn(&LiveJob) -> bool) -> Vec<(SeqId, LaneId)> {
        let picked = self.jobs.iter().filter(|(_, job)| which(job));
        let chosen: Vec<(SeqId, LaneId)> = picked.map(|(&seq, job)| (seq, job.lane)).collect();
        for &(seq, _) in &chosen {
            self.fail(seq, error.clone());
        }
        chosen
    }

    fn end(&mut self, seq: SeqId, event: Event) -> bool {
        let Some(mut job) = self.jobs.remove(&seq) else { return false };
        job.events.emit(event);
        true
    }
}
