//! The one Wasm engine of a process: its settings, its threads, and what belongs to policy names. It does not know TOML or HTTP.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::Clock;
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, WasmBacktraceDetails};

use crate::belongings::Belongings;
use crate::builder::Builder;
use crate::compile::CompileGate;
use crate::prepared::{Bound, Shared};
use crate::ticker::Ticker;
use crate::{EngineError, LoadError, LoadedPolicy, PolicyKind, PolicyOptions, load};

/// What ends a call of a guest that does not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallBound {
    /// The deadlines of its policy: for whoever waits for the answer.
    Time,
    /// So many units of fuel, about one for each instruction, whatever its deadlines: the same on every machine, however busy. What is
    /// rebuilt then is rebuilt on the caller's thread. For simulations.
    Fuel(u64),
}

/// What the whole process allows.
#[derive(Clone)]
pub struct EngineOptions {
    /// What guests see as time; the same clock as all `-us` facts.
    pub clock: Arc<dyn Clock>,
    /// Instances at one time: policies in force, the earlier ones on their way back, those being loaded and those being dropped.
    pub max_instances: u32,
    /// Largest linear memory of any policy; a policy's own limit may be smaller, not larger.
    pub max_memory_bytes: usize,
    /// Precision of deadlines, at least 100.
    pub tick_us: u64,
    pub bound: CallBound,
}

impl EngineOptions {
    /// 64 instances, 256 MiB, calls bounded by time, to half a millisecond.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, max_instances: 64, max_memory_bytes: 256 << 20, tick_us: 500, bound: CallBound::Time }
    }
}

/// Loads policies. Clones share everything.
#[derive(Clone)]
pub struct PolicyEngine(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) compiles: CompileGate,
    belongings: Mutex<BTreeMap<String, Arc<Belongings>>>,
}

impl PolicyEngine {
    /// # Errors
    /// The machine gives no address space or no threads.
    pub fn new(options: EngineOptions) -> Result<Self, EngineError> {
        let engine = start(&options)?;
        let (bound, builder) = match options.bound {
            CallBound::Time => (Bound::Time(Ticker::start(&engine, options.tick_us)?), Builder::start()?),
            CallBound::Fuel(most) => (Bound::Fuel(most), Builder::AtOnce),
        };
        let shared = Arc::new(Shared { engine, bound, builder, clock: options.clock });
        let belongings = Mutex::new(BTreeMap::new());
        Ok(Self(Arc::new(Inner { shared, compiles: CompileGate::default(), belongings })))
    }

    /// Verifies, compiles, links and tries a policy, on the caller's thread and a compile thread: call it off the serving path.
    /// `source` is a component, or a core module with component types.
    ///
    /// # Errors
    /// Says what is wrong and how to mend it; nothing that serves is touched.
    pub fn load(&self, source: &[u8], kind: PolicyKind, options: &PolicyOptions) -> Result<LoadedPolicy, LoadError> {
        load::load(&self.0, source, options, (kind, self.0.belongings(&options.name)))
    }

    /// As [`Self::load`], with state and log budget that are nobody else's, whatever the name.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_apart(&self, source: &[u8], kind: PolicyKind, options: &PolicyOptions) -> Result<LoadedPolicy, LoadError> {
        load::load(&self.0, source, options, (kind, Arc::new(Belongings::new())))
    }

    /// A policy that was loaded under another name, for a trial, under the name of these options: it has that name's state, and is
    /// recorded as they say. Nothing is compiled again.
    #[must_use]
    pub fn renamed(&self, loaded: &LoadedPolicy, options: &PolicyOptions) -> LoadedPolicy {
        loaded.renamed(self.0.belongings(&options.name), options)
    }
}

impl Inner {
    /// State and log budget of a name, the same for every load of it.
    pub(crate) fn belongings(&self, name: &str) -> Arc<Belongings> {
        let mut all = self.belongings.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name.to_owned()).or_insert_with(|| Arc::new(Belongings::new())).clone()
    }
}

/// Pooled instances where the address space allows, else one at a time.
fn start(options: &EngineOptions) -> Result<Engine, EngineError> {
    let mut config = config(options.bound);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(options)));
    Engine::new(&config).or_else(|error| {
        tracing::warn!(target: "millrace::policy", "no pool of instances, each is mapped by itself: {error:#}");
        config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
        Engine::new(&config).map_err(|error| EngineError::Wasm { detail: format!("{error:#}") })
    })
}

/// Everything off that policies do not need; what toolchains emit (bulk memory, SIMD, reference types, multi-value) stays on.
fn config(bound: CallBound) -> Config {
    let mut config = Config::new();
    // Decisions are plain synchronous calls; this also takes the component model's async parts out of reach.
    config.concurrency_support(false);
    config.epoch_interruption(bound == CallBound::Time).consume_fuel(bound != CallBound::Time);
    // Floats of a replayed decision have the same bits.
    config.cranelift_nan_canonicalization(true);
    config.gc_support(false).wasm_gc(false).wasm_function_references(false).wasm_exceptions(false);
    config.wasm_threads(false).shared_memory(false).wasm_memory64(false);
    // The runtime of JavaScript guests needs them; a loop of them meets the epoch at every function as any other does.
    config.wasm_tail_call(true);
    config.wasm_relaxed_simd(false).wasm_wide_arithmetic(false).wasm_stack_switching(false).wasm_custom_page_sizes(false);
    config.memory_init_cow(true).parallel_compilation(true);
    // A host thread must have this much stack left; threads have 2 MiB.
    config.max_wasm_stack(512 << 10);
    config.wasm_backtrace_max_frames(NonZeroUsize::new(8)).wasm_backtrace_details(WasmBacktraceDetails::Disable);
    config
}

/// Places of instances that are kept as they were left, for the next instance.
const WARM_PLACES: u32 = 16;

/// Interpreters in components bring a dozen core modules with tables of thousands of elements, so an instance may be large;
/// there are few of them.
fn pool(options: &EngineOptions) -> PoolingAllocationConfig {
    let instances = options.max_instances.max(4);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(16))
        .total_memories(instances.saturating_mul(2))
        .total_tables(instances.saturating_mul(8))
        .max_component_instance_size(4 << 20)
        .max_core_instance_size(4 << 20)
        .max_core_instances_per_component(200)
        .max_memories_per_component(8)
        .max_tables_per_component(64)
        .max_memory_size(options.max_memory_bytes)
        .table_elements(200_000)
        // A rebuilt instance finds its first pages and tables mapped; so does one of another component, in the place that was free
        // longest, once so many are free: otherwise each swap would take a fresh place until there is none, and keep all of them.
        .max_unused_warm_slots(WARM_PLACES)
        .linear_memory_keep_resident(1 << 20)
        .table_keep_resident(64 << 10);
    pool
}
