//! `millrace simulate`: worlds full of faults, and what was seen in them. Knows flags and output; what a world is, `millrace-sim` says.

mod contest;
mod report;

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use millrace_sim::{
    CampaignOptions, Contest, EngineKind, FaultKind, GuardOff, Guest, Policies, PolicyChoice, Report, Transport, Transports,
    WorldOptions, campaign,
};

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
    /// One of the built-in components: fair, fcfs or priority.
    Guest,
    Fair,
    Fcfs,
    Priority,
    /// One of the built-in components in one world of eight, the native one in the others.
    Mixed,
}

#[derive(Clone, Copy, ValueEnum)]
enum Between {
    InProcess,
    Messages,
    /// Messages in one world of three.
    Mixed,
}

#[derive(Clone, Copy, ValueEnum)]
enum Rivalry {
    Flood,
    Fairness,
}

/// What a contest has no use for.
const CONTEST_IS_WITHOUT: [&str; 10] =
    ["seeds", "engine", "faults", "rate", "requests", "reassignments", "aborts", "policy", "transport", "without"];

impl Policy {
    fn policies(self) -> Policies {
        let guest = |guest| Policies::Only(PolicyChoice::Guest(guest));
        match self {
            Self::Native => Policies::Only(PolicyChoice::Native),
            Self::Guest => Policies::Guests,
            Self::Fair => guest(Guest::Fair),
            Self::Fcfs => guest(Guest::Fcfs),
            Self::Priority => guest(Guest::Priority),
            Self::Mixed => Policies::Mixed,
        }
    }
}

const AFTER: &str = "\
A seed is a world: its workload, its engine's bounds and everything that strikes it follow from the seed and these options alone.
Judged in every world: each published token is the one that the same request has alone; a request ends once, for a reason that
somebody gave it; pages that a running step or copy names are nobody else's; the pools' invariants hold after every turn; once faults
stop, everything ends, every page comes back and none holds a number.

TCP delays messages and breaks connections, with what was on them; it neither repeats a message nor changes their order. The hand-off's
protocol promises to bear that too, so messages do both here. What opens a connection comes first and once, as TCP has it.

Exit codes: 0 nothing was seen that must not be; 1 something was; 2 usage; 3 nothing was, but the run says less than was asked for: a
kind of fault never struck (too few seeds, or too low a rate), or what was waited for never came.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub(crate) struct SimulateArgs {
    /// Worlds to live through, at least.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    from: u64,
    /// What runs the operations of steps.
    #[arg(long, value_enum, default_value_t = Engine::Fake)]
    engine: Engine,
    /// What may strike: `all`, `none`, or names with commas between: reassign, reassign_on_device, late_write, not_finite, abort,
    /// copy_delayed, step_failure, process_death, policy_trap, policy_timeout, policy_garbage, policy_idle, clock_jump, exhausted,
    /// message_delayed, message_duplicated, message_reordered, connection_lost.
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
    /// What is between the two engines of a lane: copies within one process, or messages between processes, any of which may die.
    #[arg(long, value_enum, default_value_t = Between::Mixed)]
    transport: Between,
    /// Goes without a guard, to see what it prevents: tag_checks, head_check, tail_check, quarantine, scope, write_fence, zeroing.
    #[arg(long, value_name = "GUARD", value_parser = parse_guard)]
    without: Option<GuardOff>,
    /// Instead of worlds of faults: a tenant's time to first token alone, beside another that floods the engine (with quotas and
    /// without), or beside one that sends twenty times its share (fair and fcfs). --from is the seed.
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = CONTEST_IS_WITHOUT)]
    contest: Option<Rivalry>,
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
    match args.contest {
        Some(Rivalry::Flood) => contest::run(Contest::Flood, args.from, args.json),
        Some(Rivalry::Fairness) => contest::run(Contest::Fairness, args.from, args.json),
        None => run_worlds(args),
    }
}

fn run_worlds(args: &SimulateArgs) -> Result<(), Failure> {
    let engine = match args.engine {
        Engine::Fake => EngineKind::Fake,
        Engine::Cpu => EngineKind::Cpu,
    };
    if args.without == Some(GuardOff::WriteFence) && engine == EngineKind::Cpu {
        return Err(Failure::Usage(
            "the CPU backend's writes always look at the tag; use --engine fake with --without write_fence".into(),
        ));
    }
    let options = CampaignOptions {
        engine,
        world: WorldOptions {
            faults: args.faults.0.clone(),
            per_mille: args.rate,
            requests: args.requests,
            off: args.without,
            policy: args.policy.policies(),
            transport: match args.transport {
                Between::InProcess => Transports::Only(Transport::InProcess),
                Between::Messages => Transports::Only(Transport::Messages),
                Between::Mixed => Transports::Mixed,
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
    options.check().map_err(|endless| Failure::Usage(format!("{endless} (--seeds, --from, --faults, --rate)")))?;
    let report = campaign(&options, &progress())?;
    let never = missing(&report, &options);
    if args.json {
        report::print_json(&report, &options, &never);
    } else {
        report::print_table(&report, &options, &never);
    }
    verdict(&report, &never)
}

/// What the exit code says.
fn verdict(report: &Report, never: &[FaultKind]) -> Result<(), Failure> {
    if let Some(first) = report.violations.first() {
        return Err(Failure::Failed(anyhow!(
            "{} of {} worlds show what must not be; seed {}: {}",
            report.violated,
            report.worlds,
            first.seed,
            first.what
        )));
    }
    if report.in_vain {
        return Err(Failure::Incomplete(format!(
            "nothing was seen that must not be, but what was waited for came no nearer in many of {} worlds; give more --requests or a \
             higher --rate",
            report.worlds
        )));
    }
    if !never.is_empty() {
        let names: Vec<&str> = never.iter().map(|kind| kind.name()).collect();
        return Err(Failure::Incomplete(format!(
            "nothing was seen that must not be, but in {} worlds these never struck: {}; give more --seeds or a higher --rate",
            report.worlds,
            names.join(", ")
        )));
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
