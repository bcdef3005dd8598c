//! `millrace bench tags`: what page tags cost. Decode of the whole engine with tags on, off (the switch of the TOML) and compiled out,
//! and the check alone.
//!
//! On and off are two decode pools of one engine: the same weights, threads and prefill pool. Compiled out is a second binary, built
//! without the feature `tags`, that runs as a child and holds an engine of its own (`bench tags --worker`). One at a time decodes the
//! same streams; a round is one run of each, in an order that changes from round to round, so that what drifts on the machine meets all
//! alike. Streams have all but their last page of prompt in common, which the prefill pools keep: only decode is measured, and there
//! every stream has pages of its own.

mod baseline;
mod check;
mod report;
mod rounds;
mod worker;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use millrace_engine::{TAGS_BUILT, TagChecks};
use serde_json::json;

use super::lane::{BenchLane, LaneOptions, Profiling, Prompts, Streams};
use super::paired::METHOD;
use super::room::Wanted;
use super::stages::StageArgs;
use super::start_at_1;
use crate::Failure;
use crate::output::say;
use baseline::Baseline;
use report::Row;
use rounds::Rounds;

/// The first is prefill's, the second begins the time that is measured, and two make a gap.
const MIN_OUTPUT: usize = 4;
/// Prompt tokens of a prefill step, at most.
const CHUNK: usize = 512;

#[derive(Args)]
pub(crate) struct TagsArgs {
    #[command(flatten)]
    stages: StageArgs,
    /// Streams in decode.
    #[arg(short, long, value_delimiter = ',', default_value = "1,8,32,64")]
    batch: Vec<usize>,
    /// Tokens in each stream's cache before decode begins.
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "128,2048")]
    context: Vec<usize>,
    /// Tokens generated per stream.
    #[arg(short = 'n', long, default_value_t = 64)]
    output: usize,
    /// Measured rounds of each test, after one that warms up.
    #[arg(short, long, default_value_t = 15)]
    rounds: usize,
    /// A millrace that was built without page tags (cargo build --no-default-features), to run in alternation.
    #[arg(long, value_name = "PATH")]
    baseline: Option<PathBuf>,
    /// One JSON object on stdout instead of a table.
    #[arg(long)]
    json: bool,
    /// Runs tests that standard input names, one a line, and prints the figures of each: what --baseline starts.
    #[arg(long, hide = true, conflicts_with_all = ["baseline", "json"])]
    worker: bool,
}

pub(crate) fn run(args: &TagsArgs) -> Result<(), Failure> {
    check_numbers(args).map_err(Failure::Usage)?;
    if args.worker {
        return worker::run(args);
    }
    if !TAGS_BUILT {
        let why = "this build has no page tags, so nothing can be compared; name it as the --baseline of a build that has them";
        return Err(Failure::Usage(why.to_owned()));
    }
    let lane = start(args, vec![TagChecks::On, TagChecks::Off])?;
    let mut baseline = args.baseline.as_deref().map(|path| Baseline::start(path, args)).transpose()?;
    if !args.json {
        say!("{}\n{}", lane.description(), report::head(args.rounds, baseline.is_some()));
    }
    let mut rows = Vec::new();
    for (&batch, &depth) in args.batch.iter().flat_map(|batch| args.context.iter().map(move |context| (batch, context))) {
        let streams = Streams { batch, depth, output: args.output };
        let what = || format!("decode of {batch} streams behind {depth} tokens");
        let rounds = Rounds::run(streams, args.rounds, (&lane, baseline.as_mut())).with_context(what)?;
        let row = Row { streams, rounds, check: check::measure(lane.backend(), streams).with_context(what)? };
        if !args.json {
            say!("{}", row.line());
        }
        rows.push(row);
    }
    if args.json {
        let results: Vec<_> = rows.iter().map(Row::json).collect();
        let method = format!("one warm-up and {} rounds per test, one run of each way per round; {METHOD}", args.rounds);
        let precision = args.stages.precision().to_string();
        say!("{}", json!({"results": results, "precision": precision, "method": method, "threads": lane.threads()}));
    }
    Ok(())
}

/// # Errors
/// Numbers with which nothing can be measured.
fn check_numbers(args: &TagsArgs) -> Result<(), String> {
    if args.rounds == 0 {
        return Err("-r 0: at least one round is needed".to_owned());
    }
    if args.output < MIN_OUTPUT {
        return Err(format!("-n {}: at least {MIN_OUTPUT} tokens are needed to measure anything", args.output));
    }
    start_at_1(&[("-b", &args.batch), ("-d", &args.context)])
}

/// An engine with a decode pool for each of `tags`.
fn start(args: &TagsArgs, tags: Vec<TagChecks>) -> Result<BenchLane, Failure> {
    let longest = args.context.iter().copied().max().unwrap_or(1);
    let wanted = Wanted {
        prompts: Vec::new(),
        batches: args.batch.clone(),
        depths: args.context.clone(),
        output: args.output,
        chunk: CHUNK.min(longest),
        kept: 1,
    };
    let (precision, threads) = (args.stages.precision(), args.stages.weights.threads);
    let (profile, pool_bytes, prompts, tenants) = (Profiling::Off, None, Prompts::Kept, 1);
    BenchLane::start(
        &args.stages.weights.model,
        &LaneOptions { precision, threads, wanted, tags, profile, pool_bytes, prompts, tenants },
    )
}
