//! Whether a host does the same with two answers to one question: both are brought within the host's rules as the slots do it, and what
//! is left is compared as trials compare. Answers that break the same rule agree too. It does not know who answered.

use millrace_policy as host;
use millrace_policy::{InvalidAnswer, RouteLimits};

use crate::wire::{Ask, Budget, Choice, Decision, Plan, Request, Table};

pub(crate) fn precision((asks, precisions, _): &(Vec<Ask>, Table, Table), one: &[Choice], other: &[Choice]) -> bool {
    let (asks, precisions): (Vec<host::Ask>, host::Table) = (asks.iter().map(host::Ask::from).collect(), precisions.into());
    let judged = |choices: &[Choice]| {
        let choices: Vec<host::Choice> = choices.iter().copied().map(host::Choice::from).collect();
        host::validate_choices(&choices, &asks, &precisions).map(|()| choices)
    };
    both(judged(one), judged(other), |one, other| host::same_choices(one, other))
}

pub(crate) fn route((_, lanes, _): &(Request, Table, Table), one: &Decision, other: &Decision) -> bool {
    let lanes: host::Table = lanes.into();
    let judged = |decision: &Decision| host::validate_decision(decision.clone().into(), &lanes, &RouteLimits::default());
    both(judged(one), judged(other), host::same_decision)
}

pub(crate) fn schedule((budget, rows, _): &(Budget, Table, Table), one: &Plan, other: &Plan) -> bool {
    let (budget, rows): (host::Budget, host::Table) = (budget.into(), rows.into());
    let judged = |plan: &Plan| {
        let plan: host::Plan = plan.clone().into();
        host::validate_plan(&plan, &budget, &rows).map(|()| plan)
    };
    both(judged(one), judged(other), |one, other| host::same_plan(one, other, &budget))
}

fn both<T>(one: Result<T, InvalidAnswer>, other: Result<T, InvalidAnswer>, same: impl FnOnce(&T, &T) -> bool) -> bool {
    match (one, other) {
        (Ok(one), Ok(other)) => same(&one, &other),
        (Err(one), Err(other)) => one == other,
        _ => false,
    }
}
