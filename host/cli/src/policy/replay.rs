//! `millrace policy replay`: what a host recorded, decided once more by this file. The same component must decide the same; another
//! shows what it would have done.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use millrace_policy_wasm::ReplayReport;
use serde_json::{Value, json};

use super::check;
use super::source::Source;
use crate::Failure;
use crate::output::say;

#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// A component, or a core module with component types.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What a host with [policy.record] wrote.
    #[arg(short, long, value_name = "TRACE")]
    trace: PathBuf,
    /// A deployment's TOML or a .json file with the policy's table, in place of the table that was recorded.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let source = Source::read(&args.file)?;
    let kind = source.kind(None)?;
    let mut options = check::options(kind, args.config.as_deref())?;
    options.sha256 = None;
    let config = args.config.as_ref().map(|_| options.config_json.clone());
    let name = args.trace.display();
    let trace = BufReader::new(File::open(&args.trace).with_context(|| format!("cannot open {name}"))?);
    let report = check::engine(&options)?.replay(&source.bytes, &options, config.as_deref(), trace);
    let report = report.with_context(|| format!("{name}"))?;
    if args.json {
        say!("{}", object(&report));
    } else {
        print(&report, &source.inspection.sha256);
    }
    if report.differed > 0 {
        return Err(Failure::Failed(anyhow::anyhow!(
            "{} of {} decisions differ from those recorded",
            report.differed,
            report.calls
        )));
    }
    Ok(())
}

fn print(report: &ReplayReport, sha256: &str) {
    for difference in &report.differences {
        say!("line {}, call {}:", difference.line, difference.call);
        say!("  - {}", difference.recorded);
        say!("  + {}", difference.replayed);
    }
    let shown = report.differences.len() as u64;
    if report.differed > shown {
        say!("and {} further differences", report.differed - shown);
    }
    let ReplayReport { calls, agreed, differed, skipped, other_imports, .. } = report;
    say!("{calls} calls: {agreed} decided the same, {differed} otherwise, {skipped} not compared (late, or recorded in part)");
    if *other_imports > 0 {
        say!("{other_imports} calls of imports were others than those recorded");
    }
    if report.recorded_sha256 != sha256 {
        say!("recorded was another component, sha256 {}", report.recorded_sha256);
    }
    if report.continued {
        say!("the recording begins later than its instance: what a policy kept in its own memory is missing");
    }
}

fn object(report: &ReplayReport) -> Value {
    let difference = |d: &millrace_policy_wasm::Difference| json!({"line": d.line, "call": d.call, "recorded": d.recorded, "replayed": d.replayed});
    json!({
        "calls": report.calls, "agreed": report.agreed, "differed": report.differed, "skipped": report.skipped,
        "other_imports": report.other_imports, "continued": report.continued, "recorded_sha256": report.recorded_sha256,
        "differences": report.differences.iter().map(difference).collect::<Vec<_>>(),
    })
}
