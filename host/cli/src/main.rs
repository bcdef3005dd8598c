//! The `millrace` binary: parses the command line, calls, prints. Exit codes: 0 fine, 1 failed, 2 usage or configuration, 3 (of
//! `simulate` alone) nothing failed, but less was seen than was asked for.
#![forbid(unsafe_code)]

mod bench;
mod check;
mod engine;
mod eval;
mod keys;
mod open_files;
mod output;
mod plan;
mod policy;
mod quantize;
mod serve;
#[cfg(feature = "simulate")]
mod simulate;

use std::fmt;
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
    /// One pool's engine as a process of its own, under a server that starts it.
    #[command(subcommand)]
    Engine(engine::Engine),
    /// Make API keys.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Numbers out of a checkpoint, without a server.
    #[command(subcommand)]
    Eval(eval::Eval),
    /// Size a deployment from a model's config.json: weights, KV, pages and tokens, before a GPU is bought.
    Plan(plan::PlanArgs),
    /// Quantize a hub checkpoint to FP8 or INT4, tensor by tensor.
    Quantize(quantize::QuantizeArgs),
    /// Write, build, check, measure and prove policies.
    #[command(subcommand)]
    Policy(policy::Policy),
    /// Worlds full of faults: the real engine under a virtual clock, every token and every page judged.
    #[cfg(feature = "simulate")]
    Simulate(simulate::SimulateArgs),
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
    /// Nothing is wrong, but less was seen than was asked for: exit code 3.
    #[cfg(feature = "simulate")]
    Incomplete(String),
}

/// A usage error on its way through code whose other errors are none.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        if error.is::<UsageError>() { Self::Usage(told_once(&error)) } else { Self::Failed(error) }
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Engine(command) => command.run(),
        Command::Keys(command) => command.run(),
        Command::Eval(command) => command.run().map_err(Failure::from),
        Command::Plan(args) => plan::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Policy(command) => command.run(),
        #[cfg(feature = "simulate")]
        Command::Simulate(args) => simulate::run(&args),
        Command::Bench(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
        #[cfg(feature = "simulate")]
        Err(Failure::Incomplete(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(3)
        }
        Err(Failure::Failed(error)) => {
            eprintln!("error: {}", told_once(&error));
            ExitCode::from(1)
        }
    }
}

/// An error and its causes in one line. Many errors name their cause already; then it is not named again.
fn told_once(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let refused = std::io::Error::from_raw_os_error(98);
        let said = refused.to_string();
        let bind = millrace_api::BindError { address: "127.0.0.1:80".parse().unwrap(), source: refused };
        assert_eq!(told_once(&bind.into()).matches(&said).count(), 1);
        let missing = safetensors::SafeTensorError::IoError(std::io::Error::from_raw_os_error(2));
        let text = told_once(&Err::<(), _>(missing).context("cannot write x").unwrap_err());
        assert_eq!(text.matches("No such file").count(), 1, "{text}");
        assert!(text.starts_with("cannot write x: "), "{text}");
        let plain = anyhow::anyhow!("inner").context("outer");
        assert_eq!(told_once(&plain), "outer: inner");
    }

    /// Every command as it is typed: `serve`, `keys new`.
    fn commands() -> Vec<String> {
        let typed = |group: &clap::Command| {
            let below = group.get_subcommands().map(|command| format!("{} {}", group.get_name(), command.get_name()));
            if group.has_subcommands() { below.collect() } else { vec![group.get_name().to_owned()] }
        };
        Cli::command().get_subcommands().flat_map(typed).collect()
    }

    #[test]
    fn the_texts_name_the_commands_that_there_are_and_no_others() {
        Cli::command().debug_assert();
        let (commands, readme) = (commands(), include_str!("../../../README.md"));
        for command in &commands {
            assert!(readme.contains(&format!("`millrace {command}")), "the README does not name `millrace {command}`");
        }
        let texts = [readme, include_str!("../../../ARCHITECTURE.md"), include_str!("../../../examples/reference.toml")];
        for named in texts.iter().flat_map(|text| text.split("`millrace ").skip(1)) {
            let named = named.split('`').next().unwrap_or_default();
            // A group stands for the commands in it: `millrace eval`.
            let fits = |command: &str| named.starts_with(&format!("{command} ")) || command.starts_with(&format!("{named} "));
            let is_one = commands.iter().any(|command| named == command || fits(command));
            assert!(is_one, "`millrace {named}` is no command");
        }
    }
}
