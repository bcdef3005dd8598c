//! The three policies in force: loading them at start, replacing one while requests run, returning to the one before.
//!
//! Nothing here decides anything; slots do, and the slots' fallbacks keep serving whatever happens to a component.

use std::fs::File;
use std::io::Read as _;
use std::sync::{Arc, Mutex, TryLockError};

use millrace_config::{Component, Config, Digest, PolicySource, PolicySpec};
use millrace_core::Clock;
use millrace_policy::{
    BreakerSettings, FairSchedule, LeastLoadedRoute, PolicyInfo, PrecisionPolicy, PrecisionSlot, RouteLimits, RoutePolicy,
    RouteSlot, SchedulePolicy, ScheduleSlot, SlotStatus, TierPrecision,
};
use millrace_policy_wasm::{
    EngineOptions, LoadError, LoadedPolicy, PolicyEngine, PolicyKind, PolicyLimits, PolicyOptions, builtin,
};

use crate::error::{StartError, SwapError};
use crate::metrics::SlotLabels;

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
            precision: Arc::new(precision_slot(precision, &config.policies.precision)?),
            route: Arc::new(route_slot(route, &config.policies.route)?),
            schedule: Arc::new(schedule_slot(schedule, &config.policies.schedule)?),
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

    /// Puts the last good policy in force again and returns who was.
    ///
    /// # Errors
    /// Where there is none.
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
}

fn log_in_force(kind: PolicyKind, info: &PolicyInfo, what: &str) {
    tracing::info!(
        target: "millrace::audit",
        %kind, policy = info.name, version = info.version, sha256 = info.sha256, origin = info.origin, "{what}"
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

fn limits(kind: PolicyKind, spec: &PolicySpec) -> PolicyLimits {
    let mib = |n: u32| (n as usize).saturating_mul(1 << 20);
    PolicyLimits {
        deadline_us: spec.deadline_us,
        setup_us: spec.init_deadline_ms.saturating_mul(1000),
        memory_bytes: mib(spec.memory_mib),
        component_bytes: mib(spec.max_component_mib),
        compile_us: spec.compile_timeout_ms.saturating_mul(1000),
        log_lines_per_second: spec.log_lines_per_s,
        ..PolicyLimits::of(kind)
    }
}

fn options(kind: PolicyKind, spec: &PolicySpec) -> PolicyOptions {
    let (origin, sha256) = match &spec.source {
        PolicySource::Builtin => ("built-in".to_owned(), None),
        PolicySource::Native => ("native".to_owned(), None),
        PolicySource::Component(Component { path, sha256 }) => (path.display().to_string(), sha256.as_ref().map(Digest::to_hex)),
    };
    PolicyOptions {
        origin,
        config_json: spec.config_json.clone(),
        sha256,
        limits: limits(kind, spec),
        ..PolicyOptions::new(&kind.to_string(), kind)
    }
}

fn breaker(spec: &PolicySpec) -> BreakerSettings {
    BreakerSettings {
        faults_to_open: spec.breaker.faults,
        backoff_us: spec.breaker.backoff_ms.saturating_mul(1000),
        ..BreakerSettings::default()
    }
}

/// The policy that the configuration names; none for native code.
fn first(
    engine: &PolicyEngine,
    kind: PolicyKind,
    spec: &PolicySpec,
    options: &PolicyOptions,
) -> Result<Option<LoadedPolicy>, StartError> {
    let read;
    let source: &[u8] = match &spec.source {
        PolicySource::Native => return Ok(None),
        PolicySource::Builtin => builtin::component(kind),
        PolicySource::Component(component) => {
            read = read_component(kind, component, options.limits.component_bytes)?;
            &read
        }
    };
    engine.load(source, kind, options).map(Some).map_err(|source| StartError::Policy { kind, source })
}

/// One byte more than allowed, so that the loader sees that it is too large and says so.
fn read_component(kind: PolicyKind, component: &Component, limit: usize) -> Result<Vec<u8>, StartError> {
    let mut bytes = Vec::new();
    File::open(&component.path)
        .and_then(|file| file.take((limit as u64).saturating_add(1)).read_to_end(&mut bytes))
        .map_err(|error| StartError::Component { kind, path: component.path.clone(), why: error.to_string() })?;
    Ok(bytes)
}

fn refused(kind: PolicyKind) -> impl Fn(LoadError) -> StartError {
    move |source| StartError::Policy { kind, source }
}

fn precision_slot(loaded: Option<LoadedPolicy>, spec: &PolicySpec) -> Result<PrecisionSlot, StartError> {
    let fallback = TierPrecision::default();
    let (policy, info): (Box<dyn PrecisionPolicy>, _) = match loaded {
        Some(loaded) => (loaded.precision().map_err(refused(PolicyKind::Precision))?, loaded.info().clone()),
        None => (Box::new(fallback), PolicyInfo::native("tier-precision")),
    };
    Ok(PrecisionSlot::new(policy, info, breaker(spec), fallback))
}

fn route_slot(loaded: Option<LoadedPolicy>, spec: &PolicySpec) -> Result<RouteSlot, StartError> {
    let (policy, info): (Box<dyn RoutePolicy>, _) = match loaded {
        Some(loaded) => (loaded.route().map_err(refused(PolicyKind::Route))?, loaded.info().clone()),
        None => (Box::new(LeastLoadedRoute), PolicyInfo::native("least-loaded-route")),
    };
    Ok(RouteSlot::new(policy, info, breaker(spec), RouteLimits::default()))
}

fn schedule_slot(loaded: Option<LoadedPolicy>, spec: &PolicySpec) -> Result<ScheduleSlot, StartError> {
    let (policy, info): (Box<dyn SchedulePolicy>, _) = match loaded {
        Some(loaded) => (loaded.schedule().map_err(refused(PolicyKind::Schedule))?, loaded.info().clone()),
        None => (Box::new(FairSchedule), PolicyInfo::native("fair-schedule")),
    };
    Ok(ScheduleSlot::new(policy, info, breaker(spec)))
}
