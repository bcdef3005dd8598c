//! The three policies in force: loading them at start, replacing one while requests run, returning to those before.
//!
//! Nothing here decides anything; slots do, and the slots' fallbacks keep serving whatever happens to a component.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use millrace_config::{Config, Digest};
use millrace_core::Clock;
use millrace_policy::{PolicyFault, PolicyInfo, PrecisionSlot, RolledBack, RouteSlot, ScheduleSlot, SlotStatus};
use millrace_policy_wasm::{EngineOptions, LoadedPolicy, PolicyEngine, PolicyKind, PolicyOptions, Recorder};

use crate::error::{StartError, SwapError};
use crate::fault_log::FaultLog;
use crate::metrics::SlotLabels;
use crate::policy_slots::{
    First, builtin_alone, first, limits, options, precision_slot, recorder, route_slot, schedule_slot, spec_of,
};

use self::afar::{Afar, Elsewhere, ScheduleIn};
use self::trials::OnTrial;

/// The slots, and what is needed to fill them anew.
pub struct Policies {
    engine: PolicyEngine,
    slots: Slots,
    /// On trial, in the order of [`PolicyKind::ALL`].
    shadows: Mutex<[Option<OnTrial>; 3]>,
    /// In the order of [`PolicyKind::ALL`].
    options: [PolicyOptions; 3],
    /// Whether no engine of this process asks the schedule: all pools are processes of their own.
    scheduled_elsewhere: bool,
    /// Whoever else asks it.
    afar: Afar,
    /// One replacement at a time: compiling takes memory and time.
    swapping: Mutex<()>,
}

/// The three slots.
#[derive(Clone)]
pub(crate) struct Slots {
    pub(crate) precision: Arc<PrecisionSlot>,
    pub(crate) route: Arc<RouteSlot>,
    pub(crate) schedule: Arc<ScheduleSlot>,
}

impl Policies {
    /// # Errors
    /// Where a component cannot be read or is refused.
    pub(crate) fn load(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        let engine = engine(config, &PolicyKind::ALL, clock)?;
        let mut options = PolicyKind::ALL.map(|kind| options(kind, spec_of(config, kind)));
        if let Some(record) = &config.policies.record {
            for (kind, options) in PolicyKind::ALL.into_iter().zip(&mut options) {
                options.record = Some(recorder(kind, record)?);
            }
        }
        let first = |kind: PolicyKind| first(&engine, kind, spec_of(config, kind), option_of(&options, kind));
        let (precision, route, schedule) =
            (first(PolicyKind::Precision)?, first(PolicyKind::Route)?, first(PolicyKind::Schedule)?);
        let afar = Afar::default();
        if let First::Configured { configured, source, .. } = &schedule {
            afar.begin_with(source.clone(), configured.info(), option_of(&options, PolicyKind::Schedule));
        }
        let slots = Slots {
            precision: Arc::new(
                precision_slot(precision, &config.policies.precision)?
                    .watched_by(|rolled| log_rolled_back(PolicyKind::Precision, rolled))
                    .telling_faults_to(telling(PolicyKind::Precision)),
            ),
            route: Arc::new(
                route_slot(route, &config.policies.route)?
                    .watched_by(|rolled| log_rolled_back(PolicyKind::Route, rolled))
                    .telling_faults_to(telling(PolicyKind::Route)),
            ),
            schedule: watched_schedule(schedule, config)?,
        };
        let scheduled_elsewhere = !config.pools.is_empty() && config.pools.iter().all(|pool| pool.process);
        let policies = Self {
            scheduled_elsewhere,
            afar,
            slots,
            shadows: Mutex::new([None, None, None]),
            engine,
            options,
            swapping: Mutex::new(()),
        };
        for (kind, status) in policies.statuses() {
            log_in_force(kind, &status.info, "policy in force");
        }
        Ok(policies)
    }

    pub(crate) fn precision(&self) -> &PrecisionSlot {
        &self.slots.precision
    }

    pub(crate) fn route(&self) -> &RouteSlot {
        &self.slots.route
    }

    pub(crate) fn schedule(&self) -> &Arc<ScheduleSlot> {
        &self.slots.schedule
    }

    pub fn status(&self, kind: PolicyKind) -> SlotStatus {
        match kind {
            PolicyKind::Precision => self.slots.precision.status(),
            PolicyKind::Route => self.slots.route.status(),
            PolicyKind::Schedule => self.slots.schedule.status(),
        }
    }

    pub fn statuses(&self) -> [(PolicyKind, SlotStatus); 3] {
        PolicyKind::ALL.map(|kind| (kind, self.status(kind)))
    }

    pub(crate) fn slot_labels(&self) -> Vec<SlotLabels> {
        self.statuses()
            .into_iter()
            .map(|(kind, status)| SlotLabels {
                kind: kind_label(kind),
                status,
                shadow: self.shadow(kind),
                record: option_of(&self.options, kind).record.as_ref().map(Recorder::counts),
            })
            .collect()
    }

