//! A component made ready: compiled, linked and checked, from which instances are made. Shared by all instances of one load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_core::Clock;
use wasmtime::Engine;
use wasmtime::component::{ComponentExportIndex, InstancePre};

use crate::belongings::Belongings;
use crate::builder::Builder;
use crate::imports::GuestContext;
use crate::imports::metrics::MetricTable;
use crate::instance::Owned;
use crate::optional::OptionalExports;
use crate::options::PolicyOptions;
use crate::ticker::Ticker;

/// What ends calls.
pub(crate) enum Bound {
    /// The deadline of each.
    Time(Ticker),
    /// The fuel of each.
    Fuel(u64),
}

/// What one engine shares with all that it loaded; the ticker and the builder end with the last of them.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) bound: Bound,
    pub(crate) builder: Builder,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Where a component keeps the functions that the host calls.
#[derive(Clone, Copy)]
pub(crate) struct Exports {
    pub(crate) init: ComponentExportIndex,
    pub(crate) check_config: ComponentExportIndex,
    pub(crate) decide: ComponentExportIndex,
    pub(crate) optional: OptionalExports,
}

pub(crate) struct Prepared {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pre: InstancePre<GuestContext>,
    pub(crate) exports: Exports,
    pub(crate) options: PolicyOptions,
    pub(crate) name: Arc<str>,
    /// Of the bytes as they were given.
    pub(crate) sha256: String,
    /// First 8 bytes of it.
    pub(crate) digest_seed: u64,
    pub(crate) belongings: Arc<Belongings>,
    pub(crate) metrics: Arc<MetricTable>,
    pub(crate) calls: AtomicU64,
}

impl Prepared {
    /// What instances that serve work on.
    pub(crate) fn owned(&self) -> Owned {
        Owned { belongings: self.belongings.clone(), metrics: self.metrics.clone() }
    }

    /// Numbers decisions from 1, over all instances.
    pub(crate) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}
