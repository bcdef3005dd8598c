//! `millrace engine`: one pool's engine as a process of its own. A node starts it, gives it a secret on standard input, reads its
//! address from standard output, and ends it by going away.

use std::io::{BufRead as _, Read as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use millrace_config::Config;
use millrace_core::Stage;
use millrace_node::{Birth, EngineProcess};

use crate::output::say;
use crate::{Failure, UsageError, check, serve};

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
        serve::start_log(&config)?;
        let birth = birth()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("hand-off")
            .enable_all()
            .build()
            .context("cannot start the threads of the connections")?;
        std::thread::Builder::new().name("node".into()).spawn(end_with_the_node).context("cannot watch the node")?;
        let result = runtime.block_on(async {
            let process = EngineProcess::listen(config, &args.pool, stage, birth).await?;
            say!("listening {}", process.address()?);
            process.run().await?;
            Ok::<(), anyhow::Error>(())
        });
        runtime.shutdown_background();
        result.map_err(Failure::from)
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

/// Standard input ends when the node does, however it does.
fn end_with_the_node() {
    let mut byte = [0; 1];
    while matches!(std::io::stdin().lock().read(&mut byte), Ok(1..)) {}
    std::process::exit(0);
}
