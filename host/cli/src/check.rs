//! `millrace check`: reads a configuration and says everything that is wrong with it. Opens nothing that it names.

use std::path::{Path, PathBuf};

use clap::Args;
use millrace_config::Config;

use crate::Failure;
use crate::output::say;

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// TOML file of the deployment.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let config = load(&args.config)?;
    say!("{}", config.summary());
    say!("{}: fine", args.config.display());
    Ok(())
}

/// Reads a configuration.
pub(crate) fn load(path: &Path) -> Result<Config, Failure> {
    millrace_config::load(path).map_err(|errors| Failure::Usage(errors.to_string()))
}
