//! Many worlds, one after the other on each of several threads, until enough of everything has happened. Knows no world from within.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{EngineKind, FaultKind, Lab, SimError, Tally, WorldOptions};

/// Violations that are kept; further ones are counted.
const MOST_KEPT: usize = 20;

/// How much is to happen.
#[derive(Debug, Clone)]
pub struct CampaignOptions {
    pub engine: EngineKind,
    pub world: WorldOptions,
    /// The first seed.
    pub from: u64,
    /// Worlds at least.
    pub seeds: u64,
    /// Pages that change hands under their owners, at least.
    pub reassignments: u64,
    /// Clients that go away, at least.
    pub aborts: u64,
    pub threads: usize,
    /// No world begins after so long; what is missing then is missing in the report.
    pub at_most: Option<Duration>,
    /// No world begins once something was seen that must not be.
    pub stop_at_violation: bool,
}

/// Something that must not be, and the seed that shows it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub seed: u64,
    pub what: String,
    /// Pages that had changed hands by then, in the worlds that had ended and in this one.
    pub reassignments: u64,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub tally: Tally,
    pub worlds: u64,
    /// Worlds in which something was seen that must not be.
    pub violated: u64,
    /// Of these the first, by seed.
    pub violations: Vec<Violation>,
    pub took: Duration,
}

impl Report {
    /// Faults that were to happen and never did: a hole in the run.
    pub fn never_fired(&self, options: &WorldOptions) -> Vec<FaultKind> {
        options.faults.iter().copied().filter(|&kind| self.tally.of(kind) == 0).collect()
    }
}

/// What all threads know.
struct Shared<'a> {
    options: &'a CampaignOptions,
    next: AtomicU64,
    stop: AtomicBool,
    began: Instant,
    report: Mutex<Report>,
}

/// Runs worlds until there were enough; `progress` hears of the sums now and then.
///
/// # Errors
/// A world cannot be built. What goes wrong in one is in the report.
pub fn campaign(options: &CampaignOptions, progress: &(dyn Fn(&Report) + Sync)) -> Result<Report, SimError> {
    let shared = Shared {
        options,
        next: AtomicU64::new(options.from),
        stop: AtomicBool::new(false),
        began: Instant::now(),
        report: Mutex::default(),
    };
    let results: Vec<Result<(), SimError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads.max(1)).map(|_| scope.spawn(|| shared.work(progress))).collect();
        let panicked = || Err(SimError::Alone("a world's thread panicked, which is a bug".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    results.into_iter().collect::<Result<(), SimError>>()?;
    let mut report = shared.report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.violations.sort_by_key(|violation| violation.seed);
    report.took = shared.began.elapsed();
    Ok(report)
}

impl Shared<'_> {
    fn work(&self, progress: &(dyn Fn(&Report) + Sync)) -> Result<(), SimError> {
        let lab = Lab::new(self.options.engine)?;
        while !self.stop.load(Ordering::Relaxed) {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if self.is_past_the_last(seed) {
                break;
            }
            let outcome = lab.run(seed, &self.options.world)?;
            let mut report = self.report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            report.worlds += 1;
            report.tally.add(&outcome.tally);
            report.took = self.began.elapsed();
            if let Some(what) = outcome.violation {
                report.violated += 1;
                let reassignments = report.tally.reassignments();
                if report.violations.len() < MOST_KEPT {
                    report.violations.push(Violation { seed, what, reassignments });
                }
            }
            if self.is_enough(&report) {
                self.stop.store(true, Ordering::Relaxed);
            }
            progress(&report);
        }
        Ok(())
    }

    /// Where seeds alone say how much is enough, no other seed begins: a replay is one world.
    fn is_past_the_last(&self, seed: u64) -> bool {
        let CampaignOptions { from, seeds, reassignments, aborts, .. } = *self.options;
        reassignments == 0 && aborts == 0 && seed >= from.saturating_add(seeds)
    }

    fn is_enough(&self, report: &Report) -> bool {
        let CampaignOptions { seeds, reassignments, aborts, at_most, stop_at_violation, .. } = *self.options;
        let tally = &report.tally;
        let all = report.worlds >= seeds && tally.reassignments() >= reassignments && tally.of(FaultKind::Abort) >= aborts;
        let late = at_most.is_some_and(|most| self.began.elapsed() >= most);
        all || late || stop_at_violation && report.violated > 0
    }
}

/// Counts of each fault by state, in the order of the kinds.
pub fn by_kind(tally: &Tally) -> BTreeMap<FaultKind, BTreeMap<&'static str, u64>> {
    let mut kinds: BTreeMap<FaultKind, BTreeMap<&'static str, u64>> = BTreeMap::new();
    for (&(kind, state), &count) in &tally.faults {
        kinds.entry(kind).or_default().insert(state, count);
    }
    kinds
}
