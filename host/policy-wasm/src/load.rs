//! The load path, in the order of the crate's drawing. Each step refuses with a reason; nothing that serves is touched.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use millrace_policy::{PolicyInfo, PrecisionPolicy, RoutePolicy, SchedulePolicy};
use sha2::{Digest, Sha256};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, ComponentExportIndex, Linker};

use crate::belongings::Belongings;
use crate::compile::compile;
use crate::engine::Inner;
use crate::fault::one_line;
use crate::imports;
use crate::imports::metrics::MetricTable;
use crate::inspect::hex;
use crate::instance::{Fault, Instance, Owned, StartError};
use crate::optional::OptionalExports;
use crate::policy::{WasmPolicy, ready_instance};
use crate::prepared::{Exports, Prepared};
use crate::smoke;
use crate::wire::Info;
use crate::worlds::{PrecisionWorld, RouteWorld, ScheduleWorld, World};
use crate::{Grant, LoadError, PolicyKind, PolicyOptions};

const PACKAGE: &str = "millrace:policy";
const LIFECYCLE: &str = "millrace:policy/lifecycle";
/// Of `wit/`. Within 0.1 hosts and components mix.
const VERSION: &str = "0.1.0";
const PAGE_BYTES: u64 = 64 << 10;
const MAX_NAME_BYTES: usize = 64;
const MAX_WANTS: usize = 64;

/// A policy that passed every check; makes what a slot takes.
pub struct LoadedPolicy {
    pub(crate) prepared: Arc<Prepared>,
    kind: PolicyKind,
    info: PolicyInfo,
    /// Sorted.
    wants: Arc<[u32]>,
    compile_time: Duration,
}

impl LoadedPolicy {
    /// How long the compiler took.
    #[must_use]
    pub fn compile_time(&self) -> Duration {
        self.compile_time
    }

    #[must_use]
    pub fn info(&self) -> &PolicyInfo {
        &self.info
    }

    #[must_use]
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// Column kinds that the policy reads, sorted; empty: all.
    #[must_use]
    pub fn wants(&self) -> &[u32] {
        &self.wants
    }

    /// An instance of its own for a slot; may be called again.
    ///
    /// # Errors
    /// The policy is of another kind, or the instance does not start.
    pub fn route(&self) -> Result<Box<dyn RoutePolicy>, LoadError> {
        Ok(Box::new(self.policy::<RouteWorld>()?))
    }

    /// As [`Self::route`].
    ///
    /// # Errors
    /// As [`Self::route`].
    pub fn schedule(&self) -> Result<Box<dyn SchedulePolicy>, LoadError> {
        Ok(Box::new(self.policy::<ScheduleWorld>()?))
    }

    /// As [`Self::route`].
    ///
    /// # Errors
    /// As [`Self::route`].
    pub fn precision(&self) -> Result<Box<dyn PrecisionPolicy>, LoadError> {
        Ok(Box::new(self.policy::<PrecisionWorld>()?))
    }

    pub(crate) fn renamed(&self, belongings: Arc<Belongings>, options: &PolicyOptions) -> Self {
        let old = &*self.prepared;
        let mut own = old.options.clone();
        own.name.clone_from(&options.name);
        own.record.clone_from(&options.record);
        let prepared = Prepared {
            shared: old.shared.clone(),
            pre: old.pre.clone(),
            exports: old.exports,
            name: own.name.as_str().into(),
            options: own,
            sha256: old.sha256.clone(),
            digest_seed: old.digest_seed,
            belongings,
            metrics: Arc::new(MetricTable::default()),
            calls: AtomicU64::new(0),
        };
        let (kind, info, wants) = (self.kind, self.info.clone(), self.wants.clone());
        Self { prepared: Arc::new(prepared), kind, info, wants, compile_time: self.compile_time }
    }

    fn policy<W: World>(&self) -> Result<WasmPolicy<W>, LoadError> {
        if W::KIND != self.kind {
            return Err(LoadError::Kind { is: self.kind, asked: W::KIND });
        }
        let instance = ready_instance::<W>(&self.prepared).map_err(|fault| failed("starting an instance", fault))?;
        let label = format!("{}@{}", self.info.name, self.info.version);
        Ok(WasmPolicy::new(self.prepared.clone(), label, self.wants.clone(), instance))
    }
}