    /// Puts a component in force and returns who was. Compiling it takes seconds: not for the runtime's threads.
    ///
    /// # Errors
    /// Where the component is refused or another one is being loaded; nothing changes then.
    pub fn replace(&self, kind: PolicyKind, source: &[u8], pinned: Option<&Digest>) -> Result<PolicyInfo, SwapError> {
        let _one = self.alone()?;
        let (options, recalls) = (self.uploaded(kind, pinned), self.recalls(kind));
        let put = || self.put(&self.engine.load(source, kind, &options)?, self.afar.keep(source), recalls);
        self.told(kind, "policy replaced", put())
    }

    /// Engine processes ask for a schedule too: what is in force, now or later, is in force there.
    pub(crate) fn reaching<E: Elsewhere + 'static>(&self, there: Option<Arc<E>>) -> Option<Arc<E>> {
        there.inspect(|there| self.afar.reach(there.clone(), &self.slots.schedule))
    }

    /// What each engine process runs; empty where there is none.
    pub fn schedules_afar(&self) -> Vec<ScheduleIn> {
        self.afar.runs()
    }

    fn alone(&self) -> Result<MutexGuard<'_, ()>, SwapError> {
        match self.swapping.try_lock() {
            Ok(one) => Ok(one),
            Err(TryLockError::Poisoned(one)) => Ok(one.into_inner()),
            Err(TryLockError::WouldBlock) => Err(SwapError::Busy),
        }
    }

    /// What nobody in this process asks cannot be on trial here.
    fn reachable(&self, kind: PolicyKind) -> Result<(), SwapError> {
        if self.scheduled_elsewhere && kind == PolicyKind::Schedule { Err(SwapError::Elsewhere) } else { Ok(()) }
    }

    /// The slots, for whoever tells them something.
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// How to load what came through the admin listener.
    fn uploaded(&self, kind: PolicyKind, pinned: Option<&Digest>) -> PolicyOptions {
        let sha256 = pinned.map(Digest::to_hex);
        PolicyOptions { origin: "uploaded".to_owned(), sha256, ..option_of(&self.options, kind).clone() }
    }

    /// What happened to the schedule slot by itself is so in engine processes too, and what they refused comes again. Once in a while.
    fn catch_up(&self) {
        // Not between the two halves of a swap.
        if self.afar.is_behind(&self.slots.schedule)
            && let Ok(_one) = self.alone()
        {
            self.afar.catch_up(&self.slots.schedule);
        }
    }

    /// How often an operator asked for the way back: to be counted before a policy is loaded that [`Self::put`] puts in force.
    fn recalls(&self, kind: PolicyKind) -> u64 {
        match kind {
            PolicyKind::Precision => self.slots.precision.recalls(),
            PolicyKind::Route => self.slots.route.recalls(),
            PolicyKind::Schedule => self.slots.schedule.recalls(),
        }
    }

    /// Puts a loaded policy in force; tells who was and who is. Whoever asked for the way back meanwhile has the last word. `source`: for
    /// engine processes.
    fn put(&self, loaded: &LoadedPolicy, source: Option<Arc<[u8]>>, recalls: u64) -> Result<(PolicyInfo, PolicyInfo), SwapError> {
        let info = loaded.info().clone();
        let old = match loaded.kind() {
            PolicyKind::Precision => self.slots.precision.swap_since(recalls, loaded.precision()?, info.clone()),
            PolicyKind::Route => self.slots.route.swap_since(recalls, loaded.route()?, info.clone()),
            PolicyKind::Schedule => {
                let (slot, policy) = (&self.slots.schedule, loaded.schedule()?);
                let held = self.afar.load(source, &info, option_of(&self.options, PolicyKind::Schedule))?;
                self.afar.vouch(slot);
                let old = slot.swap_since(recalls, policy, info.clone());
                match old {
                    Some(_) => self.afar.put(held, slot)?,
                    None => self.afar.forget(held),
                }
                old
            }
        };
        Ok((old.ok_or(SwapError::Recalled)?, info))
    }

    fn told(
        &self,
        kind: PolicyKind,
        what: &str,
        put: Result<(PolicyInfo, PolicyInfo), SwapError>,
    ) -> Result<PolicyInfo, SwapError> {
        match put {
            Ok((old, new)) => {
                log_in_force(kind, &new, what);
                Ok(old)
            }
            Err(error) => {
                let came = match &error {
                    SwapError::Behind { .. } => {
                        log_in_force(kind, &self.status(kind).info, what);
                        "policy in force, but not in every process"
                    }
                    SwapError::Recalled => "policy not put in force; somebody went back while it was being loaded",
                    _ => "policy refused; the one in force stays",
                };
                tracing::warn!(target: "millrace::audit", %kind, %error, "{came}");
                Err(error)
            }
        }
    }

    /// Returns to the last proven policy before the one in force, after the last of them to the built-in; tells who was in force.
    ///
    /// # Errors
    /// Where the built-in is in force.
    pub fn roll_back(&self, kind: PolicyKind) -> Result<PolicyInfo, SwapError> {
        let was = self.status(kind).info;
        let now = match kind {
            PolicyKind::Precision => self.slots.precision.roll_back(),
            PolicyKind::Route => self.slots.route.roll_back(),
            PolicyKind::Schedule => self.slots.schedule.roll_back(),
        };
        log_in_force(kind, &now.ok_or(SwapError::NothingToRollBackTo)?, "policy rolled back");
        self.follow(kind)?;
        Ok(was)
    }

    /// Returns to the built-in at once and tells who was in force. Where it is in force already, nothing changes.
    ///
    /// # Errors
    /// An engine process keeps what it has.
    pub fn return_to_builtin(&self, kind: PolicyKind) -> Result<PolicyInfo, SwapError> {
        let was = self.status(kind).info;
        let now = match kind {
            PolicyKind::Precision => self.slots.precision.return_to_builtin(),
            PolicyKind::Route => self.slots.route.return_to_builtin(),
            PolicyKind::Schedule => self.slots.schedule.return_to_builtin(),
        };
        log_in_force(kind, &now, "policy returned to the built-in");
        self.follow(kind)?;
        Ok(was)
    }

    /// What was returned to here is returned to wherever the policy is asked.
    fn follow(&self, kind: PolicyKind) -> Result<(), SwapError> {
        match kind {
            PolicyKind::Schedule => {
                let options = option_of(&self.options, kind);
                self.afar.follow(&self.slots.schedule, afar::patience(options))
            }
            PolicyKind::Precision | PolicyKind::Route => Ok(()),
        }
    }
}

