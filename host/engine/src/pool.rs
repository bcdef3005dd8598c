//! One pool in the driver's hands: its scheduler, its runner, and the step between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_core::Stage;
use millrace_kv::{PageCounts, PagePool, PrefixOwner};
use millrace_policy::Table;
use millrace_scheduler::{DecodeScheduler, Draft, PolicyCall, PrefillScheduler, StepPlan, TenantLedger};

use crate::handle::Hold;
use crate::rate::Rate;
use crate::runner::StageRunner;
use crate::step_times::StepTimes;
use crate::{JobError, PhaseTimes, PoolFacts};

/// The pure half of a pool.
pub(crate) enum Scheduler {
    Prefill(PrefillScheduler),
    Decode(DecodeScheduler),
}

pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) scheduler: Scheduler,
    pub(crate) runner: StageRunner,
    /// The next step, planned while the last one ran.
    pub(crate) draft: Option<Draft>,
    /// Somebody came since it was made.
    pub(crate) draft_is_old: bool,
    pub(crate) steps: u64,
    /// Smoothed, from launch to end.
    pub(crate) step_us: u32,
    pub(crate) rate: Rate,
    pub(crate) phases: PhaseTimes,
    /// Of the device alone.
    pub(crate) times: StepTimes,
    /// Row of the driver's devices.
    pub(crate) device: usize,
    /// When the device last ended something of this pool, as it says itself: the driver may be busy then and look later.
    pub(crate) ended_us: Arc<AtomicU64>,
    pub(crate) last_rows: u32,
    /// Why it is out of service: its queue failed, and runs nothing any more.
    pub(crate) failure: Option<JobError>,
    pub(crate) hold: Hold,
}

impl Pool {
    pub(crate) fn stage(&self) -> Stage {
        match self.scheduler {
            Scheduler::Prefill(_) => Stage::Prefill,
            Scheduler::Decode(_) => Stage::Decode,
        }
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.failure.is_none()
    }

    pub(crate) fn plan(&mut self, now_us: u64, policy: &mut PolicyCall<'_>, tenants: &Table) -> Option<Draft> {
        if self.hold == Hold::Held {
            return None;
        }
        match &mut self.scheduler {
            Scheduler::Prefill(s) => s.plan(now_us, policy, tenants),
            Scheduler::Decode(s) => s.plan(now_us, policy, tenants),
        }
    }

    pub(crate) fn dispatch(&mut self, draft: Draft) -> Option<StepPlan> {
        match &mut self.scheduler {
            Scheduler::Prefill(s) => s.dispatch(draft),
            Scheduler::Decode(s) => s.dispatch(draft),
        }
    }

    /// Nothing to run: tells the device of the pages that changed hands all the same, so that freed ones are zeroed now.
    pub(crate) fn settle(&mut self) {
        let changes = match &mut self.scheduler {
            Scheduler::Prefill(s) => s.take_changes(),
            Scheduler::Decode(s) => s.take_changes(),
        };
        if !changes.is_empty() {
            self.runner.apply_changes(&changes);
            self.runner.queue().submit();
        }
    }

    /// Pages that were under suspicion and no longer are.
    pub(crate) fn readmit_all(&mut self) -> u32 {
        match &mut self.scheduler {
            Scheduler::Prefill(s) => s.readmit_all(),
            Scheduler::Decode(s) => s.readmit_all(),
        }
    }

    pub(crate) fn forget_order(&mut self) {
        match &mut self.scheduler {
            Scheduler::Prefill(s) => s.forget_order(),
            Scheduler::Decode(s) => s.forget_order(),
        }
    }

    pub(crate) fn abort(&mut self, seq: millrace_core::SeqId) -> bool {
        match &mut self.scheduler {
            Scheduler::Prefill(s) => s.abort(seq),
            Scheduler::Decode(s) => s.abort(seq),
        }
    }

