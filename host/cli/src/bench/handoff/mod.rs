//! `millrace bench handoff`: what it costs that prefill and decode are apart. One prompt at a time through a lane whose two pools are in
//! one engine, and through one whose pools are two engines with a TCP connection between them, TLS and proofs as served.
//!
//! The first token is prefill's own and is published before the hand-off, the second is decode's. So the time to the first token says
//! whether a transport burdens prefill, and the time from the first to the second is the hand-off and one decode step. A transfer lasts
//! from the first token until prefill has heard that decode runs the sequence; its bytes are those of all frames that prefill wrote.
//! Both engines are in this process, each with its own scheduler and thread, on one device. Runs of the two transports alternate.

mod figures;
mod tcp;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use millrace_core::KvFormat;
use millrace_engine::{Event, TagChecks};
use serde_json::json;

use self::figures::{Figures, HEADER};
use self::tcp::TcpLane;
use super::lane::{BenchLane, LaneOptions, Profiling, Prompts};
use super::parse_kv;
use super::room::Wanted;
use super::stages::WeightArgs;
use crate::Failure;
use crate::output::say;

/// One of prefill, one of decode.
const OUTPUT: usize = 2;
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Args)]
pub(crate) struct HandoffArgs {
    #[command(flatten)]
    weights: WeightArgs,
    /// Prompt lengths.
    #[arg(short, long, value_delimiter = ',', default_value = "128,1500")]
    prompt: Vec<usize>,
    /// KV formats of decode, which are those of the wire (prefill keeps bf16; f32 with f32).
    #[arg(long, value_delimiter = ',', default_value = "bf16,fp8", value_parser = parse_kv)]
    kv: Vec<KvFormat>,
    /// Tokens of a prefill chunk.
    #[arg(long, default_value_t = 512)]
    chunk: usize,
    /// Measured repeats of each test.
    #[arg(short, long, default_value_t = 5)]
    repeats: usize,
    /// One JSON object on stdout instead of a table.
    #[arg(long)]
    json: bool,
}

/// One prompt's way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Run {
    /// From submission to the token of prefill.
    first: Duration,
    /// From there to the token of decode.
    second: Duration,
    /// Over TCP.
    transfer: Option<Transfer>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Transfer {
    bytes: u64,
    took: Duration,
}

pub(crate) fn run(args: &HandoffArgs) -> Result<(), Failure> {
    check(args).map_err(Failure::Usage)?;
    let mut all = Vec::new();
    for &kv in &args.kv {
        let options = options(args, kv);
        let (within, apart) = (BenchLane::start(&args.weights.model, &options)?, TcpLane::start(&args.weights.model, &options)?);
        if !args.json {
            say!("{}\n{HEADER}", within.description());
        }
        for &tokens in &args.prompt {
            let [one, two] =
                measure(args, (&within, &apart), tokens).with_context(|| format!("hand-off of {tokens} tokens in {kv}"))?;
            for (transport, runs) in [("in process", one), ("tcp", two)] {
                let figures = Figures::new(transport, kv, tokens, &runs);
                if !args.json {
                    say!("{}", figures.line());
                }
                all.push(figures);
            }
        }
    }
    if args.json {
        let results: Vec<_> = all.iter().map(Figures::json).collect();
        let method = format!("one warm-up and {} repeats per test, transports in turns, median", args.repeats);
        say!("{}", json!({"results": results, "method": method}));
    }
    Ok(())
}

/// # Errors
/// Numbers with which nothing can be measured.
fn check(args: &HandoffArgs) -> Result<(), String> {
    if args.repeats == 0 {
        return Err("-r 0: at least one repeat is needed".to_owned());
    }
    if args.prompt.contains(&0) {
        return Err("-p 0: numbers start at 1".to_owned());
    }
    if args.chunk == 0 {
        return Err("--chunk 0: at least one token per prefill step".to_owned());
    }
    Ok(())
}

fn options(args: &HandoffArgs, kv: KvFormat) -> LaneOptions {
    let precision = args.weights.precision(kv);
    let (prompts, chunk) = (args.prompt.clone(), args.chunk);
    let wanted = Wanted { prompts, batches: vec![1], depths: vec![1], output: OUTPUT, chunk, kept: 0 };
    LaneOptions {
        precision,
        threads: args.weights.threads,
        wanted,
        tags: vec![TagChecks::On],
        profile: Profiling::Off,
        pool_bytes: None,
        prompts: Prompts::Fresh,
        tenants: 1,
    }
}

/// The runs of both transports without the warm-up, the other one first in every second repeat.
fn measure(args: &HandoffArgs, (within, apart): (&BenchLane, &TcpLane), tokens: usize) -> Result<[Vec<Run>; 2]> {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for repeat in 0..=args.repeats {
        if repeat % 2 == 0 {
            one.push(run_within(within, tokens)?);
            two.push(apart.run(tokens)?);
        } else {
            two.push(apart.run(tokens)?);
            one.push(run_within(within, tokens)?);
        }
    }
    Ok([one.split_off(1), two.split_off(1)])
}

fn run_within(lane: &BenchLane, tokens: usize) -> Result<Run> {
    let began = Instant::now();
    let events = lane.submit([lane.fresh(tokens, OUTPUT)])?;
    let mut stamps = Vec::with_capacity(OUTPUT);
    loop {
        let (_, at, event) = events.recv_timeout(PATIENCE).context("the engine went silent")?;
        match event {
            Event::Token(_) => stamps.push(at),
            Event::Failed(error) => bail!("the sequence failed: {error}"),
            Event::Finished(_) => break,
            Event::Prefilled { .. } => {}
        }
    }
    let (Some(&first), Some(&second)) = (stamps.first(), stamps.get(1)) else {
        bail!("the sequence ended before its second token")
    };
    Ok(Run { first: first.duration_since(began), second: second.duration_since(first), transfer: None })
}
