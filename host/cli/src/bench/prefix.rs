//! `millrace bench prefix`: what the prefix tree saves its owner, and that it tells nobody else anything. Through the engine's own
//! scheduler and tree, without HTTP and text.
//!
//! A round has a prompt that begins with a prefix nobody has sent before, and asks for it one after another:
//!
//! ```text
//!   first      one tenant, before anybody else       computes all
//!   owner      another tenant, with its own scope     computes all, and keeps it
//!   other      a third tenant, now that it is kept    must compute as much as `first` did
//!   again      the owner, with another end            the control: finds the prefix, or nothing was kept and nothing is shown
//! ```
//! Each ask ends differently behind the prefix. Time to first token is from submission to the first token; one round warms up.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use millrace_core::{LaneId, TenantId};
use millrace_engine::{TAGS_BUILT, TagChecks};
use millrace_kv::PrefixScope;
use serde_json::{Value, json};

use super::lane::{Ask, BenchLane, First, LaneOptions, Profiling, Prompts};
use super::room::{PAGE_TOKENS, Wanted};
use super::spread::Spread;
use super::stages::StageArgs;
use super::start_at_1;
use crate::Failure;
use crate::output::say;

/// One from prefill and one from decode: by the second, all prefill has been counted.
const OUTPUT: usize = 2;
/// The asks of a round, with the tenant of each.
const CASES: [(&str, u32); 4] = [("first", 0), ("owner", 1), ("other", 2), ("again", 1)];
const TENANTS: usize = 3;

#[derive(Args)]
pub(crate) struct PrefixArgs {
    #[command(flatten)]
    stages: StageArgs,
    /// Tokens that prompts have in common.
    #[arg(short, long, default_value_t = 1024)]
    prefix: usize,
    /// Tokens behind the prefix, of each prompt its own.
    #[arg(short, long, default_value_t = 32)]
    end: usize,
    /// Tokens of a prefill chunk.
    #[arg(long, default_value_t = 512)]
    chunk: usize,
    /// Measured rounds, after one that warms up.
    #[arg(short, long, default_value_t = 10)]
    rounds: usize,
    /// One JSON object on stdout instead of a table.
    #[arg(long)]
    json: bool,
}

/// What one case gave over the rounds.
#[derive(Debug, Clone, Default, PartialEq)]
struct Case {
    ttft_ms: Vec<f64>,
    /// (computed, cached) prompt tokens, with how often they came; of all rounds, the one that warms up included.
    counts: BTreeMap<(u64, u32), usize>,
}

impl Case {
    fn note(&mut self, first: &First) {
        *self.counts.entry((first.computed_tokens, first.cached_tokens)).or_default() += 1;
        self.ttft_ms.push(first.ttft.as_secs_f64() * 1e3);
    }

    fn ttft(&self) -> Spread {
        // The first warms up.
        Spread::new(self.ttft_ms.iter().skip(1).copied().collect())
    }

    fn counts_text(&self) -> String {
        let counts: Vec<String> = self.counts.keys().map(|(computed, cached)| format!("{computed} / {cached}")).collect();
        counts.join(", ")
    }

    fn json(&self, name: &str) -> Value {
        let count = |(&(computed, cached), &times): (&(u64, u32), &usize)| json!({"computed_tokens": computed, "cached_tokens": cached, "times": times});
        let counts: Vec<Value> = self.counts.iter().map(count).collect();
        json!({"case": name, "ttft_ms": self.ttft().json(), "counts": counts})
    }
}

