//! `millrace check`: reads a configuration and says everything that is wrong with it. Opens nothing that it names; policies of the
//! binary are there already, so their tables are tried.

use std::path::{Path, PathBuf};

use clap::Args;
use millrace_config::{Config, PolicySource, PolicySpec};
use millrace_policy_wasm::{PolicyKind, builtin};

use crate::output::say;
use crate::{Failure, policy};

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// TOML file of the deployment.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let config = load(&args.config)?;
    try_builtins(&config, &args.config)?;
    say!("{}", config.summary());
    say!("{}: fine", args.config.display());
    Ok(())
}

/// Reads a configuration.
pub(crate) fn load(path: &Path) -> Result<Config, Failure> {
    millrace_config::load(path).map_err(|errors| Failure::Usage(errors.to_string()))
}

/// Built-in policies about which the file says anything are loaded as `serve` would load them. Others are known to be fine, and
/// compiling them takes a while. All that is wrong with them at once.
pub(crate) fn try_builtins(config: &Config, path: &Path) -> Result<(), Failure> {
    let by_default = millrace_config::default_policies();
    let specs: [(PolicyKind, &PolicySpec, &PolicySpec); 3] = [
        (PolicyKind::Precision, &config.policies.precision, &by_default.precision),
        (PolicyKind::Route, &config.policies.route, &by_default.route),
        (PolicyKind::Schedule, &config.policies.schedule, &by_default.schedule),
    ];
    let mut faults = Vec::new();
    for (kind, spec, usual) in specs {
        let PolicySource::Builtin(name) = spec.source else { continue };
        let Some(component) = builtin::named(kind, name).filter(|_| spec != usual) else { continue };
        let options = millrace_node::policy_options(config, kind);
        if let Err(error) = policy::engine(&options)?.load(component, kind, &options) {
            faults.push(format!("{}: [policy.{kind}], `{name}`: {error}", path.display()));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(Failure::Usage(faults.join("\n"))) }
}
