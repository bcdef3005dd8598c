//! `millrace simulate`: worlds full of faults, and what was seen in them. Knows flags and output; what a world is, `millrace-sim` says.

mod report;

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use millrace_sim::{CampaignOptions, EngineKind, FaultKind, GuardOff, PolicyChoice, Report, WorldOptions, campaign};

use crate::Failure;

/// How often a terminal hears how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, ValueEnum)]
enum Engine {
    /// Pages hold who wrote what for whom; every read is judged. Hundreds of worlds a second.
    Fake,
    /// The CPU backend with reference compute on a tiny model; its own tag checks are under test.
    Cpu,
}

#[derive(Clone, Copy, ValueEnum)]
enum Policy {
    Native,
    Guest,
    /// The built-in guest in one world of eight.
    Mixed,
}

const AFTER: &str = "\
A seed is a world: its workload, its engine's bounds and everything that strikes it follow from the seed and these options alone.
Judged in every world: each published token is the one that the same request has alone; a request ends once, for a reason that
somebody gave it; pages that a running step or copy names are nobody else's; the pools' invariants hold after every turn; once faults
stop, everything ends, every page comes back and none holds a number.

Exit codes: 0 nothing was seen that must not be; 1 something was, or a kind of fault never struck; 2 usage.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub(crate) struct SimulateArgs {
    /// Worlds to live through, at least.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    from: u64,
    /// What runs the operations of steps.
    #[arg(long, value_enum, default_value_t = Engine::Fake)]
    engine: Engine,
    /// What may strike: `all`, `none`, or names with commas between: reassign, reassign_on_device, late_write, not_finite, abort,
    /// copy_delayed, step_failure, process_death, policy_trap, policy_timeout, policy_garbage, policy_idle, clock_jump, exhausted.
    #[arg(long, default_value = "all", value_name = "KINDS", value_parser = parse_faults)]
    faults: Faults,
    /// Chance of each fault in 1,000 turns.
    #[arg(long, default_value_t = 25, value_name = "PER_MILLE", value_parser = clap::value_parser!(u32).range(0..=1000))]
    rate: u32,
    /// Requests of each world.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    requests: u32,
    /// Goes on until so many pages have changed hands under their owners.
    #[arg(long, default_value_t = 0, value_name = "N")]
    reassignments: u64,
    /// Goes on until so many clients have gone away.
    #[arg(long, default_value_t = 0, value_name = "N")]
    aborts: u64,
    /// Who decides what runs in a step.
    #[arg(long, value_enum, default_value_t = Policy::Mixed)]
    policy: Policy,
    /// Goes without a guard, to see what it prevents: tag_checks, head_check, tail_check, quarantine, scope, write_fence, zeroing.
    #[arg(long, value_name = "GUARD", value_parser = parse_guard)]
    without: Option<GuardOff>,
    /// Worlds at a time; one for each processor where not given.
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=256))]
    threads: Option<usize>,
    /// One JSON object on stdout instead of a table.
    #[arg(long)]
    json: bool,
}

/// So that a list is one value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Faults(BTreeSet<FaultKind>);

fn parse_faults(text: &str) -> Result<Faults, String> {
    match text {
        "all" => return Ok(Faults(FaultKind::ALL.into())),
        "none" => return Ok(Faults(BTreeSet::new())),
        _ => {}
    }
    let kind = |name: &str| {
        let known = || FaultKind::ALL.map(FaultKind::name).join(", ");
        FaultKind::named(name.trim()).ok_or_else(|| format!("`{name}` is no fault; known are {}, or all, or none", known()))
    };
    text.split(',').map(kind).collect::<Result<_, _>>().map(Faults)
}

fn parse_guard(text: &str) -> Result<GuardOff, String> {
    let known = || GuardOff::ALL.map(GuardOff::name).join(", ");
    GuardOff::named(text).ok_or_else(|| format!("`{text}` is no guard; known are {}", known()))
}

pub(crate) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    let engine = match args.engine {
        Engine::Fake => EngineKind::Fake,
        Engine::Cpu => EngineKind::Cpu,
    };
    if args.without == Some(GuardOff::WriteFence) && engine == EngineKind::Cpu {
        return Err(Failure::Usage(
            "the CPU backend's writes always look at the tag; use --engine fake with --without write_fence".into(),
        ));
    }
    if (args.reassignments > 0 || args.aborts > 0) && (args.rate == 0 || args.faults.0.is_empty()) {
        return Err(Failure::Usage("--reassignments and --aborts wait for faults; raise --rate, or name --faults".into()));
    }
    let options = CampaignOptions {
        engine,
        world: WorldOptions {
            faults: args.faults.0.clone(),
            per_mille: args.rate,
            requests: args.requests,
            off: args.without,
            policy: match args.policy {
                Policy::Native => Some(PolicyChoice::Native),
                Policy::Guest => Some(PolicyChoice::Guest),
                Policy::Mixed => None,
            },
        },
        from: args.from,
        seeds: args.seeds,
        reassignments: args.reassignments,
        aborts: args.aborts,
        threads: args.threads.unwrap_or_else(threads),
        at_most: None,
        stop_at_violation: args.without.is_none(),
    };
    let report = campaign(&options, &progress())?;
    let never = missing(&report, &options);
    if args.json {
        report::print_json(&report, &options, &never);
    } else {
        report::print_table(&report, &options, &never);
    }
    if let Some(first) = report.violations.first() {
        return Err(Failure::Failed(anyhow!(
            "{} of {} worlds show what must not be; seed {}: {}",
            report.violated,
            report.worlds,
            first.seed,
            first.what
        )));
    }
    if !never.is_empty() {
        let names: Vec<&str> = never.iter().map(|kind| kind.name()).collect();
        return Err(Failure::Failed(anyhow!("never struck: {}; give more --seeds or a higher --rate", names.join(", "))));
    }
    Ok(())
}

/// Kinds that were to strike and did not; nobody asks that of a single world, which is a replay.
fn missing(report: &Report, options: &CampaignOptions) -> Vec<FaultKind> {
    if options.seeds <= 1 { Vec::new() } else { report.never_fired(&options.world) }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

fn progress() -> impl Fn(&Report) + Sync {
    let last = Mutex::new(Instant::now());
    let shows = std::io::stderr().is_terminal();
    move |report: &Report| {
        let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !shows || last.elapsed() < PROGRESS_EVERY {
            return;
        }
        *last = Instant::now();
        let tally = &report.tally;
        let aborts = tally.of(FaultKind::Abort);
        eprintln!(
            "{} worlds, {} reassignments, {aborts} aborts, {} violations",
            report.worlds,
            tally.reassignments(),
            report.violated
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named() {
        assert_eq!(parse_faults("all").unwrap().0.len(), FaultKind::ALL.len());
        assert_eq!(parse_faults("none").unwrap().0.len(), 0);
        assert_eq!(parse_faults("abort, reassign").unwrap().0, BTreeSet::from([FaultKind::Reassign, FaultKind::Abort]));
        assert!(parse_faults("abort,").unwrap_err().contains("process_death"));
        for kind in FaultKind::ALL {
            assert!(parse_faults(kind.name()).is_ok());
        }
        assert!(GuardOff::ALL.into_iter().all(|guard| parse_guard(guard.name()) == Ok(guard)));
        assert!(parse_guard("luck").unwrap_err().contains("quarantine"));
    }
}