pub(crate) fn run(args: &PrefixArgs) -> Result<(), Failure> {
    check_numbers(args).map_err(Failure::Usage)?;
    let lane = start(args)?;
    if !args.json {
        say!("{}", lane.description());
    }
    let mut cases: [Case; 4] = Default::default();
    for round in 0..=args.rounds as u64 {
        for (index, (name, tenant)) in CASES.into_iter().enumerate() {
            let prompt = lane.ids().continued(round, args.prefix, (index as u64, args.end));
            let (lane_id, tenant, scope) = (LaneId(0), TenantId(tenant), Some(PrefixScope([tenant as u8 + 1; 32])));
            let first = lane.first(Ask { lane: lane_id, tenant, scope, prompt, output: OUTPUT });
            cases[index].note(&first.with_context(|| format!("round {round}, {name}"))?);
        }
    }
    let verdict = judge(&cases, args);
    if args.json {
        say!("{}", report(args, &lane, &cases, verdict.is_ok()));
    } else {
        say!("{}", table(args, &cases));
    }
    verdict?;
    if !args.json {
        say!(
            "isolated: a prompt that another tenant has in the tree costs as much as one that nobody has; the owner's own is found"
        );
    }
    Ok(())
}

/// # Errors
/// Numbers with which nothing can be measured.
fn check_numbers(args: &PrefixArgs) -> Result<(), String> {
    start_at_1(&[("-r", &[args.rounds]), ("-e", &[args.end]), ("--chunk", &[args.chunk])])?;
    if args.prefix < PAGE_TOKENS {
        return Err(format!("-p {}: prompts share whole pages, so a prefix has at least {PAGE_TOKENS} tokens", args.prefix));
    }
    Ok(())
}

fn start(args: &PrefixArgs) -> Result<BenchLane, Failure> {
    let prompt = args.prefix.saturating_add(args.end);
    // Every ask of a round stays where it is until the round ends.
    let wanted = Wanted {
        prompts: vec![prompt],
        batches: vec![1],
        depths: vec![prompt],
        output: OUTPUT,
        chunk: args.chunk,
        kept: CASES.len(),
    };
    let (precision, threads) = (args.stages.precision(), args.stages.weights.threads);
    let tags = vec![if TAGS_BUILT { TagChecks::On } else { TagChecks::Off }];
    let (profile, pool_bytes, prompts) = (Profiling::Off, None, Prompts::Kept);
    let options = LaneOptions { precision, threads, wanted, tags, profile, pool_bytes, prompts, tenants: TENANTS };
    BenchLane::start(&args.stages.weights.model, &options).map_err(|failure| match failure {
        Failure::Usage(why) => Failure::Usage(format!("-p {} -e {}, prompts of {prompt} tokens: {why}", args.prefix, args.end)),
        failed => failed,
    })
}

/// # Errors
/// Counts that differ where they must not, or a control that shows no hit.
fn judge(cases: &[Case; 4], args: &PrefixArgs) -> Result<()> {
    let [first, owner, other, again] = cases;
    let all = BTreeMap::from([(((args.prefix + args.end) as u64, 0), args.rounds + 1)]);
    for (case, (name, _)) in [first, owner].into_iter().zip(CASES) {
        ensure!(
            case.counts == all,
            "`{name}` computed / found {} tokens of a prompt that nobody of its scope had sent; expected {} / 0",
            case.counts_text(),
            args.prefix + args.end
        );
    }
    ensure!(
        other.counts == first.counts,
        "not isolated: with another tenant's prompt in the tree a tenant computed / found {} tokens, without it {}",
        other.counts_text(),
        first.counts_text()
    );
    let shared = args.prefix - args.prefix % PAGE_TOKENS;
    let hit = BTreeMap::from([(((args.prefix + args.end - shared) as u64, shared as u32), args.rounds + 1)]);
    ensure!(
        again.counts == hit,
        "the control failed, so the run shows nothing: the owner computed / found {} tokens of its own prompt, expected {} / {shared}",
        again.counts_text(),
        args.prefix + args.end - shared
    );
    Ok(())
}

/// Median of the time to first token without a hit (the three cases that must not have one), and with.
fn ttft_ms(cases: &[Case; 4]) -> (Spread, Spread) {
    let [first, owner, other, again] = cases;
    let without = [first, owner, other].iter().flat_map(|case| case.ttft_ms.iter().skip(1)).copied().collect();
    (Spread::new(without), again.ttft())
}

