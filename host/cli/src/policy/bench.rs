//! `millrace policy bench`: what a decision costs through the whole host path: the view of the facts, slot, conversion, lowering, the
//! guest, lifting, validation. One thread, one call after the other; the median says what a call costs, the 99th percentile what it may cost.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use millrace_policy::{BreakerSettings, PrecisionSlot, RouteLimits, RouteSlot, ScheduleSlot, SlotStatus, TierPrecision};
use millrace_policy_wasm::{LoadedPolicy, PolicyKind};
use serde_json::{Value, json};

use super::source::Source;
use super::{Kind, check, facts};
use crate::Failure;
use crate::output::say;

/// What is longer than the deadline is measured too, and said to be; all other limits are the deployment's.
const MEASURED_US: u64 = 1_000_000;
/// Instances that are started and dropped.
const STARTS: usize = 20;
/// Calls before those that count.
const WARM_UP: usize = 200;
/// Nobody waits longer for one size.
const MAX_TIME: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// A component, or a built-in policy: `builtin:fair`, `builtin:fcfs`, `builtin:tenant` ..
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Sizes of the facts: sequences of a schedule, lanes of a route, requests of a precision choice. At most 65,536, which is as many
    /// sequences as a pool may have.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "16,64,256,1024",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    rows: Vec<u32>,
    /// Calls that count, for each size; fewer where they would take longer than ten seconds.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    calls: u32,
    /// A deployment's TOML or a .json file with the policy's table.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The decision, where the component makes several.
    #[arg(short, long)]
    kind: Option<Kind>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// What was measured.
struct Report {
    results: Vec<(u32, Times)>,
    start: Times,
    compile_ns: u64,
    memory_bytes: u64,
    /// Of a decision, in the deployment.
    deadline_us: u64,
}

struct Times {
    median_ns: u64,
    p99_ns: u64,
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let source = Source::read(&args.file)?;
    let kind = source.kind(args.kind)?;
    let mut options = check::options(kind, args.config.as_deref())?;
    options.sha256 = None;
    let deadline_us = std::mem::replace(&mut options.limits.deadline_us, MEASURED_US);
    let loaded = check::engine(&options)?.load(&source.bytes, kind, &options)?;
    let report = Report { deadline_us, ..measure(&loaded, &args.rows, args.calls as usize)? };
    if args.json {
        say!("{}", report.object());
    } else {
        report.print(&args.file, &loaded);
    }
    Ok(())
}

fn measure(loaded: &LoadedPolicy, rows: &[u32], calls: usize) -> Result<Report> {
    let mut starts = Vec::with_capacity(STARTS);
    for _ in 0..STARTS {
        let began = Instant::now();
        let memory = check::memory(loaded)?;
        starts.push(began.elapsed());
        black_box(memory);
    }
    let asking = Asking::new(loaded)?;
    let mut results = Vec::with_capacity(rows.len());
    for &count in rows {
        let (mut ask, status) = asking.of(count as usize);
        // Before time is spent on what a host would not get an answer to either.
        ask();
        answered(&status(), count)?;
        let times = times(calls, &mut ask);
        drop(ask);
        answered(&status(), count)?;
        results.push((count, times));
    }
    let compile_ns = u64::try_from(loaded.compile_time().as_nanos()).unwrap_or(u64::MAX);
    Ok(Report { results, start: summary(starts), compile_ns, memory_bytes: asking.status().report.memory_bytes, deadline_us: 0 })
}

/// # Errors
/// The native fallback answered.
fn answered(status: &SlotStatus, count: u32) -> Result<()> {
    let faults = status.total.faults.total();
    let last = status.last_error.as_ref().map(|(_, text)| text.as_str()).unwrap_or_default();
    ensure!(
        faults == 0,
        "{faults} of the calls with {count} rows were answered by the native fallback, as they would be in a host, the last because: \
         {last}; measure fewer rows with --rows, or make the policy need less"
    );
    Ok(())
}

/// The slot of the decision, as a host has it.
enum Asking {
    Route(RouteSlot),
    Schedule(ScheduleSlot),
    Precision(PrecisionSlot),
}

