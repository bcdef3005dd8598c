//! `millrace policy ..`: what an author needs to write, check, measure and prove a policy, away from any server. Knows how to ask
//! and print; what is asked is `millrace-policy-wasm`'s.

mod bench;
mod build;
mod check;
mod facts;
mod inspect;
mod parts;
mod project;
mod replay;
mod source;

use clap::{Subcommand, ValueEnum};
use millrace_policy_wasm::PolicyKind;

use crate::Failure;

pub(crate) use check::engine;

#[derive(Subcommand)]
pub(crate) enum Policy {
    /// A project that builds at once, away from the repository: contract, SDK, a policy to change and its script.
    New(project::NewArgs),
    /// A component out of the core module that a toolchain wrote.
    Build(build::BuildArgs),
    /// Would a host take it? The load path stopped early: world, imports, limits, configuration, trial decisions.
    Check(check::CheckArgs),
    /// Time per decision through the whole host path; compile, start, memory.
    Bench(bench::BenchArgs),
    /// What a host recorded, decided once more and compared.
    Replay(replay::ReplayArgs),
    /// Exports, imports, size and digest, without running it.
    Inspect(inspect::InspectArgs),
}

impl Policy {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::New(args) => project::run(&args),
            Self::Build(args) => build::run(&args),
            Self::Check(args) => check::run(&args),
            Self::Bench(args) => bench::run(&args),
            Self::Replay(args) => replay::run(&args),
            Self::Inspect(args) => inspect::run(&args),
        }
    }
}

/// Which decision a policy makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Route,
    Schedule,
    Precision,
}

impl From<Kind> for PolicyKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Route => Self::Route,
            Kind::Schedule => Self::Schedule,
            Kind::Precision => Self::Precision,
        }
    }
}
