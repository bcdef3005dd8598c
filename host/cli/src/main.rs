//! The `millrace` binary: parses the command line, calls, prints. Exit codes: 0 fine, 1 failed, 2 usage or configuration.
#![forbid(unsafe_code)]

mod bench;
mod check;
mod eval;
mod keys;
mod plan;
mod open_files;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Serves language models with prefill and decode at different precision, under policies in WebAssembly.
#[derive(Parser)]
#[command(name = "millrace", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a deployment.
    Serve(serve::ServeArgs),
    /// Check a configuration; opens nothing that it names.
    Check(check::CheckArgs),
    /// Make API keys.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Numbers out of a checkpoint, without a server.
    #[command(subcommand)]
    Eval(eval::Eval),
    /// Size a deployment from a model's config.json: weights, KV, pages and tokens, before a GPU is bought.
    Plan(plan::PlanArgs),
    /// Measurements.
    #[command(subcommand)]
    Bench(bench::Bench),
}

/// How a command failed.
pub(crate) enum Failure {
    /// Usage or configuration: exit code 2.
    Usage(String),
    /// Anything else: exit code 1.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Keys(command) => command.run(),
        Command::Eval(command) => command.run().map_err(Failure::from),
        Command::Plan(args) => plan::run(&args),
        Command::Bench(command) => command.run().map_err(Failure::from),
        Command::Bench(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
        Err(Failure::Failed(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::from(1)
        }
    }
}
