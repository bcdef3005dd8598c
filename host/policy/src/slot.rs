//! What the three slots share: the policy in force behind a lock, the way back to earlier ones, and the counters.
//!
//! It does not know what is decided: a slot hands in how to ask, how to validate and what the fallback answers.
//! A lock is held for the length of one call, so calls to one slot are one after the other; the policy's deadline bounds
//! the wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::generation::Moment;
use crate::lineage::{Lineage, Retired};
use crate::{BreakerSettings, Counters, FaultKind, InvalidAnswer, Policy, PolicyFault, PolicyInfo, RolledBack, SlotStatus};

/// A decision, and who made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    pub value: T,
    /// Generation of the policy that was in force.
    pub generation: u64,
    /// Why the native fallback answered; none: the policy did.
    pub fault: Option<FaultKind>,
}

/// Hears of roll backs that nobody asked for.
pub(crate) type Watcher = Box<dyn Fn(&RolledBack) + Send + Sync>;

/// Hears of faults, with the generation that they are of.
pub(crate) type FaultWatcher = Box<dyn Fn(u64, &PolicyFault) + Send + Sync>;

/// The shared core of the slots.
pub(crate) struct Slot<P: ?Sized> {
    state: Mutex<State<P>>,
    watcher: Option<Watcher>,
    fault_watcher: Option<FaultWatcher>,
}

pub(crate) struct State<P: ?Sized> {
    pub(crate) lineage: Lineage<P>,
    total: Counters,
    swaps: u64,
    rollbacks: u64,
    /// How often somebody asked for the way back.
    recalls: u64,
    pub(crate) last_error: Option<(u64, String)>,
    pub(crate) feedback: Counters,
    pub(crate) handover: Counters,
}

impl<P: Policy + ?Sized> Slot<P> {
    pub(crate) fn new(policy: Box<P>, info: PolicyInfo, settings: BreakerSettings) -> Self {
        Self::of(Lineage::new(policy, info, settings))
    }

    /// The policy that the slot was made with is what roll backs end at; this one is in force first.
    pub(crate) fn starting_with(self, policy: Box<P>, info: PolicyInfo) -> Self {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (watcher, fault_watcher) = (self.watcher, self.fault_watcher);
        Self { watcher, fault_watcher, ..Self::of(state.lineage.starting_with(policy, info)) }
    }

    pub(crate) fn watched_by(self, watcher: Watcher) -> Self {
        Self { watcher: Some(watcher), ..self }
    }

    pub(crate) fn telling_faults_to(self, watcher: FaultWatcher) -> Self {
        Self { fault_watcher: Some(watcher), ..self }
    }

    /// Not under the lock: whoever hears may take a while.
    pub(crate) fn tell(&self, generation: u64, fault: Option<&PolicyFault>) {
        if let (Some(watcher), Some(fault)) = (&self.fault_watcher, fault) {
            watcher(generation, fault);
        }
    }

    fn of(lineage: Lineage<P>) -> Self {
        let (total, feedback, handover) = (Counters::default(), Counters::default(), Counters::default());
        let state = State { lineage, total, swaps: 0, rollbacks: 0, recalls: 0, last_error: None, feedback, handover };
        Self { state: Mutex::new(state), watcher: None, fault_watcher: None }
    }

    /// Asks the policy, validates, and takes the fallback's answer where that fails.
    pub(crate) fn call<T, R>(
        &self,
        moment: Moment,
        ask: impl FnOnce(&mut P) -> Result<T, PolicyFault>,
        validate: impl FnOnce(T) -> Result<R, InvalidAnswer>,
        fallback: impl FnOnce() -> R,
    ) -> Answer<R> {
        let mut state = self.lock();
        let generation = state.lineage.active.number;
        match state.ask(moment, ask, validate) {
            Ok(value) => Answer { value, generation, fault: None },
            Err((kind, fault)) => {
                let given_up = if state.lineage.active.breaker.is_hopeless() { state.give_up() } else { None };
                drop(state);
                self.tell(generation, fault.as_ref());
                if let (Some((rolled, _)), Some(watcher)) = (&given_up, &self.watcher) {
                    watcher(rolled);
                }
                drop(given_up);
                Answer { value: fallback(), generation, fault: Some(kind) }
            }
        }
    }

    /// Puts a policy in force and returns who was; calls in flight finish on the old one. What the old one knows goes along where
    /// both can do that.
    pub(crate) fn swap(&self, mut policy: Box<P>, info: PolicyInfo) -> PolicyInfo {
        self.hand_over(&mut *policy, &info);
        let (old, retired) = self.lock().put(policy, info);
        // An instance is unmapped when it goes, which is not to happen under the lock.
        drop(retired);
        old
    }

    /// As [`Self::swap`], unless somebody asked for the way back since these recalls were counted: then nothing changes, and it is none.
    pub(crate) fn swap_since(&self, recalls: u64, mut policy: Box<P>, info: PolicyInfo) -> Option<PolicyInfo> {
        self.hand_over(&mut *policy, &info);
        let mut state = self.lock();
        if state.recalls != recalls {
            drop(state);
            return None;
        }
        let (old, retired) = state.put(policy, info);
        drop(state);
        drop(retired);
        Some(old)
    }

