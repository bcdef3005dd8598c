//! The driver's part of a hand-off: it looks whether the copy of each lane has passed, has the next thing done, and gives both sides'
//! schedulers what came of it. Which pages and when is decided in `in_process`, and for lanes of two processes in `sending` and
//! `receiving`.

use millrace_core::{SeqId, Stage};
use millrace_kv::PageRef;
use millrace_scheduler::Entry;

use crate::driver::Driver;
use crate::handoff::{Arrival, HandOffEvent, Link, Ticket};
use crate::pool::Scheduler;
use crate::{Event, Job, JobError};

/// Whether the last copy of a lane's hand-off has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastCopy {
    /// It names pages still.
    Runs,
    /// It has passed, or there was none.
    Passed,
}

impl Driver {
    pub(crate) fn offer(&mut self, entry: Entry, first_token: u32, pages: Vec<PageRef>, tokens: u32, cached_tokens: u32) {
        let first_token = entry.replay.first().copied().unwrap_or(first_token);
        let now_us = self.shared.clock.now_us();
        match &mut self.lanes[entry.lane.0 as usize].link {
            Link::InProcess(hand_off) => hand_off.offer(entry, first_token, pages, tokens),
            Link::Sending(sending) => {
                // A sequence that was aborted meanwhile left the pool as well and is not offered.
                let Some(sampling) = self.jobs.sampling(entry.seq).cloned() else { return };
                let queued_us = self.jobs.queued_us(entry.seq, now_us);
                sending.offer(Ticket { entry, sampling, first_token, cached_tokens, queued_us }, pages, tokens);
            }
            Link::Receiving(_) => {}
        }
    }

    pub(crate) fn release_prefilled(&mut self, pool: usize, seq: SeqId) {
        if let Scheduler::Prefill(scheduler) = &mut self.pools[pool].scheduler {
            scheduler.release_handed_off(seq);
        }
    }

    pub(crate) fn move_hand_offs(&mut self, lane: usize) {
        if self.lanes[lane].link.is_idle() {
            return;
        }
        let copy = self.copy_of(lane);
        let ends = self.lanes[lane].ends;
        match (&self.lanes[lane].link, ends.prefill, ends.decode) {
            (Link::InProcess(_), Some(prefill), Some(decode)) if copy == LastCopy::Passed => {
                self.move_in_process(lane, prefill, decode)
            }
            (Link::Sending(_), Some(prefill), _) => self.move_out(lane, prefill, copy),
            (Link::Receiving(_), _, Some(decode)) => self.move_in(lane, decode, copy),
            _ => {}
        }
    }

    fn move_in_process(&mut self, lane: usize, prefill_index: usize, decode_index: usize) {
        let failed = self.lane_failure(lane).is_some();
        let Ok([prefill, decode]) = self.pools.get_disjoint_mut([prefill_index, decode_index]) else { return };
        let Scheduler::Decode(scheduler) = &mut decode.scheduler else { return };
        let Link::InProcess(hand_off) = &mut self.lanes[lane].link else { return };
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

    /// A lane whose decode pool is in another process.
    fn move_out(&mut self, lane: usize, prefill: usize, copy: LastCopy) {
        let failed = self.lane_failure(lane).is_some();
        let Link::Sending(sending) = &mut self.lanes[lane].link else { return };
        let moved = if failed { Ok(sending.abandon()) } else { sending.advance(&mut self.pools[prefill].runner, copy) };
        match moved {
            Ok(events) => events.into_iter().for_each(|event| {
                let committed = match &event {
                    HandOffEvent::Committed { seq, life, .. } => life.map(|life| (*seq, life)),
                    _ => None,
                };
                self.hear_hand_off(prefill, event);
                committed.into_iter().for_each(|(seq, life)| self.jobs.handed_over(seq, life));
            }),
            Err(error) => self.pool_failed(prefill, &error),
        }
    }

    /// A lane whose prefill pool is in another process.
    fn move_in(&mut self, lane: usize, decode: usize, copy: LastCopy) {
        let failed = self.lane_failure(lane).is_some();
        let now_us = self.shared.clock.now_us();
        let pool = &mut self.pools[decode];
        let Scheduler::Decode(scheduler) = &mut pool.scheduler else { return };
        let Link::Receiving(receiving) = &mut self.lanes[lane].link else { return };
        let moved =
            if failed { Ok(receiving.abandon(scheduler)) } else { receiving.advance(&mut pool.runner, scheduler, copy, now_us) };
        let ended = scheduler.take_events();
        match moved {
            Ok(arrivals) => {
                arrivals.into_iter().for_each(|arrival| self.hear_arrival(arrival, now_us));
                ended.into_iter().for_each(|event| self.hear_decode(event, now_us));
            }
            Err(error) => self.pool_failed(decode, &error),
        }
    }

    fn hear_arrival(&mut self, arrival: Arrival, now_us: u64) {
        match arrival {
            Arrival::Coming(ticket) => self.expect(*ticket, now_us),
            Arrival::Attached { ticket } => {
                let seq = ticket.entry.seq;
                if ticket.entry.replay.is_empty() {
                    self.jobs.attached(
                        seq,
                        Event::Prefilled { cached_tokens: ticket.cached_tokens, queued_us: ticket.queued_us },
                        now_us,
                    );
                    // Unless it ends the sequence and is no part of its output.
                    if !ticket.entry.stop_tokens.contains(&ticket.first_token) {
                        self.jobs.token(seq, ticket.first_token, now_us);
                    }
                } else {
                    self.jobs.resumed(seq, now_us);
                }
            }
            Arrival::Gone { seq } => {
                // Its end is told, and counted, where it came from.
                self.jobs.abort(seq);
            }
        }
    }

    /// A sequence is on its way here: it is known from now on, so that it can be aborted.
    fn expect(&mut self, ticket: Ticket, now_us: u64) {
        let Some(sinks) = &self.sinks else { return };
        let Ticket { entry, sampling, .. } = ticket;
        let job = Job {
            seq: entry.seq,
            request: entry.request,
            lane: entry.lane,
            tenant: entry.tenant,
            priority: entry.priority,
            deadline_us: None,
            events: sinks(entry.seq, &entry.replay),
            prompt: entry.prompt,
            scope: None,
            sampling,
        };
        self.jobs.insert(job, now_us);
    }

    fn hear_hand_off(&mut self, prefill: usize, event: HandOffEvent) {
        let seq = match event {
            HandOffEvent::Committed { seq, pages, .. } => {
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
                self.failed(seq, JobError::HandOff(why));
                seq
            }
            HandOffEvent::Cancelled { seq } => seq,
        };
        self.counters.hand_offs_aborted += 1;
        self.release_prefilled(prefill, seq);
    }

    /// Whether the copy of the lane's hand-off that was submitted last names pages still. A copy that failed has passed; the error
    /// is of the pool whose queue had it.
    fn copy_of(&mut self, lane: usize) -> LastCopy {
        let lane = &self.lanes[lane];
        let Some((stage, ticket)) = lane.link.leg() else { return LastCopy::Passed };
        let pool = match stage {
            Stage::Prefill => lane.ends.prefill,
            Stage::Decode => lane.ends.decode,
        };
        let Some(index) = pool else { return LastCopy::Passed };
        match self.pools[index].has_passed(ticket) {
            Ok(true) => LastCopy::Passed,
            Ok(false) => LastCopy::Runs,
            Err(error) => {
                self.pool_failed(index, &error);
                LastCopy::Passed
            }
        }
    }
}
