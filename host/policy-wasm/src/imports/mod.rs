//! What a guest may call: log, clock, random, metrics, state. Each import is inert: it cannot fail the host or reach beyond it.
//! It does not know which decision a guest makes.

pub(crate) mod clock_random;
pub(crate) mod journal;
mod log;
pub(crate) mod metrics;
mod state;

use std::sync::Arc;

use wasmtime::component::{HasSelf, Linker};

use crate::belongings::Belongings;
use crate::deadline::Deadline;
use crate::limiter::Limiter;
use crate::options::{Grant, PolicyLimits};
use journal::Journal;
use metrics::MetricTable;

mod bindings {
    wasmtime::component::bindgen!({ path: "../../wit", world: "imports" });
}

pub(crate) const TYPES: &str = "millrace:policy/types@0.1.0";

/// The data of a store: all that an instance's imports work on.
pub(crate) struct GuestContext {
    pub(crate) limiter: Limiter,
    pub(crate) limits: PolicyLimits,
    /// The policy's name in the configuration, for the log.
    pub(crate) name: Arc<str>,
    pub(crate) belongings: Arc<Belongings>,
    pub(crate) metrics: Arc<MetricTable>,
    /// Frozen for the call.
    pub(crate) now_us: u64,
    /// State of the call's random sequence.
    pub(crate) random: u64,
    /// Whether metric names may be registered: in `init`.
    pub(crate) is_initializing: bool,
    pub(crate) deadline: Deadline,
    /// Of what imports give, while a call is recorded or replayed.
    pub(crate) journal: Journal,
}

/// A linker with what was granted, and with what needs no grant.
pub(crate) fn link(linker: &mut Linker<GuestContext>, grants: &[Grant]) -> wasmtime::Result<()> {
    use bindings::millrace::policy;
    // Types only, but an interface nevertheless.
    linker.instance(TYPES)?;
    policy::clock::add_to_linker::<_, HasSelf<_>>(linker, |context: &mut GuestContext| context)?;
    policy::random::add_to_linker::<_, HasSelf<_>>(linker, |context: &mut GuestContext| context)?;
    if grants.contains(&Grant::Log) {
        policy::log::add_to_linker::<_, HasSelf<_>>(linker, |context: &mut GuestContext| context)?;
    }
    if grants.contains(&Grant::Metrics) {
        policy::metrics::add_to_linker::<_, HasSelf<_>>(linker, |context: &mut GuestContext| context)?;
    }
    if grants.contains(&Grant::State) {
        policy::state::add_to_linker::<_, HasSelf<_>>(linker, |context: &mut GuestContext| context)?;
    }
    Ok(())
}
