//! The three worlds: the types of each decision, and how one call is made. Conversion is `wire`'s, rules are `millrace-policy`'s.

use millrace_policy as host;
use wasmtime::component::{ComponentNamedList, Lift, Lower, TypedFunc};

use crate::instance::{Fault, Instance};
use crate::options::PolicyKind;
use crate::smoke;
use crate::wire::{self, Ask, Budget, Choice, Decision, Plan, Request, Table};

/// One of the worlds in `wit/worlds.wit`.
pub(crate) trait World: Sized + Send + 'static {
    const KIND: PolicyKind;
    type Arguments: ComponentNamedList + Lower + Send + Sync + 'static;
    type Answer: ComponentNamedList + Lift + Send + Sync + 'static;

    /// Decisions on made-up facts, validated as the slots do; an error tells the author what went wrong.
    fn smoke(instance: &mut Instance<Self>, wants: &[u32]) -> Result<(), String>;
}

/// The export that decides.
pub(crate) type Decide<W> = TypedFunc<<W as World>::Arguments, <W as World>::Answer>;

#[derive(Debug)]
pub(crate) struct PrecisionWorld;

#[derive(Debug)]
pub(crate) struct RouteWorld;

#[derive(Debug)]
pub(crate) struct ScheduleWorld;

impl World for PrecisionWorld {
    const KIND: PolicyKind = PolicyKind::Precision;
    type Arguments = (Vec<Ask>, Table, Table);
    type Answer = (Vec<Choice>,);

    fn smoke(instance: &mut Instance<Self>, wants: &[u32]) -> Result<(), String> {
        smoke::precision(instance, wants)
    }
}

impl World for RouteWorld {
    const KIND: PolicyKind = PolicyKind::Route;
    type Arguments = (Request, Table, Table);
    type Answer = (Decision,);

    fn smoke(instance: &mut Instance<Self>, wants: &[u32]) -> Result<(), String> {
        smoke::route(instance, wants)
    }
}

impl World for ScheduleWorld {
    const KIND: PolicyKind = PolicyKind::Schedule;
    type Arguments = (Budget, Table, Table);
    type Answer = (Plan,);

    fn smoke(instance: &mut Instance<Self>, wants: &[u32]) -> Result<(), String> {
        smoke::schedule(instance, wants)
    }
}

/// How a decision is asked for: its number, its deadline, and the columns that the policy wants.
#[derive(Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub(crate) call: u64,
    pub(crate) deadline_us: u64,
    pub(crate) wants: &'a [u32],
}

pub(crate) fn choose(
    instance: &mut Instance<PrecisionWorld>,
    asking: Asking<'_>,
    asks: &[host::Ask],
    precisions: &host::Table,
    tenants: &host::Table,
) -> Result<Vec<host::Choice>, Fault> {
    let asks = asks.iter().map(Ask::from).collect();
    let arguments = (asks, wire::table(precisions, asking.wants), wire::table(tenants, asking.wants));
    let (choices,) = instance.decide(asking, arguments)?;
    Ok(choices.into_iter().map(host::Choice::from).collect())
}

pub(crate) fn decide(
    instance: &mut Instance<RouteWorld>,
    asking: Asking<'_>,
    request: &host::RouteRequest,
    lanes: &host::Table,
    tenants: &host::Table,
) -> Result<host::Decision, Fault> {
    let arguments = (Request::from(request), wire::table(lanes, asking.wants), wire::table(tenants, asking.wants));
    let (decision,) = instance.decide(asking, arguments)?;
    Ok(decision.into())
}

pub(crate) fn plan_step(
    instance: &mut Instance<ScheduleWorld>,
    asking: Asking<'_>,
    budget: &host::Budget,
    rows: &host::Table,
    tenants: &host::Table,
) -> Result<host::Plan, Fault> {
    let arguments = (Budget::from(budget), wire::table(rows, asking.wants), wire::table(tenants, asking.wants));
    let (plan,) = instance.decide(asking, arguments)?;
    Ok(plan.into())
}
