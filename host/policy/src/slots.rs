//! The slots: one per decision, each with the policy in force and the native fallback. They never fail; share them in an `Arc`.
//!
//! Any thread may decide, swap, roll back or read the status. They do not know where policies come from.

use std::sync::Arc;

use crate::generation::Moment;
use crate::slot::Slot;
use crate::witness::Witness;
use crate::{
    Answer, Ask, BreakerSettings, Budget, Choice, Decision, FairSchedule, InvalidAnswer, LeastLoadedRoute, Plan, PolicyInfo,
    PrecisionPolicy, RolledBack, RouteLimits, RoutePolicy, RouteRequest, SchedulePolicy, SlotStatus, Table, TierPrecision,
    validate_choices, validate_decision, validate_plan,
};

/// Sees what a route was asked and answered.
pub type RouteWitness = dyn Fn(&RouteRequest, &Table, &Table, &Answer<Decision>) + Send + Sync;
/// Sees what a schedule was asked and answered.
pub type ScheduleWitness = dyn Fn(&Budget, &Table, &Table, &Answer<Plan>) + Send + Sync;
/// Sees what a precision choice was asked and answered.
pub type PrecisionWitness = dyn Fn(&[Ask], &Table, &Table, &Answer<Vec<Choice>>) + Send + Sync;

/// Where requests go.
pub struct RouteSlot {
    slot: Slot<dyn RoutePolicy>,
    witness: Witness<RouteWitness>,
    limits: RouteLimits,
    fallback: LeastLoadedRoute,
}

/// What engines do next.
pub struct ScheduleSlot {
    slot: Slot<dyn SchedulePolicy>,
    witness: Witness<ScheduleWitness>,
    fallback: FairSchedule,
}

/// What requests are served with.
pub struct PrecisionSlot {
    slot: Slot<dyn PrecisionPolicy>,
    witness: Witness<PrecisionWitness>,
    fallback: TierPrecision,
}

impl RouteSlot {
    #[must_use]
    pub fn new(policy: Box<dyn RoutePolicy>, info: PolicyInfo, breaker: BreakerSettings, limits: RouteLimits) -> Self {
        Self { slot: Slot::new(policy, info, breaker), witness: Witness::none(), limits, fallback: LeastLoadedRoute }
    }

    /// A valid decision: `Forward` names at least one lane, eligible ones only, best first. Which lanes are eligible is said by
    /// the column `kind::ELIGIBLE`, or `kind::HEALTHY` without it, or all.
    pub fn decide(&self, now_us: u64, request: &RouteRequest, lanes: &Table, tenants: &Table) -> Answer<Decision> {
        self.decide_by(now_us, request, (lanes, tenants), |decision| validate_decision(decision, lanes, &self.limits))
    }

    /// The same about a request that was held as long as may be: another hold is an invalid answer, and the fallback decides.
    pub fn decide_at_last(&self, now_us: u64, request: &RouteRequest, lanes: &Table, tenants: &Table) -> Answer<Decision> {
        self.decide_by(now_us, request, (lanes, tenants), |decision| match decision {
            Decision::Hold(_) => Err(InvalidAnswer::HeldTooLong),
            decision => validate_decision(decision, lanes, &self.limits),
        })
    }

    fn decide_by(
        &self,
        now_us: u64,
        request: &RouteRequest,
        (lanes, tenants): (&Table, &Table),
        validate: impl FnOnce(Decision) -> Result<Decision, InvalidAnswer>,
    ) -> Answer<Decision> {
        let answer = self.slot.call(
            Moment { now_us, within_us: None },
            |policy| policy.decide(request, lanes, tenants),
            validate,
            || self.fallback.route(lanes),
        );
        if let Some(witness) = self.witness.get() {
            witness(request, lanes, tenants, &answer);
        }
        answer
    }

    /// What the operator allows a route to do.
    #[must_use]
    pub fn limits(&self) -> RouteLimits {
        self.limits
    }

    /// Has decisions seen from now on, by this one alone.
    pub fn witnessed_by(&self, witness: Arc<RouteWitness>) {
        self.witness.set(Some(witness));
    }

    /// Has decisions seen by nobody, if this one sees them; one that came after it goes on.
    pub fn forget_witness(&self, witness: &Arc<RouteWitness>) {
        self.witness.forget(witness);
    }
}

impl ScheduleSlot {
    #[must_use]
    pub fn new(policy: Box<dyn SchedulePolicy>, info: PolicyInfo, breaker: BreakerSettings) -> Self {
        Self { slot: Slot::new(policy, info, breaker), witness: Witness::none(), fallback: FairSchedule }
    }

    /// A plan within the bounds of `budget`; memory is the caller's to check. A policy that does not answer within the budget's
    /// time while its own limit has not passed is late, which is not held against it; see [`crate::FaultKind::Late`].
    pub fn plan_step(&self, now_us: u64, budget: &Budget, rows: &Table, tenants: &Table) -> Answer<Plan> {
        let answer = self.slot.call(
            Moment { now_us, within_us: budget.answer_within_us },
            |policy| policy.plan_step(budget, rows, tenants),
            |plan| validate_plan(&plan, budget, rows).map(|()| plan),
            || self.fallback.plan(budget, rows, tenants),
        );
        if let Some(witness) = self.witness.get() {
            witness(budget, rows, tenants, &answer);
        }
        answer
    }

    /// Has decisions seen from now on, by this one alone.
    pub fn witnessed_by(&self, witness: Arc<ScheduleWitness>) {
        self.witness.set(Some(witness));
    }

