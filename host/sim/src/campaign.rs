//! Many worlds, one after the other on each of several threads, until enough of everything has happened. Knows no world from within;
//! what came of them is put together in `books`.

mod books;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{EngineKind, FaultKind, Lab, Outcome, SimError, Tally, Transport, Transports, WorldOptions};

use books::{Books, Verdict};

/// Worlds that may run at a time.
pub const MAX_THREADS: usize = 256;

/// How much is to happen.
#[derive(Debug, Clone)]
pub struct CampaignOptions {
    pub engine: EngineKind,
    pub world: WorldOptions,
    /// The first seed.
    pub from: u64,
    /// Worlds at least; one at least.
    pub seeds: u64,
    /// Pages that change hands under their owners, at least.
    pub reassignments: u64,
    /// Clients that go away, at least.
    pub aborts: u64,
    /// At most [`MAX_THREADS`].
    pub threads: usize,
    /// No world begins after so long; what is missing then is missing in the report.
    pub at_most: Option<Duration>,
    /// No world begins once something was seen that must not be.
    pub stop_at_violation: bool,
}

/// A campaign that would never come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Endless {
    #[error("no world is to run, so nothing would be seen; ask for one seed at least")]
    NoSeeds,
    #[error("there are no {seeds} seeds from {from} on; begin at a lower one")]
    PastTheLast { from: u64, seeds: u64 },
    #[error(
        "reassigned pages are waited for, and nothing reassigns one; let reassign or reassign_on_device strike, at a rate above 0"
    )]
    Reassignments,
    #[error("aborts are waited for, and no client goes away; let abort strike, at a rate above 0")]
    Aborts,
}

impl CampaignOptions {
    /// # Errors
    /// What these options wait for never comes.
    pub fn check(&self) -> Result<(), Endless> {
        let strikes = |kind| self.world.per_mille > 0 && self.world.faults.contains(&kind);
        if self.seeds == 0 {
            return Err(Endless::NoSeeds);
        }
        if self.from.checked_add(self.seeds).is_none() {
            return Err(Endless::PastTheLast { from: self.from, seeds: self.seeds });
        }
        if self.reassignments > 0 && !strikes(FaultKind::Reassign) && !strikes(FaultKind::ReassignOnDevice) {
            return Err(Endless::Reassignments);
        }
        if self.aborts > 0 && !strikes(FaultKind::Abort) {
            return Err(Endless::Aborts);
        }
        Ok(())
    }
}

/// Something that must not be, and the seed that shows it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub seed: u64,
    pub what: String,
    /// Pages that had changed hands in this world by then: as many as when the seed is run alone.
    pub reassignments: u64,
    /// And those of all lower seeds' worlds with them.
    pub reassignments_in_all: u64,
}

/// What came of it. The same for the same options, but for the time, however many threads ran and whoever was first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub tally: Tally,
    pub worlds: u64,
    /// Worlds in which something was seen that must not be.
    pub violated: u64,
    /// Of these the first, by seed.
    pub violations: Vec<Violation>,
    /// Follows from everything that happened in every world.
    pub digest: u64,
    /// What was waited for did not come any nearer in many worlds, so no more were begun.
    pub in_vain: bool,
    pub took: Duration,
}

impl Report {
    /// Faults that were to happen and never did: a hole in the run.
    pub fn never_fired(&self, options: &WorldOptions) -> Vec<FaultKind> {
        let without_messages = options.transport == Transports::Only(Transport::InProcess);
        let can = |kind: FaultKind| !(without_messages && kind.is_of_messages());
        options.faults.iter().copied().filter(|&kind| can(kind) && self.tally.of(kind) == 0).collect()
    }
}

type RunWorld<'a> = dyn Fn(&Lab, u64, &WorldOptions) -> Result<Outcome, SimError> + Sync + 'a;

/// What all threads know.
struct Shared<'a> {
    options: &'a CampaignOptions,
    run: &'a RunWorld<'a>,
    next: AtomicU64,
    stop: AtomicBool,
    began: Instant,
    books: Mutex<Books<'a>>,
}

/// Runs worlds until there were enough; `progress` hears of the sums now and then.
///
/// # Errors
/// The options have no end, or a world cannot be built. What goes wrong in one is in the report, a panic too.
pub fn campaign(options: &CampaignOptions, progress: &(dyn Fn(&Report) + Sync)) -> Result<Report, SimError> {
    campaign_of(options, progress, &|lab, seed, world| lab.run(seed, world))
}

fn campaign_of(options: &CampaignOptions, progress: &(dyn Fn(&Report) + Sync), run: &RunWorld<'_>) -> Result<Report, SimError> {
    options.check()?;
    let shared = Shared {
        options,
        run,
        next: AtomicU64::new(options.from),
        stop: AtomicBool::new(false),
        began: Instant::now(),
        books: Mutex::new(Books::new(options)),
    };
    let results: Vec<Result<(), SimError>> = std::thread::scope(|scope| {
        let count = options.threads.clamp(1, MAX_THREADS);
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| shared.work(progress))).collect();
        let panicked = || Err(SimError::Alone("a thread panicked outside of a world, which is a bug".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    results.into_iter().collect::<Result<(), SimError>>()?;
    let mut report = shared.books.into_inner().unwrap_or_else(PoisonError::into_inner).close();
    report.took = shared.began.elapsed();
    Ok(report)
}

impl<'a> Shared<'a> {
    fn work(&self, progress: &(dyn Fn(&Report) + Sync)) -> Result<(), SimError> {
        let lab = Lab::new(self.options.engine)?;
        while !self.stop.load(Ordering::Relaxed) {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if self.is_past_the_last(seed) {
                break;
            }
            let outcome = self.live(&lab, seed).inspect_err(|_| self.stop.store(true, Ordering::Relaxed))?;
            let mut books = self.lock();
            let verdict = books.enter(seed, outcome);
            let late = self.options.at_most.is_some_and(|most| self.began.elapsed() >= most);
            if verdict == Verdict::Enough || late {
                self.stop.store(true, Ordering::Relaxed);
            }
            progress(books.report());
        }
        Ok(())
    }

    /// A world that panics is seen as one that shows what must not be: its seed must not be lost.
    fn live(&self, lab: &Lab, seed: u64) -> Result<Outcome, SimError> {
        let world = || (self.run)(lab, seed, &self.options.world);
        match catch_unwind(AssertUnwindSafe(world)) {
            Ok(outcome) => outcome.map_err(|source| SimError::World { seed, source: Box::new(source) }),
            Err(panic) => {
                let why = panic.downcast_ref::<String>().map(String::as_str);
                let why = why.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
                Ok(Outcome { violation: Some(format!("the world panicked: {why}")), ..Outcome::default() })
            }
        }
    }

    /// Where seeds alone say how much is enough, no other seed begins: a replay is one world.
    fn is_past_the_last(&self, seed: u64) -> bool {
        let CampaignOptions { from, seeds, reassignments, aborts, .. } = *self.options;
        reassignments == 0 && aborts == 0 && seed >= from.saturating_add(seeds)
    }

    fn lock(&self) -> MutexGuard<'_, Books<'a>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests;