/// The schedule of an engine process, which asks for no other decision: no other component is read there, none is recorded.
///
/// # Errors
/// As for [`Policies::load`].
pub(crate) fn schedule_alone(config: &Config, clock: Arc<dyn Clock>) -> Result<ScheduleAlone, StartError> {
    let kind = PolicyKind::Schedule;
    let mut options = options(kind, spec_of(config, kind));
    options.record = config.policies.record.as_ref().map(|record| recorder(kind, record)).transpose()?;
    let engine = engine(config, &[kind], clock)?;
    // The server has loaded it, so its file has changed since. What is in force comes from the server.
    let first = first(&engine, kind, spec_of(config, kind), &options).or_else(|error| {
        tracing::error!(%error, "this engine begins with the built-in schedule policy, until its server sends the one in force");
        builtin_alone(&engine, kind, &options)
    })?;
    let slot = watched_schedule(first, config)?;
    log_in_force(kind, &slot.status().info, "policy in force");
    Ok(ScheduleAlone { slot, engine, options })
}

/// The schedule of an engine process, and what is needed to fill its slot anew.
pub(crate) struct ScheduleAlone {
    pub(crate) slot: Arc<ScheduleSlot>,
    pub(crate) engine: PolicyEngine,
    pub(crate) options: PolicyOptions,
}

/// With room for the largest memory that one of these policies may have.
fn engine(config: &Config, kinds: &[PolicyKind], clock: Arc<dyn Clock>) -> Result<PolicyEngine, StartError> {
    let largest = kinds.iter().map(|&kind| limits(kind, spec_of(config, kind)).memory_bytes).max();
    let mut options = EngineOptions::new(clock);
    options.max_memory_bytes = largest.unwrap_or(0).max(options.max_memory_bytes);
    Ok(PolicyEngine::new(options)?)
}

fn watched_schedule(first: First, config: &Config) -> Result<Arc<ScheduleSlot>, StartError> {
    let slot = schedule_slot(first, &config.policies.schedule)?;
    Ok(Arc::new(
        slot.watched_by(|rolled| log_rolled_back(PolicyKind::Schedule, rolled)).telling_faults_to(telling(PolicyKind::Schedule)),
    ))
}

pub(crate) mod afar;
mod trials;
pub(crate) mod watch;

/// Has the faults of a slot logged.
fn telling(kind: PolicyKind) -> impl Fn(u64, &PolicyFault) {
    let log = FaultLog::new(kind);
    move |generation, fault| log.fault(generation, fault)
}

fn log_in_force(kind: PolicyKind, info: &PolicyInfo, what: &str) {
    tracing::info!(
        target: "millrace::audit",
        %kind, policy = info.name, version = info.version, sha256 = info.sha256, origin = info.origin, "{what}"
    );
}

fn log_rolled_back(kind: PolicyKind, rolled: &RolledBack) {
    let RolledBack { from, from_generation, to, to_generation, last_fault } = rolled;
    tracing::warn!(
        target: "millrace::audit",
        %kind, from_generation, from = from.name, from_version = from.version, from_sha256 = from.sha256, from_origin = from.origin,
        to_generation, to = to.name, to_version = to.version, to_sha256 = to.sha256, to_origin = to.origin, reason = ?last_fault,
        "policy rolled back by the host: it failed again and again, the last time for this reason"
    );
}

fn kind_label(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::Precision => "precision",
        PolicyKind::Route => "route",
        PolicyKind::Schedule => "schedule",
    }
}

fn option_of(options: &[PolicyOptions; 3], kind: PolicyKind) -> &PolicyOptions {
    let [precision, route, schedule] = options;
    match kind {
        PolicyKind::Precision => precision,
        PolicyKind::Route => route,
        PolicyKind::Schedule => schedule,
    }
}

#[cfg(test)]
pub(crate) mod tests;
