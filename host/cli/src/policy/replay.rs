//! `millrace policy replay`: what a host recorded, decided once more by this file. The same component must decide the same; another
//! shows what it would have done.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use millrace_policy_wasm::{Asked, BesideReport, Recording, ReplayReport};
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
    let name = args.trace.display();
    let trace = BufReader::new(open(&args.trace)?);
    let recording = Recording::open(trace).with_context(|| format!("{name}"))?;
    let mut options = check::options(recording.kind(), args.config.as_deref())?;
    options.sha256 = None;
    let config = args.config.as_ref().map(|_| options.config_json.clone());
    let report = check::engine(&options)?.replay(&source.bytes, &options, config.as_deref(), recording);
    let report = report.with_context(|| format!("{name}"))?;
    if args.json {
        say!("{}", object(&report));
    } else {
        print(&report, &source.inspection.sha256);
    }
    if report.differed + report.beside.differed > 0 {
        let beside = match report.beside.differed {
            0 => String::new(),
            differed => format!("; so do {differed} of {} calls of feedback and handover", report.beside.calls),
        };
        return Err(Failure::Failed(anyhow::anyhow!(
            "{} of {} decisions differ from those recorded{beside}",
            report.differed,
            report.calls
        )));
    }
    if report.agreed == 0 {
        let why = report.not_started.as_ref().map(|why| format!("; no instance started: {why}")).unwrap_or_default();
        let elsewhere = if report.calls == 0 { ", of a pool that is a process in the directory of its name" } else { "" };
        return Err(Failure::Failed(anyhow::anyhow!(
            "{name}: none of its {} calls was compared, so nothing is known{why}; give a recording in which this decision was made{elsewhere}",
            report.calls
        )));
    }
    Ok(())
}

/// It is read twice, which a pipe does not allow.
fn open(path: &Path) -> anyhow::Result<File> {
    let name = path.display();
    let is_file = std::fs::metadata(path).with_context(|| format!("cannot open {name}"))?.is_file();
    anyhow::ensure!(is_file, "{name}: no regular file; give the .trace file that a host wrote");
    File::open(path).with_context(|| format!("cannot open {name}"))
}

fn print(report: &ReplayReport, sha256: &str) {
    for difference in &report.differences {
        say!("line {}, {}:", difference.line, difference.asked);
        say!("  - {}", difference.recorded);
        say!("  + {}", difference.replayed);
    }
    let shown = report.differences.len() as u64;
    let all = report.differed + report.beside.differed;
    if all > shown {
        say!("and {} further differences", all - shown);
    }
    let ReplayReport { calls, agreed, differed, skipped, of_others, of_given_up, other_imports, .. } = report;
    let told_apart = of_others + of_given_up;
    say!("{calls} calls: {agreed} decided the same, {differed} otherwise, {skipped} not compared");
    if *skipped > told_apart {
        say!("{} of those not compared were late, recorded in part, or of an instance that began before", skipped - told_apart);
    }
    print_beside(report);
    if *of_others > 0 {
        say!("{of_others} of those not compared were decided by another component, which was in force for some of the time");
    }
    if *of_given_up > 0 {
        say!("{of_given_up} of those not compared were of an instance that had waited long while many others of it were begun");
    }
    if let Some(why) = &report.not_started {
        say!("an instance did not start with the table that it had then, so its calls were not compared: {why}");
    }
    if let Some(line) = report.torn_line {
        say!("line {line}, the last one, is torn: the host ended while it wrote; what is before it was compared");
    }
    if *other_imports > 0 {
        say!("{other_imports} calls of imports were others than those recorded");
    }
    if !report.recorded_sha256.is_empty() && report.recorded_sha256 != sha256 {
        say!("recorded was another component, sha256 {}", report.recorded_sha256);
    }
    if report.continued {
        say!("the recording begins later than its instance: what a policy kept in its own memory is missing");
    }
}

/// What was called beside decisions, and what of it the recording lacks.
fn print_beside(report: &ReplayReport) {
    let BesideReport { calls, agreed, differed, skipped } = report.beside;
    if calls > 0 {
        say!(
            "{calls} calls of feedback and handover: {agreed} came to the same end, {differed} to another, {skipped} not compared"
        );
    }
    if report.missed > 0 {
        let missed = report.missed;
        say!(
            "{missed} events are missing between others, because the disk was slower than the policy: what it learnt in them is unknown"
        );
    }
    if report.without_beside {
        say!(
            "an older millrace recorded this and left out feedback and handover, which this policy exports: decisions that depend on them \
             differ; record anew with this version to compare those"
        );
    }
}

fn object(report: &ReplayReport) -> Value {
    let number = |asked: Asked| if let Asked::Call(number) = asked { Some(number) } else { None };
    let difference = |d: &millrace_policy_wasm::Difference| {
        let asked = d.asked.to_string();
        json!({"line": d.line, "call": number(d.asked), "asked": asked, "recorded": d.recorded, "replayed": d.replayed})
    };
    let BesideReport { calls, agreed, differed, skipped } = report.beside;
    json!({
        "calls": report.calls, "agreed": report.agreed, "differed": report.differed, "skipped": report.skipped,
        "of_others": report.of_others, "of_given_up": report.of_given_up, "not_started": report.not_started, "torn_line": report.torn_line,
        "beside": {"calls": calls, "agreed": agreed, "differed": differed, "skipped": skipped},
        "missed": report.missed, "without_beside": report.without_beside,
        "other_imports": report.other_imports, "continued": report.continued, "recorded_sha256": report.recorded_sha256,
        "differences": report.differences.iter().map(difference).collect::<Vec<_>>(),
    })
}
