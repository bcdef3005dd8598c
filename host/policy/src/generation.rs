//! One policy's time in force: the policy, who it is, its breaker, its counters, and whether it has proven itself.
//! It does not know what is decided, nor which generation comes before or after it.

use crate::short_budgets::ShortBudgets;
use crate::{Breaker, BreakerSettings, BreakerState, Counters, FaultKind, Policy, PolicyInfo};

/// A generation is proven once it has answered so many calls in a row without a fault: some steps of an engine, or some requests.
pub const PROVEN_CALLS: u32 = 32;

/// When a call is made, and how long it may take where that is less than the policy's own limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now_us: u64,
    pub(crate) within_us: Option<u32>,
}

pub(crate) struct Generation<P: ?Sized> {
    pub(crate) policy: Box<P>,
    pub(crate) info: PolicyInfo,
    pub(crate) number: u64,
    pub(crate) breaker: Breaker,
    pub(crate) counters: Counters,
    /// Of what it is told beside its decisions, which may fail while these go well.
    pub(crate) hearing: Breaker,
    short_budgets: ShortBudgets,
    /// Good answers in a row, up to [`PROVEN_CALLS`], where it stays.
    good: u32,
}

impl<P: Policy + ?Sized> Generation<P> {
    pub(crate) fn new(policy: Box<P>, info: PolicyInfo, number: u64, settings: BreakerSettings) -> Self {
        let (breaker, short_budgets) = (Breaker::new(settings), ShortBudgets::default());
        let (counters, hearing) = (Counters::default(), Breaker::new(settings));
        Self { policy, info, number, breaker, short_budgets, counters, hearing, good: 0 }
    }

    /// The same policy in force once more: what it has proven stays, its faults and counts do not.
    pub(crate) fn again(self, number: u64, settings: BreakerSettings) -> Self {
        Self { good: self.good, ..Self::new(self.policy, self.info, number, settings) }
    }

    /// Why the policy is not to be called now, if so.
    pub(crate) fn spares(&mut self, moment: Moment) -> Option<FaultKind> {
        if !self.breaker.admits(moment.now_us) {
            return Some(FaultKind::Unavailable);
        }
        self.short_budgets.spare(moment.within_us).then_some(FaultKind::Late)
    }

    pub(crate) fn answered(&mut self, moment: Moment) {
        self.breaker.succeeded();
        self.short_budgets.answered(moment.within_us);
        self.good = self.good.saturating_add(1).min(PROVEN_CALLS);
    }

    /// False if it was no new fault.
    pub(crate) fn failed(&mut self, moment: Moment, kind: FaultKind) -> bool {
        match kind {
            // Not being ready is no new fault: the fault that caused it was counted.
            FaultKind::Unavailable => return false,
            FaultKind::Late => self.short_budgets.late(moment.within_us),
            FaultKind::Trap | FaultKind::Timeout | FaultKind::Memory | FaultKind::Invalid => {
                self.breaker.failed(moment.now_us);
                if !self.is_proven() {
                    self.good = 0;
                }
            }
        }
        self.policy.recover();
        true
    }

    pub(crate) fn proven_elsewhere(&mut self) {
        self.good = PROVEN_CALLS;
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.good >= PROVEN_CALLS
    }

    /// Proven, and not failing just now.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        self.is_proven() && self.breaker.state() == BreakerState::Closed
    }
}
