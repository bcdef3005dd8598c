//! One component instance in a store of its own. Every entry sets the deadline first and runs behind `catch_unwind`; after an
//! error the caller drops the instance. It does not know which decision is made.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use millrace_policy::FaultKind;
use wasmtime::component::TypedFunc;
use wasmtime::{Store, Trap, UpdateDeadline};

use crate::belongings::Belongings;
use crate::deadline::Deadline;
use crate::fault::{classify, one_line};
use crate::imports::GuestContext;
use crate::imports::clock_random::seed;
use crate::imports::journal::{Journal, Script};
use crate::imports::metrics::MetricTable;
use crate::limiter::Limiter;
use crate::optional::OptionalFunctions;
use crate::prepared::{Bound, Prepared};
use crate::ticker::ticks;
use crate::trace::{self, Imports};
use crate::wire::Info;
use crate::worlds::{Asking, Decide, World};

/// What goes wrong in a guest: kind and detail.
pub(crate) type Fault = (FaultKind, String);

/// Why there is no instance.
pub(crate) enum StartError {
    /// An export has other types than `wire`.
    Types(String),
    Fault(Fault),
}

impl From<Fault> for StartError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<StartError> for Fault {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Types(detail) => (FaultKind::Invalid, detail),
            StartError::Fault(fault) => fault,
        }
    }
}

type Init = TypedFunc<(String,), (Result<Info, String>,)>;
type CheckConfig = TypedFunc<(String,), (Result<(), Vec<String>>,)>;

/// Whose state and metrics an instance works on: the policy's, or throw-away ones while it is on trial.
pub(crate) struct Owned {
    pub(crate) belongings: Arc<Belongings>,
    pub(crate) metrics: Arc<MetricTable>,
}

pub(crate) struct Instance<W: World> {
    prepared: Arc<Prepared>,
    store: Store<GuestContext>,
    init: Init,
    check_config: CheckConfig,
    decide: Decide<W>,
    optional: OptionalFunctions,
    /// Memory after `init`.
    settled_bytes: usize,
    /// In a recording; 0: nothing of it is recorded yet.
    number: u64,
    /// How it began, until that is in the recording: with its first decision, because an instance that nobody asks is none of it.
    beginning: Option<Box<trace::Init>>,
    /// Events for which the recording had no room since the last one that it has.
    missed: u64,
}

impl<W: World> Instance<W> {
    /// Instantiates within the setup deadline and looks up the exports; nothing of the policy's is called but start functions.
    pub(crate) fn new(prepared: &Arc<Prepared>, owned: Owned) -> Result<Self, StartError> {
        let limits = &prepared.options.limits;
        let deadline = Deadline::default();
        let context = GuestContext {
            limiter: Limiter::new(limits.memory_bytes, limits.table_elements),
            limits: limits.clone(),
            name: prepared.name.clone(),
            belongings: owned.belongings,
            metrics: owned.metrics,
            now_us: prepared.shared.clock.now_us(),
            random: seed(prepared.digest_seed, 0),
            is_initializing: true,
            deadline: deadline.clone(),
            journal: Journal::Off,
        };
        let mut store = Store::new(&prepared.shared.engine, context);
        store.limiter(|context| &mut context.limiter);
        if let Bound::Time(ticker) = &prepared.shared.bound {
            interrupt(&mut store, deadline.clone(), ticker.tick_us());
        }
        store.set_hostcall_fuel(limits.output_bytes);
        // No policy world has resources.
        store.set_max_component_handles(16);
        let instance = guarded(prepared, &mut store, limits.setup_us, |store| prepared.pre.instantiate(store))?;
        let exports = &prepared.exports;
        let types = |error: wasmtime::Error| StartError::Types(one_line(&format!("{error:#}")));
        let init = instance.get_typed_func(&mut store, exports.init).map_err(types)?;
        let check_config = instance.get_typed_func(&mut store, exports.check_config).map_err(types)?;
        let decide = instance.get_typed_func(&mut store, exports.decide).map_err(types)?;
        let optional = OptionalFunctions::of(&instance, &mut store, exports.optional).map_err(types)?;
        let prepared = prepared.clone();
        Ok(Self {
            prepared,
            store,
            init,
            check_config,
            decide,
            optional,
            settled_bytes: 0,
            number: 0,
            beginning: None,
            missed: 0,
        })
    }

    /// The guest's own answer is the inner result.
    pub(crate) fn init(&mut self) -> Result<Result<Info, String>, Fault> {
        self.init_with(self.prepared.options.config_json.clone())
    }

    /// As [`Self::init`], with another table than the options have.
    pub(crate) fn init_with(&mut self, config: String) -> Result<Result<Info, String>, Fault> {
        let init = self.init;
        self.store.data_mut().is_initializing = true;
        let setup_us = self.prepared.options.limits.setup_us;
        let (info,) = guarded(&self.prepared, &mut self.store, setup_us, |store| init.call(store, (config,)))?;
        self.store.data_mut().is_initializing = false;
        self.settled_bytes = self.memory_bytes();
        Ok(info)
    }

    pub(crate) fn check_config(&mut self) -> Result<Result<(), Vec<String>>, Fault> {
        let (check, config) = (self.check_config, self.prepared.options.config_json.clone());
        self.store.data_mut().is_initializing = false;
        let setup_us = self.prepared.options.limits.setup_us;
        guarded(&self.prepared, &mut self.store, setup_us, |store| check.call(store, (config,))).map(|(faults,)| faults)
    }

