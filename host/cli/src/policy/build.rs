//! `millrace policy build`: a component out of a core module that carries its component types, as wit-bindgen writes them.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use millrace_policy_wasm::{componentize, inspect};

use super::source::{quietly, read_file};
use crate::Failure;
use crate::output::say;

#[derive(Args)]
pub(crate) struct BuildArgs {
    /// The core module, as rustc, clang or zig wrote it.
    #[arg(value_name = "MODULE")]
    module: PathBuf,
    /// Where the component goes.
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn run(args: &BuildArgs) -> Result<(), Failure> {
    let module = args.module.display();
    let core = read_file(&args.module, "a module")?;
    let component = quietly(|| componentize(&core)).with_context(|| module.to_string())?;
    let found = quietly(|| inspect(&component)).with_context(|| format!("what was made of {module}"))?;
    std::fs::write(&args.out, &component).with_context(|| format!("cannot write {}", args.out.display()))?;
    say!("{}: {} bytes, sha256 {}", args.out.display(), found.bytes, found.sha256);
    Ok(())
}
