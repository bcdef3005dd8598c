//! How the policy slots of a node are filled when it starts: what the configuration names, in front of what roll backs end at.
//! It does not know swaps; see `policies`.

use std::fs::File;
use std::io::Read as _;

use millrace_config::{Component, Config, Digest, PolicyRecord, PolicySource, PolicySpec};
use millrace_policy::{
    BreakerSettings, FairSchedule, LeastLoadedRoute, PolicyInfo, PrecisionPolicy, PrecisionSlot, RouteLimits, RoutePolicy,
    RouteSlot, SchedulePolicy, ScheduleSlot, TierPrecision,
};
use millrace_policy_wasm::{LoadError, LoadedPolicy, PolicyEngine, PolicyKind, PolicyLimits, PolicyOptions, Recorder, builtin};

use crate::error::StartError;

/// Where a policy of the binary came from, as a status tells it.
const BUILTIN: &str = "built-in";

pub(crate) fn limits(kind: PolicyKind, spec: &PolicySpec) -> PolicyLimits {
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

pub(crate) fn options(kind: PolicyKind, spec: &PolicySpec) -> PolicyOptions {
    let (origin, sha256) = match &spec.source {
        PolicySource::Builtin(_) => (BUILTIN.to_owned(), None),
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

/// How a deployment loads its policy of a kind: limits, pin and table.
#[must_use]
pub fn policy_options(config: &Config, kind: PolicyKind) -> PolicyOptions {
    options(kind, spec_of(config, kind))
}

/// How a deployment that says nothing about its policy of a kind would load one.
#[must_use]
pub fn default_policy_options(kind: PolicyKind) -> PolicyOptions {
    PolicyOptions { origin: kind.to_string(), ..options(kind, spec(&millrace_config::default_policies(), kind)) }
}

pub(crate) fn spec_of(config: &Config, kind: PolicyKind) -> &PolicySpec {
    spec(&config.policies, kind)
}

fn spec(policies: &millrace_config::Policies, kind: PolicyKind) -> &PolicySpec {
    match kind {
        PolicyKind::Precision => &policies.precision,
        PolicyKind::Route => &policies.route,
        PolicyKind::Schedule => &policies.schedule,
    }
}

fn breaker(spec: &PolicySpec) -> BreakerSettings {
    BreakerSettings {
        faults_to_open: spec.breaker.faults,
        backoff_us: spec.breaker.backoff_ms.saturating_mul(1000),
        ..BreakerSettings::default()
    }
}

/// Writes down what the policies of a kind are asked and answer.
pub(crate) fn recorder(kind: PolicyKind, record: &PolicyRecord) -> Result<Recorder, StartError> {
    Recorder::start(&record.directory, kind, u64::from(record.max_mib) << 20)
        .map_err(|error| StartError::Record { directory: record.directory.clone(), why: error.to_string() })
}

/// What a slot starts with.
pub(crate) enum First {
    /// Native code, which roll backs end at too: a deployment without Wasm stays without it.
    Native,
    Builtin(LoadedPolicy),
    /// What the configuration names, and the built-in that roll backs end at.
    Configured {
        builtin: LoadedPolicy,
        configured: LoadedPolicy,
        /// Its bytes.
        source: Vec<u8>,
    },
}

/// Loads what a slot starts with.
///
/// # Errors
/// Where a component cannot be read or is refused.
pub(crate) fn first(
    engine: &PolicyEngine,
    kind: PolicyKind,
    spec: &PolicySpec,
    options: &PolicyOptions,
) -> Result<First, StartError> {
    let load = |source: &[u8], options: &PolicyOptions| engine.load(source, kind, options).map_err(refused(kind));
    Ok(match &spec.source {
        PolicySource::Native => First::Native,
        PolicySource::Builtin(name) => {
            First::Builtin(load(builtin::named(kind, name).unwrap_or(builtin::component(kind)), options)?)
        }
        PolicySource::Component(component) => {
            let source = read_component(kind, component, options.limits.component_bytes)?;
            First::Configured {
                configured: load(&source, options)?,
                builtin: load(builtin::component(kind), &builtin_options(kind, options))?,
                source,
            }
        }
    })
}

/// As if the configuration named no component.
///
/// # Errors
/// As for [`first`].
pub(crate) fn builtin_alone(engine: &PolicyEngine, kind: PolicyKind, options: &PolicyOptions) -> Result<First, StartError> {
    let loaded = engine.load(builtin::component(kind), kind, &builtin_options(kind, options)).map_err(refused(kind))?;
    Ok(First::Builtin(loaded))
}

/// Of the built-in behind a component: the table and the memory are the component's own and need not fit it.
fn builtin_options(kind: PolicyKind, component: &PolicyOptions) -> PolicyOptions {
    let own = PolicyLimits::of(kind);
    let limits = PolicyLimits {
        memory_bytes: component.limits.memory_bytes.max(own.memory_bytes),
        component_bytes: component.limits.component_bytes.max(own.component_bytes),
        ..component.limits.clone()
    };
    let (origin, config_json) = (BUILTIN.to_owned(), "{}".to_owned());
    PolicyOptions { origin, config_json, sha256: None, limits, ..component.clone() }
}

/// One byte more than allowed, so that the loader sees that it is too large and says so. Nothing waits for a pipe here.
pub(crate) fn read_component(kind: PolicyKind, component: &Component, limit: usize) -> Result<Vec<u8>, StartError> {
    let path = &component.path;
    let refused = |why: String| StartError::Component { kind, path: path.clone(), why };
    let metadata = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?;
    if !metadata.is_file() {
        return Err(refused("it is no regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| refused(error.to_string()))?;
    file.take((limit as u64).saturating_add(1)).read_to_end(&mut bytes).map_err(|error| refused(error.to_string()))?;
    Ok(bytes)
}

fn refused(kind: PolicyKind) -> impl Fn(LoadError) -> StartError {
    move |source| StartError::Policy { kind, source }
}

/// A policy, and who it is.
type Named<P> = (Box<P>, PolicyInfo);

/// The one that roll backs end at, and the one in force in front of it, if it is another.
fn made<P: ?Sized>(
    first: First,
    native: Named<P>,
    make: impl Fn(&LoadedPolicy) -> Result<Box<P>, LoadError>,
) -> Result<(Named<P>, Option<Named<P>>), LoadError> {
    let named = |loaded: &LoadedPolicy| Ok((make(loaded)?, loaded.info().clone()));
    Ok(match first {
        First::Native => (native, None),
        First::Builtin(builtin) => (named(&builtin)?, None),
        First::Configured { builtin, configured, source: _ } => (named(&builtin)?, Some(named(&configured)?)),
    })
}

pub(crate) fn precision_slot(first: First, spec: &PolicySpec) -> Result<PrecisionSlot, StartError> {
    let fallback = TierPrecision::default();
    let native: Named<dyn PrecisionPolicy> = (Box::new(fallback), PolicyInfo::native("tier-precision"));
    let ((policy, info), front) = made(first, native, LoadedPolicy::precision).map_err(refused(PolicyKind::Precision))?;
    let slot = PrecisionSlot::new(policy, info, breaker(spec), fallback);
    Ok(match front {
        Some((policy, info)) => slot.starting_with(policy, info),
        None => slot,
    })
}

pub(crate) fn route_slot(first: First, spec: &PolicySpec) -> Result<RouteSlot, StartError> {
    let native: Named<dyn RoutePolicy> = (Box::new(LeastLoadedRoute), PolicyInfo::native("least-loaded-route"));
    let ((policy, info), front) = made(first, native, LoadedPolicy::route).map_err(refused(PolicyKind::Route))?;
    let slot = RouteSlot::new(policy, info, breaker(spec), RouteLimits::default());
    Ok(match front {
        Some((policy, info)) => slot.starting_with(policy, info),
        None => slot,
    })
}

pub(crate) fn schedule_slot(first: First, spec: &PolicySpec) -> Result<ScheduleSlot, StartError> {
    let native: Named<dyn SchedulePolicy> = (Box::new(FairSchedule), PolicyInfo::native("fair-schedule"));
    let ((policy, info), front) = made(first, native, LoadedPolicy::schedule).map_err(refused(PolicyKind::Schedule))?;
    let slot = ScheduleSlot::new(policy, info, breaker(spec));
    Ok(match front {
        Some((policy, info)) => slot.starting_with(policy, info),
        None => slot,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What is tried at a desk is tried as a deployment would try it.
    #[test]
    fn without_a_file_policies_have_the_limits_of_a_file_that_says_nothing() {
        let text = "[model.m]\npath = \"m\"\n[pool.p]\nstage = \"prefill\"\n[pool.d]\nstage = \"decode\"\n[lane.l]\nprefill = \"p\"\n\
                    decode = \"d\"\n";
        let config = millrace_config::parse(text, "x.toml").unwrap_or_else(|errors| panic!("{errors}"));
        for kind in PolicyKind::ALL {
            assert_eq!(default_policy_options(kind).limits, policy_options(&config, kind).limits, "{kind}");
            assert_eq!(default_policy_options(kind).limits.deadline_us, if kind == PolicyKind::Schedule { 2_000 } else { 5_000 });
        }
    }

    #[test]
    fn the_names_that_a_configuration_may_give_are_those_of_the_binary() {
        let known: BTreeSet<(String, &str)> = builtin::NAMED.iter().map(|(kind, name, _)| (kind.to_string(), *name)).collect();
        let listed: BTreeSet<(String, &str)> = millrace_config::BUILTINS
            .iter()
            .flat_map(|(kind, names)| names.iter().map(|name| ((*kind).to_owned(), *name)))
            .collect();
        assert_eq!(known, listed);
        for kind in PolicyKind::ALL {
            let (_, names) = millrace_config::BUILTINS.iter().find(|(of, _)| *of == kind.to_string()).expect("the kind");
            assert_eq!(builtin::named(kind, names[0]), Some(builtin::component(kind)), "the first of {kind}");
        }
    }
}