    /// Adds this pool's waiting and running sequences to the tenants' facts.
    pub(crate) fn count_into(&self, ledger: &mut TenantLedger) {
        match &self.scheduler {
            Scheduler::Prefill(s) => s.count_into(ledger),
            Scheduler::Decode(s) => s.count_into(ledger),
        }
    }

    /// Whether a sequence is here, in whatever state.
    pub(crate) fn has_sequences(&self) -> bool {
        match &self.scheduler {
            Scheduler::Prefill(s) => !s.is_empty(),
            Scheduler::Decode(s) => !s.is_empty(),
        }
    }

    /// The logical half of its memory.
    pub(crate) fn pages(&self) -> &PagePool {
        match &self.scheduler {
            Scheduler::Prefill(s) => s.pool(),
            Scheduler::Decode(s) => s.pool(),
        }
    }

    /// Pages of its prefix tree that a tenant brought in.
    pub(crate) fn cached_pages_of(&self, tenant: usize) -> u32 {
        self.pages().cached_pages_of(PrefixOwner(u32::try_from(tenant).unwrap_or(u32::MAX)))
    }

    pub(crate) fn counts(&self) -> PageCounts {
        self.pages().counts()
    }

    pub(crate) fn facts(&self) -> PoolFacts {
        let counts = self.counts();
        let counters = match &self.scheduler {
            Scheduler::Prefill(s) => s.counters(),
            Scheduler::Decode(s) => s.counters(),
        };
        PoolFacts {
            name: self.name.clone(),
            stage: self.stage(),
            total_pages: counts.total,
            free_pages: counts.free,
            quarantined_pages: counts.quarantined,
            pinned_pages: counts.pinned,
            evictable_pages: counts.evictable,
            suspect_pages: counts.suspect.saturating_add(counts.suspect_pinned),
            cached_pages: self.pages().cached_pages(),
            evicted_pages: self.pages().prefix_counters().evicted,
            computed_tokens: counters.computed_tokens,
            prefix_queried_tokens: counters.prefix_queried_tokens,
            prefix_hit_tokens: counters.prefix_hit_tokens,
            page_bytes: self.runner.layout().page_bytes(),
            steps: self.steps,
            plans_reused: counters.plans_reused,
            step_us: self.step_us,
            phases: self.phases,
            last_rows: self.last_rows,
            healthy: self.is_healthy(),
        }
    }

    /// When the running step ended; none while it runs.
    pub(crate) fn ended_us(&self, now_us: u64) -> Option<u64> {
        let (launched_us, _) = self.runner.running().filter(|_| self.runner.is_done())?;
        let ended_us = self.ended_us.load(Ordering::Acquire);
        // The device tells that a step is done a moment before it notes when.
        Some(if ended_us < launched_us { now_us } else { ended_us.min(now_us) })
    }

    /// When the running step will end, if one runs and there is something to tell by.
    pub(crate) fn expected_end_us(&self) -> Option<u64> {
        let (launched_us, tokens) = self.runner.running()?;
        Some(launched_us.saturating_add(self.times.expected_us(tokens)?))
    }

    /// A step of so many tokens took `took_us` from its launch and had the device for `device_us` of them.
    pub(crate) fn observe_step(&mut self, tokens: u32, took_us: u64, device_us: u64) {
        self.times.observe(tokens, device_us);
        self.rate.observe(tokens, device_us);
        self.step_us = smooth(self.step_us, took_us);
        match &mut self.scheduler {
            Scheduler::Prefill(s) => {
                s.set_step_us(self.step_us);
                s.set_step_cost(self.times.cost());
            }
            Scheduler::Decode(s) => s.set_step_us(self.step_us),
        }
    }
}

/// Exponential average over about eight values; the first one counts whole.
pub(crate) fn smooth(average: u32, value: u64) -> u32 {
    let value = u32::try_from(value).unwrap_or(u32::MAX);
    if average == 0 { value } else { average - average / 8 + value / 8 }
}