    /// How often somebody asked for the way back.
    pub(crate) fn recalls(&self) -> u64 {
        self.lock().recalls
    }

    /// Returns to the last proven policy, or the first; tells which it is. None if there is no way back.
    pub(crate) fn roll_back(&self) -> Option<PolicyInfo> {
        let mut state = self.lock();
        state.recalls = state.recalls.wrapping_add(1);
        let retired = state.roll_back()?;
        let info = state.lineage.active.info.clone();
        drop(state);
        drop(retired);
        Some(info)
    }

    /// Returns to the first policy at once; tells which it is.
    pub(crate) fn return_to_base(&self) -> PolicyInfo {
        let mut state = self.lock();
        state.recalls = state.recalls.wrapping_add(1);
        let retired = state.lineage.return_to_base();
        state.rollbacks = state.rollbacks.saturating_add(u64::from(!retired.is_empty()));
        let info = state.lineage.active.info.clone();
        drop(state);
        drop(retired);
        info
    }

    /// Number of the policy in force.
    pub(crate) fn generation(&self) -> u64 {
        self.lock().lineage.active.number
    }

    pub(crate) fn status(&self) -> SlotStatus {
        let state = self.lock();
        let active = &state.lineage.active;
        SlotStatus {
            info: active.info.clone(),
            generation: active.number,
            proven: active.is_proven(),
            total: state.total,
            current: active.counters,
            feedback: state.feedback,
            handover: state.handover,
            swaps: state.swaps,
            rollbacks: state.rollbacks,
            breaker: active.breaker.state(),
            last_error: state.last_error.clone(),
            way_back: state.lineage.way_back(),
            report: active.policy.report(),
        }
    }

    /// A panic under the lock leaves counters that may lack one call: nothing to refuse service for.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Policy + ?Sized> State<P> {
    fn ask<T, R>(
        &mut self,
        moment: Moment,
        ask: impl FnOnce(&mut P) -> Result<T, PolicyFault>,
        validate: impl FnOnce(T) -> Result<R, InvalidAnswer>,
    ) -> Result<R, (FaultKind, Option<PolicyFault>)> {
        let active = &mut self.lineage.active;
        if let Some(kind) = active.spares(moment) {
            self.count(Some(kind), None);
            return Err((kind, None));
        }
        let policy = &mut active.policy;
        let asked = catch_unwind(AssertUnwindSafe(|| ask(policy)));
        let info = &active.info;
        let result = asked
            .unwrap_or_else(|_| Err(fault(info, FaultKind::Trap, "panicked in the host: this is a bug".to_owned())))
            .and_then(|raw| validate(raw).map_err(|invalid| fault(info, FaultKind::Invalid, invalid.to_string())));
        // Not being ready is no call.
        let kind = result.as_ref().err().map(|f| f.kind);
        let latency = active.policy.last_call_ns().filter(|_| kind != Some(FaultKind::Unavailable));
        let mut is_new = false;
        match &result {
            Ok(_) => active.answered(moment),
            Err(fault) => {
                let number = active.number;
                is_new = active.failed(moment, fault.kind);
                if is_new {
                    self.last_error = Some((number, fault.to_string()));
                }
            }
        }
        self.count(kind, latency);
        result.map_err(|fault| (fault.kind, Some(fault).filter(|_| is_new)))
    }

    fn count(&mut self, fault: Option<FaultKind>, latency_ns: Option<u64>) {
        for counters in [&mut self.total, &mut self.lineage.active.counters] {
            counters.calls = counters.calls.saturating_add(1);
            match fault {
                None => counters.ok = counters.ok.saturating_add(1),
                Some(kind) => {
                    counters.faults.add(kind);
                    counters.fallbacks = counters.fallbacks.saturating_add(1);
                }
            }
            if let Some(ns) = latency_ns {
                counters.latency.record(ns);
            }
        }
    }

    fn put(&mut self, policy: Box<P>, info: PolicyInfo) -> (PolicyInfo, Retired<P>) {
        self.swaps = self.swaps.saturating_add(1);
        self.lineage.put(policy, info)
    }

    /// Rolls back because the policy in force fails too often; none where it is the first.
    fn give_up(&mut self) -> Option<(RolledBack, Retired<P>)> {
        let (from, from_generation) = (self.lineage.active.info.clone(), self.lineage.active.number);
        let retired = self.roll_back()?;
        let (to, to_generation) = (self.lineage.active.info.clone(), self.lineage.active.number);
        let last_fault = self.last_error.as_ref().map(|(_, text)| text.clone()).unwrap_or_default();
        Some((RolledBack { from, from_generation, to, to_generation, last_fault }, retired))
    }

    fn roll_back(&mut self) -> Option<Retired<P>> {
        let retired = self.lineage.roll_back()?;
        self.rollbacks = self.rollbacks.saturating_add(1);
        Some(retired)
    }
}

pub(crate) fn fault(info: &PolicyInfo, kind: FaultKind, detail: String) -> PolicyFault {
    PolicyFault { policy: format!("{}@{}", info.name, info.version), kind, detail }
}
