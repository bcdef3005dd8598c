//! `millrace serve`: listeners first, so that probes have an answer while the weights load; then the node; then until a signal.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use millrace_api::{Api, ApiOptions, Running, Server};
use millrace_config::{AdminAccess, Config, LogFormat};
use millrace_node::{Node, PolicyKind};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::output::tell;
use crate::{Failure, check, open_files};

/// How long a write may wait for a client that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Beside requests' own work, which runs here as well.
const BLOCKING_THREADS: usize = 64;

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// TOML file of the deployment.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = check::load(&args.config)?;
    check::try_builtins(&config, &args.config)?;
    start_log(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(runtime_threads())
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("http")
        .enable_all()
        .build()
        .context("cannot start the threads that serve HTTP")?;
    let result = runtime.block_on(serve(config));
    // Requests that were cut may still be tokenizing; nobody waits for them.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result.map_err(Failure::from)
}

/// Engines have threads of their own; HTTP needs few.
fn runtime_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 4)
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let api = Api::new(api_options(&config)).map_err(|e| anyhow::anyhow!("the operating system gave no random bytes: {e}"))?;
    let server = Server::bind(api.clone(), config.server.listen, config.server.admin_listen).await?;
    let (public, admin) = (server.public_addr()?, server.admin_addr()?);
    let running = server.start();
    tell!(
        "listening on http://{public}, admin on http://{admin}; loading {}",
        config.models.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(", ")
    );
    let drain_timeout = Duration::from_millis(config.server.drain_timeout_ms);
    let mut loading = tokio::task::spawn_blocking(move || Node::start(&config));
    let node = tokio::select! {
        node = &mut loading => node.context("loading ended early")??,
        () = signals.wait() => {
            tell!("stopped while loading");
            std::process::exit(0);
        }
    };
    api.serve(node.clone());
    announce(&node);
    signals.wait().await;
    tell!("shutting down: requests that run have up to {} ms", drain_timeout.as_millis());
    drain(running, drain_timeout, signals).await;
    Ok(())
}

/// A second signal ends the process at once.
async fn drain(running: Running, timeout: Duration, mut signals: Signals) {
    tokio::select! {
        () = running.drain(timeout) => tell!("stopped"),
        () = signals.wait() => {
            eprintln!("stopped by a second signal");
            std::process::exit(1);
        }
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn api_options(config: &Config) -> ApiOptions {
    let server = &config.server;
    let policies = [&config.policies.route, &config.policies.schedule, &config.policies.precision];
    let largest_mib = policies.iter().map(|p| p.max_component_mib).max().unwrap_or(0);
    ApiOptions {
        max_body_bytes: usize::try_from(server.max_body_bytes).unwrap_or(usize::MAX),
        max_header_bytes: server.max_header_bytes as usize,
        header_timeout: Duration::from_millis(server.header_timeout_ms),
        body_timeout: Duration::from_millis(server.body_timeout_ms),
        write_timeout: WRITE_TIMEOUT,
        max_connections: open_files::fitting(server.max_connections, server.max_admin_connections) as usize,
        max_admin_connections: server.max_admin_connections as usize,
        allowed_origins: server.allowed_origins.clone(),
        max_component_bytes: (largest_mib as usize).saturating_mul(1 << 20),
        admin_key: match &server.admin {
            AdminAccess::Open => None,
            AdminAccess::Key(digest) => Some(digest.clone()),
        },
    }
}

/// What is served, in a few lines.
fn announce(node: &Node) {
    let model = node.model();
    tell!("ready: {} ({} tokens of context)", model.name, model.context_tokens);
    for lane in node.lanes() {
        tell!("  lane {}: {}", lane.name, lane.precision);
    }
    for kind in [PolicyKind::Route, PolicyKind::Schedule, PolicyKind::Precision] {
        let info = node.policies().status(kind).info;
        tell!("  policy {kind}: {}@{} ({})", info.name, info.version, info.origin);
    }
}

/// `RUST_LOG` wins over the configuration's level.
pub(crate) fn start_log(config: &Config) -> Result<(), Failure> {
    let level = config.server.log_level.as_str();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match config.server.log_format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
    };
    started.map_err(|error| Failure::Failed(anyhow::anyhow!("cannot start the log: {error}")))
}