    /// One decision.
    pub(crate) fn decide(&mut self, asking: Asking, arguments: W::Arguments) -> Result<W::Answer, Fault> {
        self.moment(self.prepared.shared.clock.now_us(), seed(self.prepared.digest_seed, asking.call));
        self.decide_now(asking, arguments)
    }

    /// One decision at the moment that was set.
    pub(crate) fn decide_now(&mut self, asking: Asking, arguments: W::Arguments) -> Result<W::Answer, Fault> {
        let decide = self.decide;
        guarded(&self.prepared, &mut self.store, asking.deadline_us, |store| decide.call(store, arguments))
    }

    /// Enters the guest for what is no decision.
    pub(crate) fn entered<R>(
        &mut self,
        deadline_us: u64,
        work: impl FnOnce(&mut Store<GuestContext>) -> wasmtime::Result<R>,
    ) -> Result<R, Fault> {
        guarded(&self.prepared, &mut self.store, deadline_us, work)
    }

    pub(crate) fn optional(&self) -> &OptionalFunctions {
        &self.optional
    }

    pub(crate) fn hands_over(&self) -> bool {
        self.prepared.exports.optional.hands_over()
    }

    pub(crate) fn digest_seed(&self) -> u64 {
        self.prepared.digest_seed
    }

    /// Of the host, where [`Self::now_us`] is what the guest is told.
    pub(crate) fn clock_us(&self) -> u64 {
        self.prepared.shared.clock.now_us()
    }

    /// What clock and random give from now on.
    pub(crate) fn moment(&mut self, now_us: u64, random: u64) {
        let context = self.store.data_mut();
        (context.now_us, context.random) = (now_us, random);
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.store.data().now_us
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn began_as(&mut self, beginning: trace::Init) {
        self.beginning = Some(Box::new(beginning));
    }

    /// How it began, if that has yet to be recorded.
    pub(crate) fn take_beginning(&mut self) -> Option<Box<trace::Init>> {
        self.beginning.take()
    }

    /// The number that names it in the recording from now on.
    pub(crate) fn count_as(&mut self, number: u64) {
        self.number = number;
    }

    /// Events for which the recording had no room.
    pub(crate) fn miss(&mut self, events: u64) {
        self.missed = self.missed.saturating_add(events);
    }

    /// How many there were since the last that it has.
    pub(crate) fn take_missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }

    /// From now on, until they are taken.
    pub(crate) fn record_imports(&mut self) {
        self.store.data_mut().journal = Journal::Recording(Imports::default());
    }

    pub(crate) fn recorded_imports(&mut self) -> Imports {
        match std::mem::replace(&mut self.store.data_mut().journal, Journal::Off) {
            Journal::Recording(imports) => imports,
            Journal::Off | Journal::Replaying(_) => Imports::default(),
        }
    }

    /// Imports give what they gave then.
    pub(crate) fn replay_imports(&mut self, imports: Imports) {
        self.store.data_mut().journal = Journal::Replaying(Script::new(imports));
    }

    /// How often the guest asked for something else than then.
    pub(crate) fn diverged_imports(&mut self) -> u64 {
        match std::mem::replace(&mut self.store.data_mut().journal, Journal::Off) {
            Journal::Replaying(script) => script.diverged(),
            Journal::Off | Journal::Recording(_) => 0,
        }
    }

    pub(crate) fn setup_us(&self) -> u64 {
        self.prepared.options.limits.setup_us
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.store.data().limiter.memory_bytes()
    }

    /// Whether linear memory, which never shrinks, grew so near to its limit that a fresh instance is due.
    pub(crate) fn is_swollen(&self) -> bool {
        let bound = self.prepared.options.limits.memory_bytes / 4 * 3;
        self.settled_bytes < bound && self.memory_bytes() >= bound
    }
}

/// What happens when the epochs of a call are over: the call goes on if its thread had no core meanwhile.
/// Only time is looked at here; the store is not touched while a guest is in it.
fn interrupt(store: &mut Store<GuestContext>, deadline: Deadline, tick_us: u64) {
    store.epoch_deadline_callback(move |_| {
        let left = deadline.left().ok_or(Trap::Interrupt)?;
        let left_us = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
        Ok(UpdateDeadline::Continue(ticks(left_us, tick_us)))
    });
}

/// The only way into a guest.
fn guarded<R>(
    prepared: &Prepared,
    store: &mut Store<GuestContext>,
    deadline_us: u64,
    work: impl FnOnce(&mut Store<GuestContext>) -> wasmtime::Result<R>,
) -> Result<R, Fault> {
    store.data_mut().limiter.begin_call();
    let ticking = match &prepared.shared.bound {
        Bound::Time(ticker) => {
            store.data().deadline.begin(deadline_us);
            store.set_epoch_deadline(ticks(deadline_us, ticker.tick_us()));
            Some(ticker.tick())
        }
        Bound::Fuel(most) => {
            let without = |error: wasmtime::Error| (FaultKind::Trap, one_line(&format!("no fuel can be given: {error:#}")));
            store.set_fuel(*most).map_err(without)?;
            None
        }
    };
    let result = catch_unwind(AssertUnwindSafe(|| work(store)));
    drop(ticking);
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(classify(&error, store.data().limiter.has_refused())),
        Err(_) => Err((FaultKind::Trap, "the host panicked while it called the policy: this is a bug".to_owned())),
    }
}