    /// This generation has proven itself in another slot that it is in force in; nothing, where it is not in force here any more.
    pub fn proven_elsewhere(&self, generation: u64) {
        let active = &mut self.slot.lock().lineage.active;
        if active.number == generation {
            active.proven_elsewhere();
        }
    }

    /// Has decisions seen by nobody, if this one sees them; one that came after it goes on.
    pub fn forget_witness(&self, witness: &Arc<ScheduleWitness>) {
        self.witness.forget(witness);
    }
}

impl PrecisionSlot {
    #[must_use]
    pub fn new(policy: Box<dyn PrecisionPolicy>, info: PolicyInfo, breaker: BreakerSettings, fallback: TierPrecision) -> Self {
        Self { slot: Slot::new(policy, info, breaker), witness: Witness::none(), fallback }
    }

    /// One choice per ask, each a row of `precisions`, which has at least one row.
    pub fn choose(&self, now_us: u64, asks: &[Ask], precisions: &Table, tenants: &Table) -> Answer<Vec<Choice>> {
        let answer = self.slot.call(
            Moment { now_us, within_us: None },
            |policy| policy.choose(asks, precisions, tenants),
            |choices| validate_choices(&choices, asks, precisions).map(|()| choices),
            || self.fallback.choices(asks, precisions, tenants),
        );
        if let Some(witness) = self.witness.get() {
            witness(asks, precisions, tenants, &answer);
        }
        answer
    }

    /// Has decisions seen from now on, by this one alone.
    pub fn witnessed_by(&self, witness: Arc<PrecisionWitness>) {
        self.witness.set(Some(witness));
    }

    /// Has decisions seen by nobody, if this one sees them; one that came after it goes on.
    pub fn forget_witness(&self, witness: &Arc<PrecisionWitness>) {
        self.witness.forget(witness);
    }
}

macro_rules! management {
    ($slot:ident, $policy:ident) => {
        impl $slot {
            /// The policy that the slot was made with is the built-in, which roll backs end at; this one is in force first.
            #[must_use]
            pub fn starting_with(mut self, policy: Box<dyn $policy>, info: PolicyInfo) -> Self {
                self.slot = self.slot.starting_with(policy, info);
                self
            }

            /// Has roll backs told that nobody asked for, on the thread of the call that brought one about.
            #[must_use]
            pub fn watched_by(mut self, watcher: impl Fn(&RolledBack) + Send + Sync + 'static) -> Self {
                self.slot = self.slot.watched_by(Box::new(watcher));
                self
            }

            /// Has every new fault told, with the generation that it is of, on the thread of the call: must return soon.
            #[must_use]
            pub fn telling_faults_to(mut self, watcher: impl Fn(u64, &crate::PolicyFault) + Send + Sync + 'static) -> Self {
                self.slot = self.slot.telling_faults_to(Box::new(watcher));
                self
            }

            /// Puts a policy in force and returns who was: atomic, calls in flight finish on the old one. The old one stays ready
            /// for [`Self::roll_back`] if it is proven (see [`crate::PROVEN_CALLS`]) and not failing; of those that stay there are
            /// at most [`crate::MAX_EARLIER`], and the built-in beside them. What the old one knows goes along where both can do
            /// that; where it cannot, the new one starts empty.
            pub fn swap(&self, policy: Box<dyn $policy>, info: PolicyInfo) -> PolicyInfo {
                self.slot.swap(policy, info)
            }

            /// As [`Self::swap`], for a policy that took a while to load: none where somebody asked for a roll back or the built-in since
            /// [`Self::recalls`] gave this number, whose word is the later one; nothing changes then.
            pub fn swap_since(&self, recalls: u64, policy: Box<dyn $policy>, info: PolicyInfo) -> Option<PolicyInfo> {
                self.slot.swap_since(recalls, policy, info)
            }

            /// How often somebody asked for a roll back or the built-in; those that nobody asked for do not count.
            #[must_use]
            pub fn recalls(&self) -> u64 {
                self.slot.recalls()
            }

            /// Returns to the last proven policy before this one, which is dropped; after the last of them to the built-in. Tells
            /// who is in force now; none if the built-in was. What fails too often is rolled back by the same rule.
            pub fn roll_back(&self) -> Option<PolicyInfo> {
                self.slot.roll_back()
            }

            /// Returns to the built-in at once, past all others, which are dropped. Tells who that is.
            pub fn return_to_builtin(&self) -> PolicyInfo {
                self.slot.return_to_base()
            }

            /// Tells the policy of a generation what became of requests, with the columns that `wit/feedback.wit` names. None: it
            /// is not in force any more or does not want to hear; else how that went, which changes no decision.
            pub fn observe(&self, now_us: u64, generation: u64, outcomes: &Table) -> Option<Result<(), crate::FaultKind>> {
                self.slot.observe(now_us, generation, outcomes)
            }

            /// Number of the policy in force, if it wants to hear what became of requests.
            #[must_use]
            pub fn hears(&self) -> Option<u64> {
                self.slot.hears()
            }

            /// Number of the policy in force: changes with every swap and roll back, the automatic ones included.
            #[must_use]
            pub fn generation(&self) -> u64 {
                self.slot.generation()
            }

            #[must_use]
            pub fn status(&self) -> SlotStatus {
                self.slot.status()
            }
        }
    };
}

management!(RouteSlot, RoutePolicy);
management!(ScheduleSlot, SchedulePolicy);
management!(PrecisionSlot, PrecisionPolicy);

#[cfg(test)]
mod tests;
