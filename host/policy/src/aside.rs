//! Calls beside decisions: telling a policy what became of requests, and carrying its memory over a swap. Whatever goes wrong in them
//! is counted and told, and changes no answer and no swap. It does not know what is told or carried.
//!
//! ```text
//!   observe:  generation still in force? --> its hearing admits? --> policy --ok--> counted
//!                                                                      | fault: counted, a fresh instance is prepared; after
//!                                                                      |        several in a row it hears nothing for a while
//!   swap:     old.save() under the lock --> new.restore() outside it --> put in force
//! ```
//! A fault of hearing is none of deciding: the breaker of decisions, and what a generation has proven, stay as they are.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::slot::{Slot, State, fault};
use crate::{FaultKind, Policy, PolicyFault, PolicyInfo, Table};

/// Of the memory that a policy hands over.
pub const MAX_HANDOVER_BYTES: usize = 64 << 10;

impl<P: Policy + ?Sized> Slot<P> {
    /// Tells the policy of a generation what became of requests. None: it is not in force any more, or does not want to hear.
    pub(crate) fn observe(&self, now_us: u64, generation: u64, outcomes: &Table) -> Option<Result<(), FaultKind>> {
        let mut state = self.lock();
        let active = &mut state.lineage.active;
        if active.number != generation || !active.policy.observes() {
            return None;
        }
        if !active.hearing.admits(now_us) {
            state.feedback.record(Some(FaultKind::Unavailable), None);
            return Some(Err(FaultKind::Unavailable));
        }
        let (policy, info) = (&mut active.policy, &active.info);
        let told = guarded(info, || policy.observe(outcomes));
        match &told {
            Ok(()) => active.hearing.succeeded(),
            Err(PolicyFault { kind: FaultKind::Unavailable, .. }) => {}
            Err(_) => {
                active.hearing.failed(now_us);
                active.policy.recover();
            }
        }
        let kind = told.as_ref().err().map(|fault| fault.kind);
        let latency = active.policy.last_call_ns().filter(|_| kind != Some(FaultKind::Unavailable));
        state.note(generation, told.as_ref().err());
        state.feedback.record(kind, latency);
        drop(state);
        self.tell(generation, fresh(told.as_ref()));
        Some(told.map_err(|fault| fault.kind))
    }

    /// Whether the policy in force wants to hear what became of requests, and its generation.
    pub(crate) fn hears(&self) -> Option<u64> {
        let state = self.lock();
        let active = &state.lineage.active;
        active.policy.observes().then_some(active.number)
    }

    /// Gives a policy that is about to be put in force what the one in force knows. The lock is held for `save` alone, so decisions
    /// wait no longer than for one another; between both the old one decides.
    pub(crate) fn hand_over(&self, next: &mut P, next_info: &PolicyInfo) {
        if !next.hands_over() {
            return;
        }
        let Some(saved) = self.save() else { return };
        let restored = guarded(next_info, || next.restore(&saved));
        let mut state = self.lock();
        let number = state.lineage.active.number.saturating_add(1);
        state.note(number, restored.as_ref().err());
        state.handover.record(restored.as_ref().err().map(|fault| fault.kind), next.last_call_ns());
        drop(state);
        self.tell(number, fresh(restored.as_ref()));
    }

    fn save(&self) -> Option<Vec<u8>> {
        let mut state = self.lock();
        let active = &mut state.lineage.active;
        if !active.policy.hands_over() {
            return None;
        }
        let (policy, info) = (&mut active.policy, &active.info);
        let saved = guarded(info, || policy.save()).and_then(|saved| bounded(info, saved));
        if saved.as_ref().is_err_and(|fault| fault.kind != FaultKind::Unavailable) {
            active.policy.recover();
        }
        let (number, latency) = (active.number, active.policy.last_call_ns());
        state.note(number, saved.as_ref().err());
        state.handover.record(saved.as_ref().err().map(|fault| fault.kind), latency);
        drop(state);
        self.tell(number, fresh(saved.as_ref()));
        saved.ok()
    }
}

impl<P: ?Sized> State<P> {
    /// What went wrong, if something did; not being ready is no new fault.
    fn note(&mut self, generation: u64, fault: Option<&PolicyFault>) {
        if let Some(fault) = fault.filter(|fault| fault.kind != FaultKind::Unavailable) {
            self.last_error = Some((generation, fault.to_string()));
        }
    }
}

/// What went wrong, but for not being ready.
fn fresh<'a, T>(result: Result<&'a T, &'a PolicyFault>) -> Option<&'a PolicyFault> {
    result.err().filter(|fault| fault.kind != FaultKind::Unavailable)
}

fn guarded<T>(info: &PolicyInfo, call: impl FnOnce() -> Result<T, PolicyFault>) -> Result<T, PolicyFault> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(fault(info, FaultKind::Trap, "panicked in the host: this is a bug".to_owned())))
}

fn bounded(info: &PolicyInfo, saved: Vec<u8>) -> Result<Vec<u8>, PolicyFault> {
    if saved.len() <= MAX_HANDOVER_BYTES {
        return Ok(saved);
    }
    let detail = format!("`save` gave {} bytes, at most {MAX_HANDOVER_BYTES}", saved.len());
    Err(fault(info, FaultKind::Invalid, detail))
}

#[cfg(test)]
mod tests;
