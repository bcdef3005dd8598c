//! The driver's part of a hand-off: it looks whether the copy of each lane has passed, has the next thing done, and gives both sides'
//! schedulers what came of it. Which pages and when is decided in `in_process`.

use millrace_core::{SeqId, Stage};
use millrace_kv::PageRef;
use millrace_scheduler::Entry;

use crate::JobError;
use crate::driver::Driver;
use crate::handoff::HandOffEvent;
use crate::pool::Scheduler;

impl Driver {
    pub(crate) fn offer(&mut self, entry: Entry, first_token: u32, pages: Vec<PageRef>, tokens: u32) {
        let first_token = entry.replay.first().copied().unwrap_or(first_token);
        self.lanes[entry.lane.0 as usize].hand_off.offer(entry, first_token, pages, tokens);
    }

    pub(crate) fn release_prefilled(&mut self, pool: usize, seq: SeqId) {
        if let Scheduler::Prefill(scheduler) = &mut self.pools[pool].scheduler {
            scheduler.release_handed_off(seq);
        }
    }

    pub(crate) fn move_hand_offs(&mut self, lane: usize) {
        if self.lanes[lane].hand_off.is_idle() || self.copy_runs(lane) {
            return;
        }
        let failed = self.lane_failure(lane).is_some();
        let spec = &self.lanes[lane].spec;
        let (prefill_index, decode_index) = (spec.prefill.0 as usize, spec.decode.0 as usize);
        let Ok([prefill, decode]) = self.pools.get_disjoint_mut([prefill_index, decode_index]) else { return };
        let Scheduler::Decode(scheduler) = &mut decode.scheduler else { return };
        let hand_off = &mut self.lanes[lane].hand_off;
        let moved = if failed {
            Ok(hand_off.abandon(scheduler))
        } else {
            hand_off.advance(&mut prefill.runner, &mut decode.runner, scheduler)
        };
        match moved {
            Ok(events) => {
                // A sequence whose first token was its last ends as it is attached.
                let ended = scheduler.take_events();
                let now_us = self.shared.clock.now_us();
                events.into_iter().for_each(|event| self.hear_hand_off(prefill_index, event));
                ended.into_iter().for_each(|event| self.hear_decode(event, now_us));
            }
            Err(error) => self.pool_failed(decode_index, &error),
        }
    }

    fn hear_hand_off(&mut self, prefill: usize, event: HandOffEvent) {
        let seq = match event {
            HandOffEvent::Committed { seq, pages } => {
                self.counters.hand_offs += 1;
                self.counters.hand_off_pages += pages as u64;
                return self.release_prefilled(prefill, seq);
            }
            HandOffEvent::StaleSource { seq } => {
                if let Scheduler::Prefill(scheduler) = &mut self.pools[prefill].scheduler {
                    scheduler.abort_mismatched(seq);
                }
                self.stale(seq);
                seq
            }
            HandOffEvent::StaleTarget { seq } => {
                self.stale(seq);
                seq
            }
            HandOffEvent::Refused { seq, why } => {
                self.failed(seq, JobError::HandOff(why.to_string()));
                seq
            }
            HandOffEvent::Cancelled { seq } => seq,
        };
        self.counters.hand_offs_aborted += 1;
        self.release_prefilled(prefill, seq);
    }

    /// Whether a copy of the lane's hand-off is under way, and so names pages of both pools. A copy that failed has passed; the error
    /// is of the pool whose queue had it.
    pub(crate) fn copy_runs(&mut self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        let Some((stage, ticket)) = lane.hand_off.leg() else { return false };
        let pool = match stage {
            Stage::Prefill => lane.spec.prefill,
            Stage::Decode => lane.spec.decode,
        };
        let index = pool.0 as usize;
        match self.pools[index].has_passed(ticket) {
            Ok(passed) => !passed,
            Err(error) => {
                self.pool_failed(index, &error);
                false
            }
        }
    }
}
