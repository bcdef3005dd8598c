//! `millrace bench engine`: what the engine does per second, without HTTP and text.
//!
//! Prefill: one request of P tokens and one output token; P / (submission to first token).
//! Decode: B requests with different prompts of D tokens. All of them go through prefill and are handed off before the decode pool
//! begins its first step, so every step runs all B; tokens of all streams / time, from the second token of each to the last.
//! Greedy, no stop tokens. Each test is warmed up once and repeated; the median counts.

use anyhow::{Context as _, Result};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use millrace_core::{KvFormat, Precision, Stage};
use millrace_engine::{TAGS_BUILT, TagChecks};
use serde_json::json;

use super::lane::{BenchLane, LaneOptions, Profiling, Prompts, Run, Streams};
use super::memory::peak_rss_bytes;
use super::profile::Profile;
use super::report::{HEADER, TestResult};
use super::room::Wanted;
use super::spread::Spread;
use super::stages::StageArgs;
use super::start_at_1;
use crate::Failure;
use crate::output::say;

/// The first is prefill's, the second begins the time that is measured.
const MIN_OUTPUT: usize = 4;

#[derive(Args)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    stages: StageArgs,
    /// Prompt lengths for prefill.
    #[arg(short, long, value_delimiter = ',', default_value = "128,512")]
    prompt: Vec<usize>,
    /// Tokens generated per stream in decode.
    #[arg(short = 'n', long, default_value_t = 128)]
    output: usize,
    /// Streams in decode.
    #[arg(short, long, value_delimiter = ',', default_value = "1,8,32")]
    batch: Vec<usize>,
    /// Tokens in each stream's cache before decode begins.
    #[arg(short, long, value_delimiter = ',', default_value = "8")]
    depth: Vec<usize>,
    /// Tokens of a prefill chunk.
    #[arg(long, default_value_t = 512)]
    chunk: usize,
    /// Measured repeats of each test.
    #[arg(short, long, default_value_t = 5)]
    repeats: usize,
    /// Check page tags in every step.
    #[arg(long, default_value_t = TAGS_BUILT, action = clap::ArgAction::Set)]
    tags: bool,
    /// What a step is made of: phases of the engine, operations of the device; of each test's last run. Measuring costs about
    /// 1 % of a short step.
    #[arg(long)]
    profile: bool,
    /// One JSON object on stdout instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn parse_kv(text: &str) -> Result<KvFormat, String> {
    match text {
        "f32" => Ok(KvFormat::F32),
        "bf16" => Ok(KvFormat::Bf16),
        "fp8" => Ok(KvFormat::Fp8),
        other => Err(format!("`{other}` is no KV format; use f32, bf16 or fp8")),
    }
}

/// Threads that a backend can have; 0 leaves it to the machine.
pub(crate) fn threads() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=millrace_cpu::MAX_THREADS as u64)
}

pub(crate) fn run(args: &EngineArgs) -> Result<(), Failure> {
    let wanted = wanted(args).map_err(Failure::Usage)?;
    let precision = args.stages.precision();
    let profile = if args.profile { Profiling::On } else { Profiling::Off };
    let tags = vec![if args.tags { TagChecks::On } else { TagChecks::Off }];
    let (threads, prompts, tenants) = (args.stages.weights.threads, Prompts::Fresh, 1);
    let options = LaneOptions { precision, threads, wanted, tags, profile, pool_bytes: None, prompts, tenants };
    let lane = BenchLane::start(&args.stages.weights.model, &options)?;
    if !args.json {
        say!("{}\n{HEADER}", lane.description());
    }
    let results = measure(args, &lane)?;
    if args.json {
        print_json(args, &lane, &precision, &results);
    }
    Ok(())
}

/// # Errors
/// Numbers with which nothing can be measured.
fn wanted(args: &EngineArgs) -> Result<Wanted, String> {
    if args.repeats == 0 {
        return Err("-r 0: at least one repeat is needed".to_owned());
    }
    if args.output < MIN_OUTPUT {
        return Err(format!("-n {}: at least {MIN_OUTPUT} tokens are needed to measure anything", args.output));
    }
    start_at_1(&[("-p", &args.prompt), ("-b", &args.batch), ("-d", &args.depth)])?;
    if args.chunk == 0 {
        return Err("--chunk 0: at least one token per prefill step".to_owned());
    }
    let (prompts, batches, depths) = (args.prompt.clone(), args.batch.clone(), args.depth.clone());
    Ok(Wanted { prompts, batches, depths, output: args.output, chunk: args.chunk, kept: 0 })
}

fn measure(args: &EngineArgs, lane: &BenchLane) -> Result<Vec<TestResult>> {
    let mut results = Vec::new();
    for &tokens in &args.prompt {
        let (rates, profile) =
            repeat(args.repeats, || lane.prefill(tokens)).with_context(|| format!("prefill of {tokens} tokens"))?;
        let profile = args.profile.then_some(profile);
        let peak_rss_bytes = peak_rss_bytes();
        let result = TestResult { stage: Stage::Prefill, tokens, batch: 1, depth: 0, rates, profile, peak_rss_bytes };
        push(&mut results, args.json, result);
    }
    for (&batch, &depth) in args.batch.iter().flat_map(|b| args.depth.iter().map(move |d| (b, d))) {
        let (rates, profile) = repeat(args.repeats, || lane.decode(Streams { batch, depth, output: args.output }))
            .with_context(|| format!("decode of {batch} streams behind {depth} tokens"))?;
        let (tokens, profile) = (args.output, args.profile.then_some(profile));
        let peak_rss_bytes = peak_rss_bytes();
        let result = TestResult { stage: Stage::Decode, tokens, batch, depth, rates, profile, peak_rss_bytes };
        push(&mut results, args.json, result);
    }
    Ok(results)
}

fn print_json(args: &EngineArgs, lane: &BenchLane, precision: &Precision, results: &[TestResult]) {
    let threads = lane.threads();
    let results: Vec<_> = results.iter().map(|r| r.json(threads)).collect();
    let method = format!(
        "one warm-up and {} repeats per test, median; prefill: prompt tokens / time to first token; \
         decode: tokens of all streams / time, all streams in every step, from the second token of each to the last",
        args.repeats
    );
    say!(
        "{}",
        json!({"results": results, "precision": precision.to_string(), "method": method,
        "load_seconds": lane.load_seconds(), "weight_bytes": lane.weight_bytes()})
    );
}

/// The rates of all runs but the warm-up, and the last one's profile.
fn repeat(repeats: usize, mut test: impl FnMut() -> Result<Run>) -> Result<(Spread, Profile)> {
    test()?;
    let mut rates = Vec::with_capacity(repeats);
    let mut profile = Profile::default();
    for _ in 0..repeats {
        let run = test()?;
        rates.push(run.tokens_per_second);
        profile = run.profile;
    }
    Ok((Spread::new(rates), profile))
}

fn push(results: &mut Vec<TestResult>, json: bool, result: TestResult) {
    if !json {
        say!("{}", result.line());
        if let Some(profile) = &result.profile {
            say!("{}", profile.text(result.stage).trim_end());
        }
    }
    results.push(result);
}
