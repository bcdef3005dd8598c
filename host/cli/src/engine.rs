//! `millrace engine`: one pool's engine as a process of its own. A node starts it, gives it a secret on standard input, reads its
//! address from standard output, and ends it by going away.

use std::io::{BufRead as _, ErrorKind, Read};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use millrace_config::Config;
use millrace_core::Stage;
use millrace_node::{Birth, EngineProcess};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output::say;
use crate::{Failure, UsageError, check, serve, told_once};

/// A secret and a number.
const MAX_BIRTH_BYTES: u64 = 256;

#[derive(Subcommand)]
pub(crate) enum Engine {
    /// Prompts, in chunks.
    Prefill(EngineArgs),
    /// Tokens, one a step.
    Decode(EngineArgs),
}

#[derive(Args)]
pub(crate) struct EngineArgs {
    /// TOML file of the deployment.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Pool of this engine; its table has `process = true`.
    #[arg(long, value_name = "NAME")]
    pool: String,
}

impl Engine {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let (stage, args) = match self {
            Self::Prefill(args) => (Stage::Prefill, args),
            Self::Decode(args) => (Stage::Decode, args),
        };
        let config = check::load(&args.config)?;
        check_pool(&config, &args.pool, stage)?;
        // Where it was started through `/proc/self/exe`, lists of processes would call it `exe`. Without such a place, nothing is lost.
        let _ = std::fs::write("/proc/self/comm", "millrace");
        serve::start_log(&config)?;
        let birth = birth()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("hand-off")
            .enable_all()
            .build()
            .context("cannot start the threads of the connections")?;
        let heeded = runtime.block_on(async { leave_signals_to_the_node() });
        let _signals = heeded.context("cannot take signals")?;
        std::thread::Builder::new().name("node".into()).spawn(end_with_the_node).context("cannot watch the node")?;
        let result = runtime.block_on(async {
            let process = EngineProcess::listen(config, &args.pool, stage, birth).await?;
            say!("listening {}", process.address()?);
            process.run().await?;
            Ok::<(), anyhow::Error>(())
        });
        runtime.shutdown_background();
        if let Err(error) = result {
            // Into the log that it shares with the node, in the log's format.
            tracing::error!(pool = args.pool, "{}", told_once(&error));
            std::process::exit(1);
        }
        Ok(())
    }
}

fn check_pool(config: &Config, name: &str, stage: Stage) -> Result<(), Failure> {
    let found = config.pools.iter().find(|pool| pool.name == name && pool.stage == stage);
    if found.is_some_and(|pool| pool.process) {
        return Ok(());
    }
    let names: Vec<&str> =
        config.pools.iter().filter(|pool| pool.process && pool.stage == stage).map(|pool| pool.name.as_str()).collect();
    let why = match (found, names.as_slice()) {
        (Some(_), _) => format!("pool `{name}` runs within the server; set `process = true` in its table"),
        (None, []) => format!("there is no {stage} pool with `process = true`"),
        (None, names) => format!("there is no {stage} pool `{name}` with `process = true`; there is {}", names.join(", ")),
    };
    Err(Failure::Usage(UsageError(format!("--pool: {why}")).0))
}

/// The first line of standard input. A person who starts this by hand is told who should.
fn birth() -> Result<Birth, Failure> {
    let mut line = String::new();
    let mut stdin = std::io::stdin().lock();
    stdin.by_ref().take(MAX_BIRTH_BYTES).read_line(&mut line).context("cannot read standard input")?;
    Birth::parse(&line).map_err(|why| Failure::Usage(format!("{why}; `millrace serve` starts engine processes")))
}

/// Signals that ask for an end are the node's, also where they are sent to every process of a service: it lets requests end before it
/// ends this one. They are taken and dropped.
fn leave_signals_to_the_node() -> std::io::Result<[Signal; 2]> {
    Ok([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?])
}

/// Standard input ends when the node does, however it does.
fn end_with_the_node() {
    wait_for_the_end(std::io::stdin().lock());
    std::process::exit(0);
}

/// Nothing more is expected; a signal that comes is no end.
fn wait_for_the_end(mut input: impl Read) {
    let mut byte = [0; 1];
    loop {
        match input.read(&mut byte) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interrupted, a byte, interrupted, the end.
    struct Interrupted(u8);

    impl Read for Interrupted {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 | 3 => Err(ErrorKind::Interrupted.into()),
                2 => Ok(1),
                _ => Ok(0),
            }
        }
    }

    #[test]
    fn a_signal_is_not_the_end_of_standard_input() {
        let mut input = Interrupted(0);
        wait_for_the_end(&mut input);
        assert_eq!(input.0, 4);
    }
}
