//! Items of a phase in shares: each worker takes its own share in ascending order, then what is left of the others'.
//! Knows neither items nor threads; who enters which phase is the barrier's.
//!
//! ```text
//! items      0 1 2 3 4 5 6 7 | 8 9 ..            two workers, runs of 2
//! worker 0   0 1, 2 3, 4 5, 6 7, then runs that worker 1 has not taken
//! worker 1   8 9, ..
//! ```
//!
//! What a worker reads then lies in one piece, so that what comes next can be asked for ahead of time. `kernels/cpu/SPEED.md` has what
//! that brings.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shares begin at multiples of this: kernels take two panels at a time.
const UNIT: usize = 2;

/// How far each worker's share has been taken: the phase in the upper half, items in the lower. A counter of another phase counts as
/// untouched, so nobody has to write others' counters between phases.
pub(crate) struct Shares {
    taken: Box<[Line]>,
}

/// On a cache line of its own (two, since lines are fetched in pairs).
#[repr(align(128))]
struct Line(AtomicU64);

impl Shares {
    pub(crate) fn new(workers: usize) -> Self {
        Self { taken: (0..workers).map(|_| Line(AtomicU64::new(0))).collect() }
    }

    /// The next run of at most `chunk` of `total` items for `worker` in `phase`; `None` when all are taken. All workers ask with the
    /// same `chunk` and `total` in a phase.
    pub(crate) fn take(&self, worker: usize, phase: u32, chunk: usize, total: usize) -> Option<Range<usize>> {
        let workers = self.taken.len();
        (0..workers).find_map(|step| self.take_of((worker + step) % workers, phase, chunk.max(1), total))
    }

    /// The next run of `owner`'s share.
    fn take_of(&self, owner: usize, phase: u32, chunk: usize, total: usize) -> Option<Range<usize>> {
        let workers = self.taken.len();
        let bound = |worker: usize| (total.div_ceil(UNIT) * worker / workers * UNIT).min(total);
        let (begin, end) = (bound(owner), bound(owner + 1));
        let counter = &self.taken[owner].0;
        let mut seen = counter.load(Ordering::Relaxed);
        loop {
            let start = begin + if (seen >> 32) as u32 == phase { (seen as u32) as usize } else { 0 };
            if start >= end {
                return None;
            }
            let stop = end.min(start + chunk);
            let next = u64::from(phase) << 32 | (stop - begin) as u64;
            match counter.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start..stop),
                Err(now) => seen = now,
            }
        }
    }

    /// Makes all counters those of `phase`, which is over: nobody takes meanwhile. To be called before phases repeat.
    pub(crate) fn forget(&self, phase: u32) {
        for Line(counter) in &self.taken {
            counter.store(u64::from(phase) << 32, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every item once, whoever takes how much, in every phase.
    #[test]
    fn every_item_is_taken_once() {
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for workers in 1..=5 {
            let shares = Shares::new(workers);
            for phase in 0..200 {
                let (total, chunk) = (random(70), random(9) + 1);
                let mut count = vec![0; total];
                let mut ended = vec![false; workers];
                while !ended.iter().all(|&ended| ended) {
                    let worker = random(workers);
                    match shares.take(worker, phase, chunk, total) {
                        Some(range) => range.for_each(|item| count[item] += 1),
                        None => ended[worker] = true,
                    }
                }
                assert!(count.iter().all(|&n| n == 1), "{workers} workers, {total} items by {chunk}: {count:?}");
            }
        }
    }

    #[test]
    fn a_worker_takes_its_own_share_first_and_in_order() {
        let shares = Shares::new(2);
        let taken: Vec<_> = std::iter::from_fn(|| shares.take(1, 3, 8, 36)).collect();
        assert_eq!(taken, [18..26, 26..34, 34..36, 0..8, 8..16, 16..18]);
        assert_eq!(shares.take(0, 3, 8, 36), None);
        assert_eq!(shares.take(0, 4, 8, 36), Some(0..8));
    }

    #[test]
    fn fewer_items_than_workers_are_taken_too() {
        let shares = Shares::new(4);
        assert_eq!(shares.take(2, 1, 4, 1), Some(0..1));
        assert_eq!(shares.take(0, 1, 4, 1), None);
        assert_eq!(shares.take(0, 2, 4, 0), None);
    }

    #[test]
    fn a_phase_with_the_number_of_an_old_one_begins_anew_once_that_is_forgotten() {
        let shares = Shares::new(1);
        assert_eq!(shares.take(0, 5, 4, 4), Some(0..4));
        shares.forget(4);
        assert_eq!(shares.take(0, 5, 4, 4), Some(0..4));
    }

    #[test]
    fn workers_at_the_same_time_take_every_item_once() {
        let (shares, total) = (Shares::new(3), 30_000);
        let count: Vec<AtomicU64> = (0..total).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (shares, count) = (&shares, &count);
                scope.spawn(move || {
                    while let Some(range) = shares.take(worker, 1, 3, total) {
                        count[range].iter().for_each(|item| _ = item.fetch_add(1, Ordering::Relaxed));
                    }
                });
            }
        });
        assert!(count.iter().all(|item| item.load(Ordering::Relaxed) == 1));
    }
}
