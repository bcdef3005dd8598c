//! What the three slots share: the policy in force behind a lock, its breaker, the last good generation, and the counters.
//!
//! It does not know what is decided: a slot hands in how to ask, how to validate and what the fallback answers.
//! A lock is held for the length of one call, so calls to one slot are one after the other; the policy's deadline bounds
//! the wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    counters: Counters,
}

impl<P: Policy + ?Sized> Slot<P> {
    pub(crate) fn new(policy: Box<P>, info: PolicyInfo, settings: BreakerSettings) -> Self {
        let active = Generation { policy, info, number: 1, breaker: Breaker::new(settings), counters: Counters::default() };
        Self {
            settings,
            state: Mutex::new(State {
                active,
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
        now_us: u64,
        ask: impl FnOnce(&mut P) -> Result<T, PolicyFault>,
        validate: impl FnOnce(T) -> Result<R, InvalidAnswer>,
        fallback: impl FnOnce() -> R,
    ) -> Answer<R> {
        let mut state = self.lock();
        let generation = state.active.number;
        match state.ask(now_us, ask, validate) {
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
        now_us: u64,
        ask: impl FnOnce(&mut P) -> Result<T, PolicyFault>,
        validate: impl FnOnce(T) -> Result<R, InvalidAnswer>,
    ) -> Result<R, FaultKind> {
        let policy = &mut self.active.policy;
        let result = if self.active.breaker.admits(now_us) {
            let asked = catch_unwind(AssertUnwindSafe(|| ask(policy)));
            asked.unwrap_or_else(|_| {
                Err(fault(&self.active.info, FaultKind::Trap, "panicked in the host: this is a bug".to_owned()))
            })
        } else {
            Err(fault(&self.active.info, FaultKind::Unavailable, "rests after repeated faults".to_owned()))
        };
        let latency = self.active.policy.last_call_ns();
        let result = result
            .and_then(|raw| validate(raw).map_err(|invalid| fault(&self.active.info, FaultKind::Invalid, invalid.to_string())));
        let called = !matches!(&result, Err(f) if f.kind == FaultKind::Unavailable);
        for counters in [&mut self.total, &mut self.active.counters] {
            count(counters, result.as_ref().err().map(|f| f.kind));
            if let (true, Some(ns)) = (called, latency) {
                counters.latency.record(ns);
            }
        }
        match result {
            Ok(value) => {
                self.active.breaker.succeeded();
                Ok(value)
            }
            Err(fault) => {
                // Not being ready is no new fault: the fault that caused it was counted.
                if fault.kind != FaultKind::Unavailable {
                    self.active.breaker.failed(now_us);
                    self.last_error = Some((self.active.number, fault.to_string()));
                    self.active.policy.recover();
                }
                Err(fault.kind)
            }
        }
    }

    /// Returns who was in force, and what is to be dropped once the lock is released.
    fn activate(&mut self, policy: Box<P>, info: PolicyInfo, settings: BreakerSettings) -> (PolicyInfo, Option<Generation<P>>) {
        self.generations = self.generations.saturating_add(1);
        let new =
            Generation { policy, info, number: self.generations, breaker: Breaker::new(settings), counters: Counters::default() };
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

fn count(counters: &mut Counters, fault: Option<FaultKind>) {
    counters.calls = counters.calls.saturating_add(1);
    match fault {
        None => counters.ok = counters.ok.saturating_add(1),
        Some(kind) => {
            counters.faults.add(kind);
            counters.fallbacks = counters.fallbacks.saturating_add(1);
        }
    }
}
