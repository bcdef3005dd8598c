//! How workers of one pool keep step: a barrier that spins, then sleeps, and the counters of chunks that begin anew with each phase.
//! Knows no work.
//!
//! A worker that waits longer than two phases should differ waits for one that lost its core to another program. Giving the
//! core away for good (sleeping, not `sched_yield`, which costs a whole slice of the other program) lets the system move the one
//! that is waited for here, and lets this one in at once when it is woken.
//!
//! Where other programs want the cores all the time, the system may keep two workers on one core: it counts programs, not who
//! waits for whom. There each spin only keeps the other one from its work, so spinning that was in vain makes workers less patient,
//! down to sleeping at once; a probe now and then finds out when it pays again.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::shares::Shares;

/// Spins before a patient worker sleeps. About 20 us, of the order of what being put to sleep and woken costs.
const MOST_SPINS: u32 = 8_000;
/// The same of the least patient one: about what it takes to look whether the others have just come.
const FEWEST_SPINS: u32 = 50;
/// Of so many barriers, impatient workers spin as long as they ever would at one. A prime, so that it is not the same one of every
/// step.
const PROBE_EVERY: u32 = 61;
/// After so many phases the shares forget them, long before their numbers repeat.
const FORGET_EVERY: u32 = 1 << 20;

/// On a cache line of its own (two, since lines are fetched in pairs), so that writers of one do not slow readers of another.
#[repr(align(128))]
struct Line<T>(T);

/// A barrier for a fixed number of workers.
pub(crate) struct Barrier {
    workers: usize,
    arrived: Line<AtomicUsize>,
    generation: Line<AtomicU32>,
    /// Workers that sleep, or are about to.
    sleepers: Line<AtomicU32>,
    /// Spins before a worker sleeps. Written when that changes, which is seldom.
    patience: Line<AtomicU32>,
    next_chunk: Line<AtomicUsize>,
    shares: Shares,
}

impl Barrier {
    pub(crate) fn new(workers: usize) -> Self {
        let line = || Line(AtomicUsize::new(0));
        let word = || Line(AtomicU32::new(0));
        let patience = Line(AtomicU32::new(MOST_SPINS));
        let shares = Shares::new(workers);
        Self { workers, arrived: line(), generation: word(), sleepers: word(), patience, next_chunk: line(), shares }
    }

    /// Returns once all workers have called it. What they wrote before is visible after, and chunks count from 0 again.
    pub(crate) fn wait(&self) {
        let generation = self.generation.0.load(Ordering::Acquire);
        if self.workers == 1 {
            self.begin_after(generation);
            return;
        }
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.workers {
            // All others wait on the generation, so nobody uses these two now.
            self.arrived.0.store(0, Ordering::Relaxed);
            self.begin_after(generation);
            if self.sleepers.0.load(Ordering::SeqCst) > 0 {
                atomic_wait::wake_all(&self.generation.0);
            }
            return;
        }
        if self.spin(generation) {
            return;
        }
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        while self.generation.0.load(Ordering::SeqCst) == generation {
            // Returns at once where the generation has moved on meanwhile.
            atomic_wait::wait(&self.generation.0, generation);
        }
        self.sleepers.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Begins the phase after `generation`. Nobody takes chunks meanwhile.
    fn begin_after(&self, generation: u32) {
        self.next_chunk.0.store(0, Ordering::Relaxed);
        if generation.is_multiple_of(FORGET_EVERY) {
            self.shares.forget(generation);
        }
        // Total with the order of a worker that goes to sleep: it sees this generation, or is seen after.
        self.generation.0.store(generation.wrapping_add(1), Ordering::SeqCst);
    }

    /// Spins as long as it pays; whether `generation` has ended meanwhile.
    fn spin(&self, generation: u32) -> bool {
        let patience = self.patience.0.load(Ordering::Relaxed);
        let probes = patience < MOST_SPINS && generation.is_multiple_of(PROBE_EVERY);
        for _ in 0..if probes { MOST_SPINS } else { patience } {
            if self.generation.0.load(Ordering::Acquire) != generation {
                if probes {
                    self.patience.0.store(MOST_SPINS, Ordering::Relaxed);
                }
                return true;
            }
            std::hint::spin_loop();
        }
        self.patience.0.store((patience / 2).max(FEWEST_SPINS), Ordering::Relaxed);
        false
    }

    /// The next `chunk` of `total` items that no worker has taken since the last barrier, in ascending order.
    #[inline]
    pub(crate) fn take(&self, chunk: usize, total: usize) -> Option<Range<usize>> {
        let chunk = chunk.max(1);
        let start = self.next_chunk.0.fetch_add(chunk, Ordering::Relaxed);
        (start < total).then(|| start..total.min(start + chunk))
    }

    /// The same, of the share of `worker` while it lasts. Counts apart from [`Self::take`].
    #[inline]
    pub(crate) fn take_near(&self, worker: usize, chunk: usize, total: usize) -> Option<Range<usize>> {
        self.shares.take(worker, self.generation.0.load(Ordering::Relaxed), chunk, total)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;

    /// Workers that come at once, late, and so late that the others sleep; each takes its part of every round, and none is
    /// left behind or ahead.
    #[test]
    fn workers_meet_whether_they_spin_or_sleep() {
        const WORKERS: usize = 3;
        const ROUNDS: usize = 200;
        let barrier = Barrier::new(WORKERS);
        let taken: Vec<AtomicU64> = (0..ROUNDS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (barrier, taken) = (&barrier, &taken);
                scope.spawn(move || {
                    for (round, taken) in taken.iter().enumerate() {
                        if round % (3 * WORKERS) == worker {
                            std::thread::sleep(Duration::from_micros(500));
                        }
                        while let Some(range) = barrier.take(1, 10) {
                            taken.fetch_add(range.len() as u64, Ordering::Relaxed);
                        }
                        barrier.wait();
                        assert_eq!(taken.load(Ordering::Relaxed), 10, "round {round}");
                    }
                });
            }
        });
        assert_eq!(barrier.sleepers.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn spinning_in_vain_makes_impatient_and_a_probe_makes_patient_again() {
        let barrier = Barrier::new(2);
        let patience = || barrier.patience.0.load(Ordering::Relaxed);
        // Nobody else comes.
        for halvings in 1..12 {
            assert!(!barrier.spin(0));
            assert_eq!(patience(), (MOST_SPINS >> halvings).max(FEWEST_SPINS));
        }
        // One that comes while somebody sleeps at once changes nothing, one that comes during a probe does.
        barrier.generation.0.store(PROBE_EVERY + 2, Ordering::Relaxed);
        assert!(barrier.spin(PROBE_EVERY + 1));
        assert_eq!(patience(), FEWEST_SPINS);
        assert!(barrier.spin(PROBE_EVERY));
        assert_eq!(patience(), MOST_SPINS);
    }

    #[test]
    fn one_worker_waits_for_nobody() {
        let barrier = Barrier::new(1);
        for _ in 0..3 {
            assert_eq!(barrier.take(3, 4), Some(0..3));
            barrier.wait();
            assert_eq!(barrier.take_near(0, 3, 4), Some(0..3));
            barrier.wait();
        }
    }
}