fn table(args: &PrefixArgs, cases: &[Case; 4]) -> String {
    let asks = [
        "a tenant, nobody has sent it",
        "the owner, first time",
        "another tenant, the owner's is in the tree",
        "the owner again, another end",
    ];
    let rows = asks.iter().zip(cases).map(|(ask, case)| {
        let ttft = case.ttft();
        format!("| {ask} | {} | {:.2} [{:.2}..{:.2}] |\n", case.counts_text(), ttft.median(), ttft.min(), ttft.max())
    });
    let (without, with) = ttft_ms(cases);
    format!(
        "a prefix of {} tokens and {} of each prompt's own; {} rounds\n\n\
         | who asks | computed / cached tokens | TTFT ms, median [min..max] |\n|---|---|---|\n{}\n\
         TTFT without a hit {:.2} ms, with a hit {:.2} ms: {:.2}x",
        args.prefix,
        args.end,
        args.rounds,
        rows.collect::<String>(),
        without.median(),
        with.median(),
        without.median() / with.median().max(1e-9)
    )
}

fn report(args: &PrefixArgs, lane: &BenchLane, cases: &[Case; 4], isolated: bool) -> Value {
    let results: Vec<Value> = CASES.iter().zip(cases).map(|((name, _), case)| case.json(name)).collect();
    let (without, with) = ttft_ms(cases);
    json!({
        "prefix": args.prefix, "end": args.end, "rounds": args.rounds, "results": results, "isolated": isolated,
        "ttft_ms": {"without_hit": without.json(), "with_hit": with.json()},
        "precision": args.stages.precision().to_string(), "threads": lane.threads(),
        "method": "one warm-up round, then medians; the tenants of a round ask one after another for prompts with the same prefix; \
                   from submission to first token",
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PrefixArgs,
    }

    /// A run of two rounds, a warm-up included, with a prefix of 70 tokens (two whole pages) and 10 more.
    fn cases(computed_and_cached: [(u64, u32); 4]) -> (PrefixArgs, [Case; 4]) {
        let args = Line::parse_from(["prefix", "-m", "x", "-p", "70", "-e", "10", "-r", "1"]).args;
        let case = |(computed_tokens, cached_tokens)| {
            let mut case = Case::default();
            for ms in [900, computed_tokens] {
                case.note(&First { ttft: Duration::from_millis(ms), cached_tokens, computed_tokens });
            }
            case
        };
        (args, computed_and_cached.map(case))
    }

    #[test]
    fn equal_counts_and_a_hit_of_whole_pages_are_what_is_to_be_shown() {
        let (args, cases) = cases([(80, 0), (80, 0), (80, 0), (16, 64)]);
        assert!(judge(&cases, &args).is_ok());
        let (without, with) = ttft_ms(&cases);
        assert_eq!((without.median(), with.median()), (80.0, 16.0), "the round that warms up does not count");
        let text = table(&args, &cases);
        assert!(text.contains("| another tenant, the owner's is in the tree | 80 / 0 | 80.00 [80.00..80.00] |"), "{text}");
        assert!(text.ends_with("TTFT without a hit 80.00 ms, with a hit 16.00 ms: 5.00x"), "{text}");
    }

    #[test]
    fn anything_else_fails_and_says_why() {
        for (counts, why) in [
            ([(80, 0), (80, 0), (16, 64), (16, 64)], "not isolated"),
            ([(80, 0), (80, 0), (79, 0), (16, 64)], "not isolated"),
            ([(80, 0), (80, 0), (80, 0), (80, 0)], "the control failed"),
            ([(80, 0), (16, 64), (80, 0), (16, 64)], "`owner` computed / found 16 / 64"),
            ([(16, 64), (80, 0), (16, 64), (16, 64)], "`first` computed / found 16 / 64"),
        ] {
            let (args, cases) = cases(counts);
            let error = judge(&cases, &args).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
