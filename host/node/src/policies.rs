//! The three policies in force: loading them at start, replacing one while requests run, returning to those before.
//!
//! Nothing here decides anything; slots do, and the slots' fallbacks keep serving whatever happens to a component.

use std::sync::{Arc, Mutex, TryLockError};

use millrace_config::{Config, Digest, PolicySpec};
use millrace_core::Clock;
use millrace_policy::{PolicyInfo, PrecisionSlot, RolledBack, RouteSlot, ScheduleSlot, SlotStatus};
use millrace_policy_wasm::{EngineOptions, LoadError, PolicyEngine, PolicyKind, PolicyOptions};

use crate::error::{StartError, SwapError};
use crate::metrics::SlotLabels;
use crate::policy_slots::{first, limits, options, precision_slot, route_slot, schedule_slot};

/// The slots, and what is needed to fill them anew.
pub struct Policies {
    engine: PolicyEngine,
    precision: Arc<PrecisionSlot>,
    route: Arc<RouteSlot>,
    schedule: Arc<ScheduleSlot>,
    /// In the order of [`PolicyKind::ALL`].
    options: [PolicyOptions; 3],
    /// One replacement at a time: compiling takes memory and time.
    swapping: Mutex<()>,
}

impl Policies {
    /// # Errors
    /// Where a component cannot be read or is refused.
    pub(crate) fn load(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        let largest = PolicyKind::ALL.map(|kind| limits(kind, spec_of(config, kind)).memory_bytes).into_iter().max();
        let mut engine_options = EngineOptions::new(clock);
        engine_options.max_memory_bytes = largest.unwrap_or(0).max(engine_options.max_memory_bytes);
        let engine = PolicyEngine::new(engine_options)?;
        let options = PolicyKind::ALL.map(|kind| options(kind, spec_of(config, kind)));
        let first = |kind: PolicyKind| first(&engine, kind, spec_of(config, kind), option_of(&options, kind));
        let (precision, route, schedule) =
            (first(PolicyKind::Precision)?, first(PolicyKind::Route)?, first(PolicyKind::Schedule)?);
        let policies = Self {
            precision: Arc::new(
                precision_slot(precision, &config.policies.precision)?
                    .watched_by(|rolled| log_rolled_back(PolicyKind::Precision, rolled)),
            ),
            route: Arc::new(
                route_slot(route, &config.policies.route)?.watched_by(|rolled| log_rolled_back(PolicyKind::Route, rolled)),
            ),
            schedule: Arc::new(
                schedule_slot(schedule, &config.policies.schedule)?
                    .watched_by(|rolled| log_rolled_back(PolicyKind::Schedule, rolled)),
            ),
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
        &self.precision
    }

    pub(crate) fn route(&self) -> &RouteSlot {
        &self.route
    }

    pub(crate) fn schedule(&self) -> &Arc<ScheduleSlot> {
        &self.schedule
    }

    pub fn status(&self, kind: PolicyKind) -> SlotStatus {
        match kind {
            PolicyKind::Precision => self.precision.status(),
            PolicyKind::Route => self.route.status(),
            PolicyKind::Schedule => self.schedule.status(),
        }
    }

    pub fn statuses(&self) -> [(PolicyKind, SlotStatus); 3] {
        PolicyKind::ALL.map(|kind| (kind, self.status(kind)))
    }

    pub(crate) fn slot_labels(&self) -> Vec<SlotLabels> {
        self.statuses().into_iter().map(|(kind, status)| SlotLabels { kind: kind_label(kind), status }).collect()
    }

    /// Puts a component in force and returns who was. Compiling it takes seconds: not for the runtime's threads.
    ///
    /// # Errors
    /// Where the component is refused or another one is being loaded; nothing changes then.
    pub fn replace(&self, kind: PolicyKind, source: &[u8], pinned: Option<&Digest>) -> Result<PolicyInfo, SwapError> {
        let _one = match self.swapping.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(SwapError::Busy),
        };
        let mut options = option_of(&self.options, kind).clone();
        "uploaded".clone_into(&mut options.origin);
        options.sha256 = pinned.map(Digest::to_hex);
        let put = || -> Result<(PolicyInfo, PolicyInfo), LoadError> {
            let loaded = self.engine.load(source, kind, &options)?;
            let info = loaded.info().clone();
            let old = match kind {
                PolicyKind::Precision => self.precision.swap(loaded.precision()?, info.clone()),
                PolicyKind::Route => self.route.swap(loaded.route()?, info.clone()),
                PolicyKind::Schedule => self.schedule.swap(loaded.schedule()?, info.clone()),
            };
            Ok((old, info))
        };
        match put() {
            Ok((old, new)) => {
                log_in_force(kind, &new, "policy replaced");
                Ok(old)
            }
            Err(error) => {
                tracing::warn!(target: "millrace::audit", %kind, %error, "policy refused; the one in force stays");
                Err(SwapError::Refused(error))
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
            PolicyKind::Precision => self.precision.roll_back(),
            PolicyKind::Route => self.route.roll_back(),
            PolicyKind::Schedule => self.schedule.roll_back(),
        };
        log_in_force(kind, &now.ok_or(SwapError::NothingToRollBackTo)?, "policy rolled back");
        Ok(was)
    }

    /// Returns to the built-in at once and tells who was in force. Where it is in force already, nothing changes.
    pub fn return_to_builtin(&self, kind: PolicyKind) -> PolicyInfo {
        let was = self.status(kind).info;
        let now = match kind {
            PolicyKind::Precision => self.precision.return_to_builtin(),
            PolicyKind::Route => self.route.return_to_builtin(),
            PolicyKind::Schedule => self.schedule.return_to_builtin(),
        };
        log_in_force(kind, &now, "policy returned to the built-in");
        was
    }
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

fn spec_of(config: &Config, kind: PolicyKind) -> &PolicySpec {
    match kind {
        PolicyKind::Precision => &config.policies.precision,
        PolicyKind::Route => &config.policies.route,
        PolicyKind::Schedule => &config.policies.schedule,
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