impl Asking {
    fn new(loaded: &LoadedPolicy) -> Result<Self> {
        let (info, breaker) = (loaded.info().clone(), BreakerSettings::default());
        Ok(match loaded.kind() {
            PolicyKind::Route => Self::Route(RouteSlot::new(loaded.route()?, info, breaker, RouteLimits::default())),
            PolicyKind::Schedule => Self::Schedule(ScheduleSlot::new(loaded.schedule()?, info, breaker)),
            PolicyKind::Precision => {
                Self::Precision(PrecisionSlot::new(loaded.precision()?, info, breaker, TierPrecision::default()))
            }
        })
    }

    fn status(&self) -> SlotStatus {
        match self {
            Self::Route(slot) => slot.status(),
            Self::Schedule(slot) => slot.status(),
            Self::Precision(slot) => slot.status(),
        }
    }

    /// One decision on facts of this size, and the slot's status.
    fn of(&self, count: usize) -> (Box<dyn FnMut() + '_>, impl Fn() -> SlotStatus + '_) {
        let tenants = facts::tenants();
        let mut number = 0_u32;
        let ask: Box<dyn FnMut() + '_> = match self {
            Self::Route(slot) => Box::new(move || {
                number = number.wrapping_add(1);
                let lanes = facts::lanes(count);
                drop(black_box(slot.decide(0, &facts::request(number), &lanes, &tenants)));
            }),
            Self::Schedule(slot) => {
                let sequences = facts::Sequences::new(count);
                Box::new(move || {
                    number = number.wrapping_add(1);
                    let (rows, tenants) = (sequences.view(), sequences.tenants());
                    drop(black_box(slot.plan_step(0, &facts::budget(count, u64::from(number)), &rows, &tenants)));
                })
            }
            Self::Precision(slot) => {
                let precisions = facts::precisions(3);
                let asks: Vec<_> = (0..u32::try_from(count).unwrap_or(u32::MAX)).map(facts::ask).collect();
                Box::new(move || drop(black_box(slot.choose(0, &asks, &precisions, &tenants))))
            }
        };
        (ask, move || self.status())
    }
}

fn times(calls: usize, ask: &mut dyn FnMut()) -> Times {
    let began = Instant::now();
    for _ in 0..WARM_UP {
        ask();
        if began.elapsed() > MAX_TIME / 10 {
            break;
        }
    }
    let (began, mut times) = (Instant::now(), Vec::with_capacity(calls));
    while times.len() < calls && (times.len() < 10 || began.elapsed() < MAX_TIME) {
        let started = Instant::now();
        ask();
        times.push(started.elapsed());
    }
    summary(times)
}

fn summary(mut times: Vec<Duration>) -> Times {
    times.sort_unstable();
    let at = |per_mille: usize| {
        let time = times.get(times.len().saturating_sub(1) * per_mille / 1_000);
        time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    };
    Times { median_ns: at(500), p99_ns: at(990) }
}

impl Report {
    /// Sizes with calls that a host would have given up.
    fn late(&self) -> Vec<u32> {
        let is_late = |times: &Times| times.p99_ns > self.deadline_us.saturating_mul(1_000);
        self.results.iter().filter(|(_, times)| is_late(times)).map(|(rows, _)| *rows).collect()
    }

    fn object(&self) -> Value {
        let result = |(rows, times): &(u32, Times)| json!({"rows": rows, "ns_per_decision": {"median": times.median_ns, "p99": times.p99_ns}});
        json!({
            "results": self.results.iter().map(result).collect::<Vec<_>>(),
            "instantiate_ns": self.start.median_ns, "compile_ns": self.compile_ns, "memory_bytes": self.memory_bytes,
            "deadline_us": self.deadline_us, "late_rows": self.late(),
        })
    }

    fn print(&self, file: &Path, loaded: &LoadedPolicy) {
        let info = loaded.info();
        say!("{}: {} policy `{}`, version {}", file.display(), loaded.kind(), info.name, info.version);
        say!("  rows    ns a decision: median          p99");
        for (rows, times) in &self.results {
            say!("{rows:>6} {:>22} {:>12}", times.median_ns, times.p99_ns);
        }
        say!("compile      {:>12} ns", self.compile_ns);
        say!("instantiate  {:>12} ns, `init` included, median of {STARTS}", self.start.median_ns);
        say!("memory       {:>12} bytes", self.memory_bytes);
        for rows in self.late() {
            say!(
                "with {rows} rows the 99th percentile is longer than the deadline of {} us: a host would answer such calls itself; \
                 make the policy faster, or raise `deadline_us`",
                self.deadline_us
            );
        }
    }
}
