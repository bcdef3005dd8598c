//! Faults off: everything must come to its end, every page come back, and none hold a number.

use millrace_core::PoolId;

use super::World;
use crate::lab::POOLS;

/// Turns within which a world without faults comes to rest.
const PATIENCE: u64 = 20_000;

impl World<'_> {
    pub(super) fn come_to_rest(&mut self) {
        super::lock(&self.mood).per_mille = 0;
        self.copies_held_until.clear();
        for _ in 0..PATIENCE {
            if self.violation.is_some() || self.live.is_empty() && self.device.ready().is_empty() && self.engine.is_settled() {
                break;
            }
            self.engine.return_stolen();
            self.engine.readmit_all();
            for queue in self.device.ready() {
                self.run_quietly(queue);
            }
            self.turn();
        }
        if self.violation.is_none() && !self.live.is_empty() {
            let seqs: Vec<_> = self.live.iter().take(3).map(|seq| (*seq, self.engine.places())).collect();
            self.violate(format!("{} requests never end although nothing is wrong any more: {seqs:?}", self.live.len()));
        }
        self.count_pages();
    }

    fn run_quietly(&mut self, queue: usize) {
        let faults = std::mem::replace(&mut self.quiet, true);
        self.run_queue(queue);
        self.quiet = faults;
    }

    /// Pages in, pages out.
    fn count_pages(&mut self) {
        // Once for what the last step kept, once for its fence, once for what the trees had.
        for round in 0..4 {
            if round == 2 {
                self.check_kept();
                self.engine.forget_prefixes();
            }
            self.engine.return_stolen();
            self.engine.readmit_all();
            self.turn();
            for queue in self.device.ready() {
                self.run_quietly(queue);
            }
        }
        self.turn();
        for (index, stage) in POOLS.iter().enumerate() {
            let Some(counts) = self.engine.pages(PoolId(index as u32)).map(|pages| pages.counts()) else { continue };
            if counts.free != counts.total {
                self.violate(format!("{} pages of {stage} pool {index} leaked: {counts:?}", counts.total - counts.free));
            }
            // A queue that failed zeroes nothing any more.
            if !self.device.has_failed(index) {
                let written = self.device.written_pages(index);
                if !written.is_empty() {
                    self.violate(format!("freed pages {written:?} of {stage} pool {index} still hold numbers"));
                }
            }
        }
    }

    /// What is not free at rest is what the prefix trees keep.
    fn check_kept(&mut self) {
        for index in 0..POOLS.len() {
            let Some(pages) = self.engine.pages(PoolId(index as u32)) else { continue };
            let (counts, cached) = (pages.counts(), pages.cached_pages());
            if counts.free + counts.evictable != counts.total || counts.evictable != cached {
                self.violate(format!("at rest pool {index} has {counts:?} and {cached} pages in its tree"));
            }
        }
    }
}
