//! What the three slots share: the policy in force behind a lock, its breaker, the last good generation, and the counters.
//!
//! It does not know what is decided: a slot hands in how to ask, how to validate and what the fallback answers.
//! A lock is held for the length of one call, so calls to one slot are one after the other; the policy's deadline bounds
//! the wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::short_budgets::ShortBudgets;
use crate::{
    Breaker, BreakerSettings, BreakerState, Counters, FaultKind, InvalidAnswer, Policy, PolicyFault, PolicyInfo, SlotStatus,
};

/// A decision, and who made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    pub value: T,
    /// Generation of the policy that was in force.
    pub generation: u64,
    /// Why the native fallback answered; none: the policy did.
    pub fault: Option<FaultKind>,
}

/// When a call is made, and how long it may take where that is less than the policy's own limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now_us: u64,
    pub(crate) within_us: Option<u32>,
}

/// The shared core of the slots.
pub(crate) struct Slot<P: ?Sized> {
    settings: BreakerSettings,
    state: Mutex<State<P>>,
}

struct State<P: ?Sized> {
    active: Generation<P>,
    last_good: Option<Generation<P>>,
    generations: u64,
    total: Counters,
    swaps: u64,
    rollbacks: u64,
    last_error: Option<(u64, String)>,
}

struct Generation<P: ?Sized> {
    policy: Box<P>,
    info: PolicyInfo,
    number: u64,
    breaker: Breaker,
    short_budgets: ShortBudgets,
    counters: Counters,
}

impl<P: Policy + ?Sized> Generation<P> {
    fn new(policy: Box<P>, info: PolicyInfo, number: u64, settings: BreakerSettings) -> Self {
        let (breaker, short_budgets) = (Breaker::new(settings), ShortBudgets::default());
        Self { policy, info, number, breaker, short_budgets, counters: Counters::default() }
    }

    /// Why the policy is not to be called now, if so.
    fn spares(&mut self, moment: Moment) -> Option<FaultKind> {
        if !self.breaker.admits(moment.now_us) {
            return Some(FaultKind::Unavailable);
        }
        self.short_budgets.spare(moment.within_us).then_some(FaultKind::Late)
    }
}

impl<P: Policy + ?Sized> Slot<P> {
    pub(crate) fn new(policy: Box<P>, info: PolicyInfo, settings: BreakerSettings) -> Self {
        Self {
            settings,
            state: Mutex::new(State {
                active: Generation::new(policy, info, 1, settings),
                last_good: None,
                generations: 1,
                total: Counters::default(),
                swaps: 0,
                rollbacks: 0,
                last_error: None,
            }),
        }
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
        let generation = state.active.number;
        match state.ask(moment, ask, validate) {
            Ok(value) => Answer { value, generation, fault: None },
            Err(kind) => {
                let retired = state.roll_back_if_hopeless(self.settings);
                drop(state);
                drop(retired);
                Answer { value: fallback(), generation, fault: Some(kind) }
            }
        }
    }

    /// Puts a policy in force; calls in flight finish on the old one. The old one is kept for a roll back unless it was failing.
    pub(crate) fn swap(&self, policy: Box<P>, info: PolicyInfo) -> PolicyInfo {
        let mut state = self.lock();
        let (old, retired) = state.activate(policy, info, self.settings);
        state.swaps = state.swaps.saturating_add(1);
        drop(state);
        // An instance is unmapped when it goes, which is not to happen under the lock.
        drop(retired);
        old
    }

    /// Puts the last good generation in force again; none if there is none.
    pub(crate) fn roll_back(&self) -> Option<PolicyInfo> {
        let mut state = self.lock();
        let good = state.last_good.take()?;
        let info = good.info.clone();
        let (_, retired) = state.activate(good.policy, good.info, self.settings);
        state.rollbacks = state.rollbacks.saturating_add(1);
        drop(state);
        drop(retired);
        Some(info)
    }

