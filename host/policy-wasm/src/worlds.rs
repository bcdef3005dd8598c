//! The three worlds: the types of each decision, and how one call is made. Conversion is `wire`'s, rules are `millrace-policy`'s.

use millrace_policy as host;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wasmtime::component::{ComponentNamedList, Lift, Lower, TypedFunc};

use crate::agree;
use crate::instance::Instance;
use crate::options::PolicyKind;
use crate::smoke;
use crate::wire::{self, Ask, Budget, Choice, Decision, Plan, Request, Table};

/// One of the worlds in `wit/worlds.wit`.
pub(crate) trait World: Sized + Send + 'static {
    const KIND: PolicyKind;
    type Arguments: ComponentNamedList + Lower + Clone + Serialize + DeserializeOwned + Send + Sync + 'static;
    type Answer: ComponentNamedList + Lift + Clone + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static;

    /// Leaves out columns that the policy does not want; see `wire::narrow`.
    fn narrow(arguments: &mut Self::Arguments, wants: &[u32]);

    /// Whether a host does the same with two answers to the same question; see `agree`.
    fn agree(asked: &Self::Arguments, one: &Self::Answer, other: &Self::Answer) -> bool;

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

    fn narrow((_, facts, tenants): &mut Self::Arguments, wants: &[u32]) {
        wire::narrow(facts, wants);
        wire::narrow(tenants, wants);
    }

    fn agree(asked: &Self::Arguments, (one,): &Self::Answer, (other,): &Self::Answer) -> bool {
        agree::precision(asked, one, other)
    }

    fn smoke(instance: &mut Instance<Self>, wants: &[u32]) -> Result<(), String> {
        smoke::precision(instance, wants)
    }
}

impl World for RouteWorld {
    const KIND: PolicyKind = PolicyKind::Route;
    type Arguments = (Request, Table, Table);
    type Answer = (Decision,);

    fn narrow((_, facts, tenants): &mut Self::Arguments, wants: &[u32]) {
        wire::narrow(facts, wants);
        wire::narrow(tenants, wants);
    }

    fn agree(asked: &Self::Arguments, (one,): &Self::Answer, (other,): &Self::Answer) -> bool {
        agree::route(asked, one, other)
    }

    fn smoke(instance: &mut Instance<Self>, wants: &[u32]) -> Result<(), String> {
        smoke::route(instance, wants)
    }
}

impl World for ScheduleWorld {
    const KIND: PolicyKind = PolicyKind::Schedule;
    type Arguments = (Budget, Table, Table);
    type Answer = (Plan,);

    fn narrow((_, facts, tenants): &mut Self::Arguments, wants: &[u32]) {
        wire::narrow(facts, wants);
        wire::narrow(tenants, wants);
    }

    fn agree(asked: &Self::Arguments, (one,): &Self::Answer, (other,): &Self::Answer) -> bool {
        agree::schedule(asked, one, other)
    }

    fn smoke(instance: &mut Instance<Self>, wants: &[u32]) -> Result<(), String> {
        smoke::schedule(instance, wants)
    }
}

/// How a decision is asked for: its number, and its deadline.
#[derive(Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) call: u64,
    pub(crate) deadline_us: u64,
}

pub(crate) fn choose_arguments(
    asks: &[host::Ask],
    precisions: &host::Table,
    tenants: &host::Table,
    wants: &[u32],
) -> (Vec<Ask>, Table, Table) {
    (asks.iter().map(Ask::from).collect(), wire::table(precisions, wants), wire::table(tenants, wants))
}

pub(crate) fn decide_arguments(
    request: &host::RouteRequest,
    lanes: &host::Table,
    tenants: &host::Table,
    wants: &[u32],
) -> (Request, Table, Table) {
    (Request::from(request), wire::table(lanes, wants), wire::table(tenants, wants))
}

pub(crate) fn plan_arguments(
    budget: &host::Budget,
    rows: &host::Table,
    tenants: &host::Table,
    wants: &[u32],
) -> (Budget, Table, Table) {
    (Budget::from(budget), wire::table(rows, wants), wire::table(tenants, wants))
}
