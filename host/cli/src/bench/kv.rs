//! `millrace bench kv`: what a KV format is worth in a pool of fixed size. How many tokens fit in BF16 and in FP8, and how fast decode is
//! with more and more streams, until each format's pool is full.
//!
//! Both formats run in the same process on the same threads, one after the other for each number of streams, the other one first in
//! every second repeat. A stream has its context and what it generates in pages before it begins its next token, so streams fit where
//! that many pages do; more would wait for others to end, which is not measured.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use millrace_core::KvFormat;
use millrace_engine::{TAGS_BUILT, TagChecks};
use serde_json::{Value, json};

use super::kv_plot;
use super::lane::{BenchLane, LaneOptions, Profiling, Prompts, Streams};
use super::room::{PAGE_TOKENS, Wanted};
use super::spread::Spread;
use super::stages::WeightArgs;
use super::start_at_1;
use crate::Failure;
use crate::output::{keep_apart, say};

/// The formats that are compared: the one that takes more room first.
pub(super) const FORMATS: [KvFormat; 2] = [KvFormat::Bf16, KvFormat::Fp8];
const MIB: u64 = 1 << 20;

#[derive(Args)]
pub(crate) struct KvArgs {
    #[command(flatten)]
    weights: WeightArgs,
    /// Size of the decode pool; the same for both formats.
    #[arg(long, value_name = "MIB", default_value_t = 420)]
    pool_mib: u64,
    /// Streams in decode.
    #[arg(short, long, value_delimiter = ',', default_value = "1,2,4,8,16,32,48,64")]
    batch: Vec<usize>,
    /// Tokens in each stream's cache before decode begins.
    #[arg(short, long, default_value_t = 512)]
    depth: usize,
    /// Tokens generated per stream.
    #[arg(short = 'n', long, default_value_t = 64)]
    output: usize,
    /// Measured repeats of each test.
    #[arg(short, long, default_value_t = 3)]
    repeats: usize,
    /// Writes a plot (SVG) to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// One JSON object on stdout instead of a table.
    #[arg(long)]
    json: bool,
}

/// What one format's pool holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capacity {
    pub(super) format: KvFormat,
    pub(super) pages: u32,
    pub(super) page_bytes: u64,
}

/// Tokens a second of each format; none where the streams do not fit.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) streams: usize,
    pub(super) rates: [Option<Spread>; 2],
}

impl Capacity {
    pub(super) fn tokens(self) -> u64 {
        u64::from(self.pages) * PAGE_TOKENS as u64
    }

    /// Whether so many streams of so many tokens have room at once.
    fn fits(self, streams: usize, tokens: usize) -> bool {
        streams.saturating_mul(tokens.div_ceil(PAGE_TOKENS)) <= self.pages as usize
    }
}

pub(crate) fn run(args: &KvArgs) -> Result<(), Failure> {
    check(args).map_err(Failure::Usage)?;
    if let Some(svg) = &args.svg {
        keep_apart(("--svg", svg), ("--model", &args.weights.model))?;
    }
    // Minutes of measuring are not to end with a plot that cannot be written.
    let mut plot = args.svg.as_deref().map(open).transpose()?;
    let lanes = [start(args, FORMATS[0])?, start(args, FORMATS[1])?];
    let capacities = [0, 1].map(|index: usize| {
        let (pages, page_bytes) = lanes[index].decode_pool();
        Capacity { format: FORMATS[index], pages, page_bytes }
    });
    if !args.json {
        say!("{}\n{}", lanes[0].description(), head(args, &capacities));
    }
    let mut rows = Vec::with_capacity(args.batch.len());
    for &streams in &args.batch {
        let row = measure(args, &lanes, &capacities, streams).with_context(|| format!("decode of {streams} streams"))?;
        if !args.json {
            say!("{}", line(&row));
        }
        rows.push(row);
    }
    if let (Some(path), Some(file)) = (&args.svg, &mut plot) {
        let written = file.set_len(0).and_then(|()| file.write_all(kv_plot::svg(&capacities, &rows).as_bytes()));
        written.with_context(|| format!("cannot write the plot to {}", path.display()))?;
    }
    if args.json {
        say!("{}", report(args, &capacities, &rows));
    }
    Ok(())
}

/// # Errors
/// Numbers with which nothing can be measured.
fn check(args: &KvArgs) -> Result<(), String> {
    start_at_1(&[("-r", &[args.repeats]), ("-d", &[args.depth]), ("-b", &args.batch)])?;
    if args.output < 4 {
        return Err(format!("-n {}: at least 4 tokens are needed to measure anything", args.output));
    }
    if args.pool_mib == 0 || args.pool_mib > u64::MAX / MIB {
        return Err(format!("--pool-mib {}: a pool has at least 1 MiB and no more than the machine", args.pool_mib));
    }
    Ok(())
}

/// What is in the file stays until there is a plot.
fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.with_context(|| format!("--svg: cannot write the plot to {}", path.display()))
}

