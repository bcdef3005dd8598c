//! The other end of a baseline: runs the tests that standard input names. See `baseline` for what is said.

use std::io::BufRead as _;

use anyhow::{Context as _, Result, bail};
use millrace_core::LaneId;
use millrace_engine::{TAGS_BUILT, TagChecks};
use serde_json::json;

use super::baseline::PROTOCOL;
use super::{MIN_OUTPUT, TagsArgs, rounds};
use crate::Failure;
use crate::bench::lane::Streams;
use crate::output::say;

pub(super) fn run(args: &TagsArgs) -> Result<(), Failure> {
    say!("{}", json!({"page_tags": TAGS_BUILT, "protocol": PROTOCOL}));
    let lane = super::start(args, vec![TagChecks::Off])?;
    say!("{}", json!({"ready": lane.description()}));
    for line in std::io::stdin().lock().lines() {
        let line = line.context("cannot read standard input")?;
        let streams = asked(&line, args)?;
        let run = rounds::decode(&lane, LaneId(0), streams)?;
        say!("{}", json!({"tokens_per_second": run.tokens_per_second, "itl_p95_us": run.itl_p95_us}));
    }
    Ok(())
}

/// # Errors
/// What the command line did not make room for.
fn asked(line: &str, args: &TagsArgs) -> Result<Streams> {
    let numbers: Vec<usize> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let most = |numbers: &[usize]| numbers.iter().copied().max().unwrap_or(0);
    let [batch, depth, output] = numbers[..] else { bail!("`{line}` is no test; a test is BATCH CONTEXT OUTPUT") };
    let fits = (1..=most(&args.batch)).contains(&batch)
        && (1..=most(&args.context)).contains(&depth)
        && (MIN_OUTPUT..=args.output).contains(&output);
    if !fits {
        bail!("`{line}`: there is no room for this test; name its numbers with -b, -d and -n");
    }
    Ok(Streams { batch, depth, output })
}