pub(crate) fn load(
    engine: &Inner,
    source: &[u8],
    options: &PolicyOptions,
    (kind, belongings): (PolicyKind, Arc<Belongings>),
) -> Result<LoadedPolicy, LoadError> {
    let limits = &options.limits;
    if source.len() > limits.component_bytes {
        return Err(LoadError::TooLarge { bytes: source.len(), limit: limits.component_bytes });
    }
    let (sha256, digest_seed) = digest(source);
    if let Some(expected) = options.sha256.as_ref().filter(|expected| !expected.eq_ignore_ascii_case(&sha256)) {
        return Err(LoadError::Digest { expected: expected.clone(), found: sha256 });
    }
    let shared = engine.shared.clone();
    let began = Instant::now();
    let component = compile(&shared.engine, source, Duration::from_micros(limits.compile_us), &engine.compiles)?;
    let compile_time = began.elapsed();
    check_names(&shared.engine, &component, kind, &options.grants)?;
    let exports = exports(&component, kind)?;
    check_memory(&component, limits.memory_bytes)?;
    let mut linker = Linker::new(&shared.engine);
    let linked = imports::link(&mut linker, &options.grants).and_then(|()| linker.instantiate_pre(&component));
    let pre = linked
        .map_err(|error| LoadError::Types { interfaces: "the imports".to_owned(), detail: one_line(&format!("{error:#}")) })?;
    let prepared = Arc::new(Prepared {
        shared,
        pre,
        exports,
        options: options.clone(),
        name: options.name.as_str().into(),
        sha256: sha256.clone(),
        digest_seed,
        belongings,
        metrics: Arc::new(MetricTable::default()),
        calls: AtomicU64::new(0),
    });
    let info = match kind {
        PolicyKind::Precision => try_out::<PrecisionWorld>(&prepared),
        PolicyKind::Route => try_out::<RouteWorld>(&prepared),
        PolicyKind::Schedule => try_out::<ScheduleWorld>(&prepared),
    }?;
    let wants = sorted(&info.wants).into();
    let info = PolicyInfo { name: info.name, version: info.version, sha256, origin: options.origin.clone() };
    Ok(LoadedPolicy { prepared, kind, info, wants, compile_time })
}

/// On throw-away instances with throw-away state: configuration, start, trial decisions.
fn try_out<W: World>(prepared: &Arc<Prepared>) -> Result<Info, LoadError> {
    let owned = || Owned { belongings: Arc::new(Belongings::new()), metrics: Arc::new(MetricTable::default()) };
    let new = || {
        Instance::<W>::new(prepared, owned()).map_err(|error| match error {
            StartError::Types(detail) => {
                LoadError::Types { interfaces: format!("{LIFECYCLE} or {}", W::KIND.interface()), detail }
            }
            StartError::Fault(fault) => failed("instantiating", fault),
        })
    };
    let verdict = new()?.check_config().map_err(|fault| failed("`check-config`", fault))?;
    verdict.map_err(|faults| LoadError::Config(faults.iter().take(32).map(|fault| one_line(fault)).collect()))?;
    let mut instance = new()?;
    let info = instance.init().map_err(|fault| failed("`init`", fault))?;
    let info = info.map_err(|refusal| LoadError::Init(one_line(&refusal)))?;
    check_info(&info)?;
    let wrong = |detail| LoadError::Smoke { kind: W::KIND, detail };
    W::smoke(&mut instance, &sorted(&info.wants)).map_err(wrong)?;
    let saved = smoke::beside(&mut instance, &sorted(&info.wants)).map_err(wrong)?;
    if let Some(saved) = saved {
        let mut next = new()?;
        next.init().map_err(|fault| failed("`init`", fault))?.map_err(|refusal| LoadError::Init(one_line(&refusal)))?;
        smoke::restore(&mut next, &saved).map_err(wrong)?;
    }
    Ok(info)
}

fn failed(phase: &'static str, (kind, detail): Fault) -> LoadError {
    LoadError::Fault { phase, kind, detail }
}

