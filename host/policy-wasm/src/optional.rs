//! The optional interfaces, `feedback` and `handover`: found by probing exports, called as decisions are, with the same limits, deadline
//! and end of an instance that fails. It does not know what is told or carried.

use millrace_policy as host;
use millrace_policy::{FaultKind, MAX_HANDOVER_BYTES, PolicyFault};
use wasmtime::Store;
use wasmtime::component::{Component, ComponentExportIndex, Instance as Exported, TypedFunc};

use crate::fault::one_line;
use crate::imports::GuestContext;
use crate::imports::clock_random::seed;
use crate::instance::{Fault, Instance};
use crate::policy::{WasmPolicy, ready_instance};
use crate::trace::{Memory, What};
use crate::wire::{self, Table};
use crate::worlds::World;

const FEEDBACK: &str = "millrace:policy/feedback";
const HANDOVER: &str = "millrace:policy/handover";

/// What may be exported beside lifecycle and decision.
pub(crate) const INTERFACES: [&str; 2] = [FEEDBACK, HANDOVER];

/// Where a component keeps them.
#[derive(Clone, Copy, Default)]
pub(crate) struct OptionalExports {
    observe: Option<ComponentExportIndex>,
    save: Option<ComponentExportIndex>,
    restore: Option<ComponentExportIndex>,
}

impl OptionalExports {
    /// # Errors
    /// An interface is exported without one of its functions, which is told.
    pub(crate) fn probe(component: &Component, version: &str) -> Result<Self, String> {
        let find = |interface: &str, function: &str| match component.get_export_index(None, &*format!("{interface}@{version}")) {
            None => Ok(None),
            Some(instance) => match component.get_export_index(Some(&instance), function) {
                None => Err(format!("{interface}.{function}")),
                found => Ok(found),
            },
        };
        Ok(Self { observe: find(FEEDBACK, "observe")?, save: find(HANDOVER, "save")?, restore: find(HANDOVER, "restore")? })
    }

    pub(crate) fn observes(self) -> bool {
        self.observe.is_some()
    }

    pub(crate) fn hands_over(self) -> bool {
        self.save.is_some() && self.restore.is_some()
    }
}

type Observe = TypedFunc<(Table,), ()>;
type Save = TypedFunc<(), (Vec<u8>,)>;
type Restore = TypedFunc<(Vec<u8>,), (Result<(), String>,)>;

/// Those of an instance.
pub(crate) struct OptionalFunctions {
    observe: Option<Observe>,
    save: Option<Save>,
    restore: Option<Restore>,
}

impl OptionalFunctions {
    /// # Errors
    /// One of them has other types than `wire`.
    pub(crate) fn of(instance: &Exported, store: &mut Store<GuestContext>, exports: OptionalExports) -> wasmtime::Result<Self> {
        let OptionalExports { observe, save, restore } = exports;
        Ok(Self {
            observe: observe.map(|index| instance.get_typed_func(&mut *store, index)).transpose()?,
            save: save.map(|index| instance.get_typed_func(&mut *store, index)).transpose()?,
            restore: restore.map(|index| instance.get_typed_func(&mut *store, index)).transpose()?,
        })
    }
}

impl<W: World> Instance<W> {
    /// Nothing where the interface is not exported.
    pub(crate) fn observe(&mut self, outcomes: Table, deadline_us: u64) -> Result<(), Fault> {
        let Some(observe) = self.optional().observe else { return Ok(()) };
        self.entered(deadline_us, |store| observe.call(store, (outcomes,)))
    }

    pub(crate) fn save(&mut self, deadline_us: u64) -> Result<Vec<u8>, Fault> {
        let Some(save) = self.optional().save else { return Ok(Vec::new()) };
        self.entered(deadline_us, |store| save.call(store, ())).map(|(saved,)| saved)
    }

    /// The guest's own answer is the inner result.
    pub(crate) fn restore(&mut self, saved: &[u8], deadline_us: u64) -> Result<Result<(), String>, Fault> {
        let Some(restore) = self.optional().restore else { return Ok(Ok(())) };
        self.entered(deadline_us, |store| restore.call(store, (saved.to_vec(),))).map(|(answer,)| answer)
    }

    /// The moment of what is called beside decisions.
    pub(crate) fn aside_now(&mut self) {
        self.aside_at(self.clock_us(), self.digest_seed());
    }

    /// Numbers of its own: what a decision draws does not depend on how often others were told something.
    pub(crate) fn aside_at(&mut self, now_us: u64, digest_seed: u64) {
        self.moment(now_us, seed(!digest_seed, now_us));
    }
}

impl<W: World> WasmPolicy<W> {
    pub(crate) fn tell(&mut self, outcomes: &host::Table) -> Result<(), PolicyFault> {
        let (wanted, deadline_us) = (wire::table(outcomes, self.wants()), self.deadline_us());
        let observe = |instance: &mut Instance<W>| {
            instance.aside_now();
            instance.observe(wanted, deadline_us)
        };
        self.beside(observe, |_| What::Observe(wire::table(outcomes, &[])))
    }

    pub(crate) fn saved(&mut self) -> Result<Vec<u8>, PolicyFault> {
        let deadline_us = self.deadline_us();
        let save = |instance: &mut Instance<W>| {
            instance.aside_now();
            bounded(instance.save(deadline_us)?)
        };
        self.beside(save, |saved| What::Save(saved.cloned().map(Memory)))
    }

    /// Not for the path of a decision: where the guest fails, a fresh instance is made at once.
    pub(crate) fn restored(&mut self, saved: &[u8]) -> Result<(), PolicyFault> {
        let deadline_us = self.deadline_us();
        let restore = |instance: &mut Instance<W>| {
            instance.aside_now();
            accepted(instance.restore(saved, deadline_us)?)
        };
        let answer = self.beside(restore, |_| What::Restore(Memory(saved.to_vec())));
        if answer.is_err() {
            let fresh = ready_instance(self.prepared());
            self.start_over(fresh.ok());
        }
        answer
    }
}

/// No more than is handed over, whoever asked for it.
pub(crate) fn bounded(saved: Vec<u8>) -> Result<Vec<u8>, Fault> {
    if saved.len() <= MAX_HANDOVER_BYTES {
        return Ok(saved);
    }
    Err((FaultKind::Invalid, format!("`save` gave {} bytes, at most {MAX_HANDOVER_BYTES}", saved.len())))
}

/// A refusal is a fault.
pub(crate) fn accepted(answer: Result<(), String>) -> Result<(), Fault> {
    answer.map_err(|refusal| (FaultKind::Invalid, format!("`restore` refused what was saved: {}", one_line(&refusal))))
}
