//! The thread's side of a trial: the candidate decides, its answer is brought within the host's rules, and both are compared by what
//! a host would do with them. It does not know where decisions come from.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millrace_policy::{
    Ask, Budget, Choice, Decision, FaultKind, Plan, PolicyFault, PrecisionPolicy, RouteLimits, RoutePolicy, RouteRequest,
    SchedulePolicy, Table, same_choices, same_decision, same_plan, validate_choices, validate_decision, validate_plan,
};
use millrace_policy_wasm::{LoadError, LoadedPolicy, PolicyKind};

use super::Desk;

/// Between two tries where no instance is ready.
const REST: Duration = Duration::from_millis(1);

enum Candidate {
    Precision(Box<dyn PrecisionPolicy>),
    Route(Box<dyn RoutePolicy>),
    Schedule(Box<dyn SchedulePolicy>),
}

pub(super) struct Trial {
    candidate: Candidate,
    kind: PolicyKind,
    pub(super) desk: Arc<Desk>,
}

impl Trial {
    /// # Errors
    /// No instance.
    pub(super) fn new(loaded: &LoadedPolicy, desk: Arc<Desk>) -> Result<Self, LoadError> {
        let candidate = match loaded.kind() {
            PolicyKind::Precision => Candidate::Precision(loaded.precision()?),
            PolicyKind::Route => Candidate::Route(loaded.route()?),
            PolicyKind::Schedule => Candidate::Schedule(loaded.schedule()?),
        };
        Ok(Self { candidate, kind: loaded.kind(), desk })
    }

    pub(super) fn choose(&mut self, asks: &[Ask], precisions: &Table, tenants: &Table, in_force: &[Choice]) {
        let Candidate::Precision(policy) = &mut self.candidate else { return };
        let answer = ready(|| policy.choose(asks, precisions, tenants)).and_then(|choices| {
            validate_choices(&choices, asks, precisions).map_err(|invalid| invalid.to_string())?;
            Ok(choices)
        });
        if answer.is_err() {
            policy.recover();
        }
        let answer = answer.map(|choices| (same_choices(&choices, in_force), format!("{choices:?}")));
        self.compare(answer, || format!("{in_force:?}"));
    }

    pub(super) fn decide(
        &mut self,
        (request, lanes, tenants): (&RouteRequest, &Table, &Table),
        limits: &RouteLimits,
        in_force: &Decision,
    ) {
        let Candidate::Route(policy) = &mut self.candidate else { return };
        let answer = ready(|| policy.decide(request, lanes, tenants))
            .and_then(|decision| validate_decision(decision, lanes, limits).map_err(|invalid| invalid.to_string()));
        if answer.is_err() {
            policy.recover();
        }
        let answer = answer.map(|decision| (same_decision(&decision, in_force), format!("{decision:?}")));
        self.compare(answer, || format!("{in_force:?}"));
    }

    pub(super) fn plan(&mut self, budget: &Budget, rows: &Table, tenants: &Table, in_force: &Plan) {
        let Candidate::Schedule(policy) = &mut self.candidate else { return };
        let answer = ready(|| policy.plan_step(budget, rows, tenants)).and_then(|plan| {
            validate_plan(&plan, budget, rows).map_err(|invalid| invalid.to_string())?;
            Ok(plan)
        });
        if answer.is_err() {
            policy.recover();
        }
        let answer = answer.map(|plan| (same_plan(&plan, in_force, budget), format!("{plan:?}")));
        self.compare(answer, || format!("{in_force:?}"));
    }

    fn compare(&self, answer: Result<(bool, String), String>, in_force: impl FnOnce() -> String) {
        match answer {
            Ok((agreed, candidate)) => self.desk.compared(agreed, || (in_force(), candidate)),
            Err(fault) => {
                if let Some(why) = self.desk.failed(fault) {
                    let kind = self.kind;
                    tracing::warn!(target: "millrace::audit", %kind, why, "policy's trial ended by the host; mend it and try again");
                }
            }
        }
    }
}

/// Off the hot path there is time to wait for a fresh instance, within bounds.
fn ready<T>(mut ask: impl FnMut() -> Result<T, PolicyFault>) -> Result<T, String> {
    for _ in 0..1_000 {
        match ask() {
            Err(fault) if fault.kind == FaultKind::Unavailable => thread::sleep(REST),
            answer => return answer.map_err(|fault| fault.to_string()),
        }
    }
    Err("no fresh instance for a second".to_owned())
}
