//! How workers of one pool keep step: a barrier that spins, then yields, and the chunk counter it resets.
//! Knows no work.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Spins before a waiting worker offers its core to others. About 5 us: longer than most phases of a decode step differ.
const SPINS: u32 = 2_000;

/// On a cache line of its own (two, since lines are fetched in pairs), so that writers of one do not slow readers of another.
#[repr(align(128))]
struct Line(AtomicUsize);

/// A barrier for a fixed number of workers.
pub(crate) struct Barrier {
    workers: usize,
    arrived: Line,
    generation: Line,
    next_chunk: Line,
}

impl Barrier {
    pub(crate) fn new(workers: usize) -> Self {
        let line = || Line(AtomicUsize::new(0));
        Self { workers, arrived: line(), generation: line(), next_chunk: line() }
    }

    /// Returns once all workers have called it. What they wrote before is visible after, and chunks count from 0 again.
    pub(crate) fn wait(&self) {
        if self.workers == 1 {
            self.next_chunk.0.store(0, Ordering::Relaxed);
            return;
        }
        let generation = self.generation.0.load(Ordering::Acquire);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.workers {
            // All others wait on the generation, so nobody uses these two now.
            self.arrived.0.store(0, Ordering::Relaxed);
            self.next_chunk.0.store(0, Ordering::Relaxed);
            self.generation.0.store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.generation.0.load(Ordering::Acquire) == generation {
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// The next `chunk` of `total` items that no worker has taken since the last barrier.
    #[inline]
    pub(crate) fn take(&self, chunk: usize, total: usize) -> Option<Range<usize>> {
        let chunk = chunk.max(1);
        let start = self.next_chunk.0.fetch_add(chunk, Ordering::Relaxed);
        (start < total).then(|| start..total.min(start + chunk))
    }
}
