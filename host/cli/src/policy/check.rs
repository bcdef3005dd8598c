//! `millrace policy check`: the load path, stopped before anything would serve. Says all that is wrong and how to mend it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use millrace_policy_wasm::Inspection;
use millrace_policy_wasm::{EngineOptions, LoadError, LoadedPolicy, PolicyEngine, PolicyKind, PolicyOptions, contract};
use serde_json::{Value, json};

use super::Kind;
use super::facts::Monotonic;
use super::source::Source;
use crate::output::{read_bounded, say};
use crate::{Failure, UsageError};

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// A component, a core module with component types, or a built-in policy: `builtin:fair`, to try its table.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// A deployment's TOML, whose [policy.KIND] gives limits, pin and table; or a .json file with the table alone.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The decision, where the component makes several.
    #[arg(short, long)]
    kind: Option<Kind>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let source = Source::read(&args.file)?;
    let kind = source.kind(args.kind)?;
    let mut options = options(kind, args.config.as_deref())?;
    if source.is_builtin {
        // Files are pinned, not what is in the binary.
        options.sha256 = None;
    }
    let loaded = engine(&options).and_then(|engine| Ok(engine.load(&source.bytes, kind, &options)?));
    match loaded {
        Ok(loaded) if args.json => say!("{}", object(&source.inspection, &loaded)),
        Ok(loaded) => report(&args.file, &source.inspection, &loaded, &options),
        Err(error) => {
            // Its table is the operator's to mend, everything else the author's.
            let is_config = matches!(error.downcast_ref(), Some(LoadError::Config(_) | LoadError::Init(_)));
            let error = error.context(args.file.display().to_string());
            return Err(if is_config { UsageError(format!("{error:#}")).into() } else { error.into() });
        }
    }
    Ok(())
}

/// As the deployment would load it; without one, with the limits that it would have.
pub(super) fn options(kind: PolicyKind, config: Option<&Path>) -> Result<PolicyOptions> {
    let Some(path) = config else { return Ok(millrace_node::default_policy_options(kind)) };
    let is_table = path.extension().is_some_and(|extension| extension == "json");
    if !is_table {
        let deployment = millrace_config::load(path).map_err(|errors| UsageError(errors.to_string()))?;
        return Ok(millrace_node::policy_options(&deployment, kind));
    }
    let usage = |why: String| UsageError(format!("{}: {why}", path.display()));
    let bytes = read_bounded(path, 64 << 10, "a policy's table").map_err(|error| UsageError(format!("{error:#}")))?;
    let table: Value = serde_json::from_slice(&bytes).map_err(|error| usage(format!("no JSON: {error}")))?;
    if !table.is_object() {
        return Err(usage("a policy's table is a JSON object, {\"key\": value}".to_owned()).into());
    }
    Ok(PolicyOptions { config_json: table.to_string(), ..millrace_node::default_policy_options(kind) })
}

pub(crate) fn engine(options: &PolicyOptions) -> Result<PolicyEngine> {
    let mut engine = EngineOptions::new(Arc::new(Monotonic::new()));
    engine.max_memory_bytes = engine.max_memory_bytes.max(options.limits.memory_bytes);
    PolicyEngine::new(engine).context("cannot start the Wasm engine")
}

fn report(file: &Path, found: &Inspection, loaded: &LoadedPolicy, options: &PolicyOptions) {
    let (info, kind) = (loaded.info(), loaded.kind());
    let imports: Vec<&str> = found.called().map(|import| import.name.as_str()).collect();
    say!("{}: {kind} policy `{}`, version {}", file.display(), info.name, info.version);
    say!("size       {} bytes of {}; sha256 {}", found.bytes, options.limits.component_bytes, info.sha256);
    say!("imports    {}", if imports.is_empty() { "nothing".to_owned() } else { format!("{}: all granted", imports.join(", ")) });
    say!("compiled   in {} ms of {}", loaded.compile_time().as_millis(), options.limits.compile_us / 1_000);
    say!("memory     {} bytes after `init` of {}", memory(loaded).unwrap_or(0), options.limits.memory_bytes);
    say!("reads      {}", wants(loaded).join(", "));
    say!("decisions  on made-up facts keep to the rules; the table of the configuration is accepted");
    say!("fine");
}

/// Of an instance that has started.
pub(super) fn memory(loaded: &LoadedPolicy) -> Result<u64, LoadError> {
    Ok(match loaded.kind() {
        PolicyKind::Precision => loaded.precision()?.report().memory_bytes,
        PolicyKind::Route => loaded.route()?.report().memory_bytes,
        PolicyKind::Schedule => loaded.schedule()?.report().memory_bytes,
    })
}

/// Names of the columns; a number where the contract has no name for it.
fn wants(loaded: &LoadedPolicy) -> Vec<String> {
    let kinds: Vec<contract::ColumnKind> = contract::column_kinds().collect();
    let name = |wanted: &u32| {
        let known = kinds.iter().find(|kind| kind.number == *wanted);
        known.map_or_else(|| format!("{wanted} (unknown to this host)"), |kind| kind.name.to_owned())
    };
    if loaded.wants().is_empty() {
        return vec!["every column; naming those that are read in `wants` saves copying the others".to_owned()];
    }
    loaded.wants().iter().map(name).collect()
}

fn object(found: &Inspection, loaded: &LoadedPolicy) -> Value {
    let info = loaded.info();
    json!({
        "kind": loaded.kind().to_string(), "name": info.name, "version": info.version, "sha256": info.sha256,
        "bytes": found.bytes, "imports": found.called().map(|i| &i.name).collect::<Vec<_>>(),
        "compile_ns": u64::try_from(loaded.compile_time().as_nanos()).unwrap_or(u64::MAX),
        "memory_bytes": memory(loaded).unwrap_or(0), "wants": loaded.wants(),
    })
}