    /// Number of the policy in force.
    pub(crate) fn generation(&self) -> u64 {
        self.lock().active.number
    }

    pub(crate) fn status(&self) -> SlotStatus {
        let state = self.lock();
        SlotStatus {
            info: state.active.info.clone(),
            generation: state.active.number,
            total: state.total,
            current: state.active.counters,
            swaps: state.swaps,
            rollbacks: state.rollbacks,
            breaker: state.active.breaker.state(),
            last_error: state.last_error.clone(),
            last_good: state.last_good.as_ref().map(|g| g.info.clone()),
            report: state.active.policy.report(),
        }
    }

    /// A panic under the lock leaves counters that may lack one call: nothing to refuse service for.
    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Policy + ?Sized> State<P> {
    fn ask<T, R>(
        &mut self,
        moment: Moment,
        ask: impl FnOnce(&mut P) -> Result<T, PolicyFault>,
        validate: impl FnOnce(T) -> Result<R, InvalidAnswer>,
    ) -> Result<R, FaultKind> {
        if let Some(kind) = self.active.spares(moment) {
            self.count(Some(kind), None);
            return Err(kind);
        }
        let policy = &mut self.active.policy;
        let asked = catch_unwind(AssertUnwindSafe(|| ask(policy)));
        let info = &self.active.info;
        let result = asked
            .unwrap_or_else(|_| Err(fault(info, FaultKind::Trap, "panicked in the host: this is a bug".to_owned())))
            .and_then(|raw| validate(raw).map_err(|invalid| fault(info, FaultKind::Invalid, invalid.to_string())));
        let kind = result.as_ref().err().map(|f| f.kind);
        // Not being ready is no call.
        let latency = self.active.policy.last_call_ns().filter(|_| kind != Some(FaultKind::Unavailable));
        self.count(kind, latency);
        match result {
            Ok(value) => {
                self.active.breaker.succeeded();
                self.active.short_budgets.answered(moment.within_us);
                Ok(value)
            }
            Err(fault) => {
                self.take_fault(moment, &fault);
                Err(fault.kind)
            }
        }
    }

    fn take_fault(&mut self, moment: Moment, fault: &PolicyFault) {
        match fault.kind {
            // Not being ready is no new fault: the fault that caused it was counted.
            FaultKind::Unavailable => return,
            FaultKind::Late => self.active.short_budgets.late(moment.within_us),
            FaultKind::Trap | FaultKind::Timeout | FaultKind::Memory | FaultKind::Invalid => {
                self.active.breaker.failed(moment.now_us);
            }
        }
        self.last_error = Some((self.active.number, fault.to_string()));
        self.active.policy.recover();
    }

    fn count(&mut self, fault: Option<FaultKind>, latency_ns: Option<u64>) {
        for counters in [&mut self.total, &mut self.active.counters] {
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

    /// Returns who was in force, and what is to be dropped once the lock is released.
    fn activate(&mut self, policy: Box<P>, info: PolicyInfo, settings: BreakerSettings) -> (PolicyInfo, Option<Generation<P>>) {
        self.generations = self.generations.saturating_add(1);
        let new = Generation::new(policy, info, self.generations, settings);
        let old = std::mem::replace(&mut self.active, new);
        let info = old.info.clone();
        if old.breaker.state() == BreakerState::Closed { (info, self.last_good.replace(old)) } else { (info, Some(old)) }
    }

    fn roll_back_if_hopeless(&mut self, settings: BreakerSettings) -> Option<Generation<P>> {
        if !self.active.breaker.is_hopeless() {
            return None;
        }
        let good = self.last_good.take()?;
        self.rollbacks = self.rollbacks.saturating_add(1);
        self.activate(good.policy, good.info, settings).1
    }
}

fn fault(info: &PolicyInfo, kind: FaultKind, detail: String) -> PolicyFault {
    PolicyFault { policy: format!("{}@{}", info.name, info.version), kind, detail }
}