fn check_info(info: &Info) -> Result<(), LoadError> {
    for (field, text) in [("name", &info.name), ("version", &info.version)] {
        if text.is_empty() || text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control) {
            let detail = format!("\"{}\" is not 1 to {MAX_NAME_BYTES} bytes without control characters", one_line(text));
            return Err(LoadError::Info { field, detail });
        }
    }
    if info.wants.len() > MAX_WANTS {
        return Err(LoadError::Info { field: "wants", detail: format!("{} kinds, at most {MAX_WANTS}", info.wants.len()) });
    }
    Ok(())
}

/// Every import is granted and known, every name of the package has a version that this host speaks.
fn check_names(engine: &wasmtime::Engine, component: &Component, kind: PolicyKind, grants: &[Grant]) -> Result<(), LoadError> {
    let ty = component.component_type();
    for (name, _) in ty.imports(engine).chain(ty.exports(engine)) {
        check_version(name)?;
    }
    for (import, _) in ty.imports(engine) {
        let Some(interface) = interface_of(import) else { return Err(LoadError::UnknownImport { import: one_line(import) }) };
        match interface {
            "types" | "clock" | "random" => {}
            "log" | "metrics" | "state" => {
                if !grants.iter().any(|grant| grant.to_string() == interface) {
                    return Err(LoadError::NotGranted { import: import.to_owned(), grant: interface.to_owned() });
                }
            }
            _ => return Err(LoadError::UnknownImport { import: one_line(import) }),
        }
    }
    for wanted in [LIFECYCLE, kind.interface()] {
        let has = |name: &str| name.split('@').next() == Some(wanted);
        if !ty.exports(engine).any(|(name, export)| has(name) && matches!(export.ty, ComponentItem::ComponentInstance(_))) {
            let found: Vec<&str> = ty.exports(engine).map(|(name, _)| name).take(8).collect();
            let found = if found.is_empty() { "nothing".to_owned() } else { one_line(&found.join(", ")) };
            return Err(LoadError::World { kind, missing: wanted.to_owned(), found });
        }
    }
    Ok(())
}

/// `log` of `millrace:policy/log@0.1.0`.
fn interface_of(name: &str) -> Option<&str> {
    name.strip_prefix(PACKAGE)?.strip_prefix('/')?.split('@').next()
}

fn check_version(name: &str) -> Result<(), LoadError> {
    if interface_of(name).is_none() {
        return Ok(());
    }
    let version = name.split_once('@').map_or("", |(_, version)| version);
    let mut parts = version.split('.').map(str::parse::<u64>);
    match (parts.next(), parts.next()) {
        (Some(Ok(0)), Some(Ok(1))) => Ok(()),
        _ => Err(LoadError::Version { name: one_line(name), host: VERSION }),
    }
}

fn exports(component: &Component, kind: PolicyKind) -> Result<Exports, LoadError> {
    let find = |interface: &str, function: &str| -> Result<ComponentExportIndex, LoadError> {
        let instance = component.get_export_index(None, &*format!("{interface}@{VERSION}"));
        instance.and_then(|instance| component.get_export_index(Some(&instance), function)).ok_or_else(|| LoadError::World {
            kind,
            missing: format!("{interface}.{function}"),
            found: format!("{interface} without it"),
        })
    };
    Ok(Exports {
        init: find(LIFECYCLE, "init")?,
        check_config: find(LIFECYCLE, "check-config")?,
        decide: find(kind.interface(), kind.function())?,
        optional: OptionalExports::probe(component, VERSION).map_err(|missing| LoadError::World {
            kind,
            missing,
            found: "its interface without it".to_owned(),
        })?,
    })
}

fn check_memory(component: &Component, limit: usize) -> Result<(), LoadError> {
    let pages = component.resources_required().and_then(|r| r.max_initial_memory_size).unwrap_or(0);
    let (needed, limit) = (pages.saturating_mul(PAGE_BYTES), limit as u64);
    if needed > limit { Err(LoadError::Memory { needed, limit }) } else { Ok(()) }
}

/// The digest in hex, and its first eight bytes as a number.
pub(crate) fn digest(source: &[u8]) -> (String, u64) {
    let bytes = Sha256::digest(source);
    (hex(&bytes), bytes.iter().take(8).fold(0, |seed, &byte| (seed << 8) | u64::from(byte)))
}

pub(crate) fn sorted(wants: &[u32]) -> Vec<u32> {
    let mut wants = wants.to_vec();
    wants.sort_unstable();
    wants.dedup();
    wants
}