fn start(args: &KvArgs, kv: KvFormat) -> Result<BenchLane, Failure> {
    let precision = args.weights.precision(kv);
    let (batches, depths) = (args.batch.clone(), vec![args.depth]);
    let wanted = Wanted { prompts: Vec::new(), batches, depths, output: args.output, chunk: args.depth, kept: 0 };
    let (pool_bytes, profile) = (Some(args.pool_mib * MIB), Profiling::Off);
    let tags = vec![if TAGS_BUILT { TagChecks::On } else { TagChecks::Off }];
    let (threads, prompts, tenants) = (args.weights.threads, Prompts::Fresh, 1);
    BenchLane::start(
        &args.weights.model,
        &LaneOptions { precision, threads, wanted, tags, profile, pool_bytes, prompts, tenants },
    )
}

fn measure(args: &KvArgs, lanes: &[BenchLane; 2], capacities: &[Capacity; 2], streams: usize) -> Result<Row> {
    let fits = capacities.map(|capacity| capacity.fits(streams, args.depth + args.output));
    let mut rates = [Vec::new(), Vec::new()];
    for repeat in 0..=args.repeats {
        let order = if repeat % 2 == 0 { [0, 1] } else { [1, 0] };
        for index in order.into_iter().filter(|&index| fits[index]) {
            let run = lanes[index].decode(Streams { batch: streams, depth: args.depth, output: args.output })?;
            // The first warms up.
            if repeat > 0 {
                rates[index].push(run.tokens_per_second);
            }
        }
    }
    Ok(Row { streams, rates: rates.map(|rates| (!rates.is_empty()).then(|| Spread::new(rates))) })
}

fn head(args: &KvArgs, capacities: &[Capacity; 2]) -> String {
    let of = |capacity: &Capacity| {
        let (tokens, pages, bytes) = (capacity.tokens(), capacity.pages, capacity.page_bytes / PAGE_TOKENS as u64);
        format!("{}: {tokens} tokens ({pages} pages, {bytes} bytes a token)", capacity.format)
    };
    format!(
        "a decode pool of {} MiB holds in {}, in {}: {:.2}x\nstreams of {} tokens, {} more generated by each; tokens/s, median [min..max] of {}\n\n\
         | streams | {} | {} | ratio |\n|---|---|---|---|",
        args.pool_mib,
        of(&capacities[0]),
        of(&capacities[1]),
        ratio(capacities),
        args.depth,
        args.output,
        args.repeats,
        capacities[0].format,
        capacities[1].format
    )
}

/// Tokens in the second format for each in the first.
fn ratio(capacities: &[Capacity; 2]) -> f64 {
    capacities[1].tokens() as f64 / capacities[0].tokens().max(1) as f64
}

fn line(row: &Row) -> String {
    let cell = |rates: &Option<Spread>| match rates {
        Some(rates) => format!("{:.0} [{:.0}..{:.0}]", rates.median(), rates.min(), rates.max()),
        None => "does not fit".to_owned(),
    };
    let ratio = match &row.rates {
        [Some(first), Some(second)] => format!("{:.2}", second.median() / first.median()),
        _ => String::new(),
    };
    format!("| {} | {} | {} | {ratio} |", row.streams, cell(&row.rates[0]), cell(&row.rates[1]))
}

fn report(args: &KvArgs, capacities: &[Capacity; 2], rows: &[Row]) -> Value {
    let pools: Vec<Value> = capacities
        .iter()
        .map(|c| json!({"kv": c.format.to_string(), "tokens": c.tokens(), "pages": c.pages, "page_bytes": c.page_bytes}))
        .collect();
    let results: Vec<Value> = rows
        .iter()
        .flat_map(|row| {
            FORMATS.iter().zip(&row.rates).map(|(format, rates)| {
                json!({"kv": format.to_string(), "streams": row.streams, "tokens_per_second": rates.as_ref().map(Spread::json)})
            })
        })
        .collect();
    json!({"pool_bytes": args.pool_mib * MIB, "depth": args.depth, "output": args.output, "pools": pools,
        "tokens_ratio": ratio(capacities), "results": results})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_fit_while_their_pages_do() {
        let capacity = Capacity { format: KvFormat::Bf16, pages: 36, page_bytes: 1 };
        assert_eq!(capacity.tokens(), 36 * 32);
        // 576 tokens are 18 pages, 577 are 19.
        assert!(capacity.fits(2, 576) && !capacity.fits(3, 576) && !capacity.fits(2, 577) && capacity.fits(1, 577));
        assert!(!capacity.fits(usize::MAX, usize::MAX));
    }

    #[test]
    fn a_row_says_what_does_not_fit() {
        let rates = |values: &[f64]| Some(Spread::new(values.to_vec()));
        let both = Row { streams: 8, rates: [rates(&[100.0]), rates(&[120.0, 130.0, 110.0])] };
        assert_eq!(line(&both), "| 8 | 100 [100..100] | 120 [110..130] | 1.20 |");
        let one = Row { streams: 64, rates: [None, rates(&[900.0])] };
        assert_eq!(line(&one), "| 64 | does not fit | 900 [900..900] |  |");
    }
}
