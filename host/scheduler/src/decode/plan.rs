//! Which sequences get their next token, and a page where a new one begins. Runs ahead: a row in flight counts as done.

use millrace_core::{FinishReason, SeqId};
use millrace_policy::Table;

use super::victim::{Candidate, choose};
use super::{DecodeScheduler, DecodeSequence, DecodeState};
use crate::draft::DraftRow;
use crate::kept::SeqOrder;
use crate::stage::Question;
use crate::validate::default_order;
use crate::view::{RowFacts, RowState, rows_table};
use crate::{DecodeEvent, Draft, Entry, PolicyCall};

/// How a row that needs a page fares.
enum Growth {
    Ready,
    /// Pages will come free without taking them from anybody.
    Wait,
    /// The row itself gave its pages up, or ended.
    Gone,
}

impl DecodeScheduler {
    /// Chooses the next step's rows in the policy's order and gives them pages. May be called while a step is in flight.
    /// `None`: nothing can run now.
    ///
    /// A row that needs a page and finds none waits if the fence, a transfer or an ending sequence will free one; only else
    /// are pages taken from another: see `victim`. A sequence that is alone and cannot get a page ends with `Length`;
    /// admission keeps that from happening unless pages were put under suspicion since. A policy that lets all work rest for
    /// more than eight plans in a row is overruled. An order that the policy called valid for further steps serves those without
    /// asking, as long as no row comes, ends or leaves and there are pages for all that it runs.
    pub fn plan(&mut self, now_us: u64, policy: &mut PolicyCall<'_>, tenants: &Table) -> Option<Draft> {
        let sequences = self.sequences.iter();
        let rows: Vec<(SeqId, u32, bool)> = sequences.map(|(&seq, s)| (seq, s.epoch, self.runnable(s))).collect();
        if !rows.iter().any(|&(_, _, runs)| runs) {
            return None;
        }
        let order = match self.state.kept_order(&rows) {
            Some(kept) if self.demand(kept.order()) <= self.state.pool.counts().free => self.state.reuse(kept),
            _ => {
                let facts: Vec<RowFacts<'_>> = self.sequences.values().map(|sequence| self.facts(sequence)).collect();
                let table = rows_table(now_us, &facts);
                self.state.ask(policy, &Question { rows: &rows, table, tenants })
            }
        };
        let mut chosen = self.allocate(&order);
        if chosen.is_empty() {
            self.state.forget_order();
        }
        if self.state.out_of_patience(chosen.is_empty()) {
            chosen = self.allocate(&default_order(&rows));
            self.state.counters.policy_overruled += u64::from(!chosen.is_empty());
        }
        self.state.draft(chosen)
    }

    fn runnable(&self, sequence: &DecodeSequence) -> bool {
        sequence.state == DecodeState::Running && !sequence.ends_in_flight(self.max_context())
    }

    fn facts<'a>(&self, sequence: &'a DecodeSequence) -> RowFacts<'a> {
        let reached = sequence.reached();
        let pages_held = sequence.pages.len() as u32;
        RowFacts {
            entry: &sequence.entry,
            state: if self.runnable(sequence) { RowState::Running } else { RowState::HandingOff },
            computed_tokens: reached,
            cached_tokens: None,
            output_tokens: sequence.outputs.len() as u32,
            pages_held,
            pages_for_next_step: self.missing_pages(sequence),
        }
    }

    /// New pages that the next positions of an order's rows need.
    fn demand(&self, order: &SeqOrder) -> u32 {
        let rows = order.run.iter().filter_map(|(seq, _)| self.sequences.get(seq));
        rows.map(|sequence| self.missing_pages(sequence)).fold(0, u32::saturating_add)
    }

    fn missing_pages(&self, sequence: &DecodeSequence) -> u32 {
        self.state.pages_for(sequence.reached() + 1).saturating_sub(sequence.pages.len() as u32)
    }

    /// One token per row, in order, as long as rows and pages last.
    fn allocate(&mut self, order: &SeqOrder) -> Vec<DraftRow> {
        let cap = self.state.limits.max_sequences.min(self.state.limits.max_step_tokens) as usize;
        let mut chosen: Vec<DraftRow> = Vec::with_capacity(cap.min(order.run.len()));
        let mut promised = 0;
        for &(seq, _) in &order.run {
            if chosen.len() >= cap {
                break;
            }
            // A row before this one may have taken its pages.
            if !self.sequences.contains_key(&seq) {
                continue;
            }
            match self.grow(seq, &order.preempt, &mut promised) {
                Growth::Ready => {}
                Growth::Wait | Growth::Gone => continue,
            }
            if let Some(sequence) = self.sequences.get(&seq) {
                chosen.push(DraftRow { seq, epoch: sequence.epoch, start: sequence.reached(), tokens: 1 });
            }
        }
        // Nor may a row run whose pages a later one took.
        chosen.retain(|row| self.sequences.contains_key(&row.seq));
        chosen
    }

    /// Pages for the sequence's next position. `promised` counts pages that come free and that an earlier row waits for.
    fn grow(&mut self, seq: SeqId, named: &[SeqId], promised: &mut u32) -> Growth {
        // Each turn but the last takes one sequence's pages.
        loop {
            let Some(sequence) = self.sequences.get_mut(&seq) else { return Growth::Gone };
            let held = sequence.pages.len() as u32;
            let missing = millrace_kv::pages_for(sequence.reached() + 1, self.state.pool.page_tokens()).saturating_sub(held);
            if let Ok(pages) = self.state.pool.allocate(missing) {
                sequence.pages.extend(pages);
                return Growth::Ready;
            }
            let coming = self.state.pool.counts().settling.saturating_add(self.ending_pages());
            if promised.saturating_add(missing) <= coming {
                *promised += missing;
                return Growth::Wait;
            }
            if self.counts().running > 1 {
                let Some(victim) = choose(&self.candidates(), named) else { return Growth::Wait };
                self.preempt(victim);
            } else if self.counts().handing_off > 0 || !self.state.nothing_coming() {
                return Growth::Wait;
            } else {
                self.end(seq, DecodeEvent::Finished { seq, reason: FinishReason::Length });
                return Growth::Gone;
            }
        }
    }

    /// Pages of sequences that end with the step in flight.
    fn ending_pages(&self) -> u32 {
        let ending = self.sequences.values().filter(|sequence| sequence.ends_in_flight(self.max_context()));
        ending.map(|sequence| sequence.pages.len() as u32).sum()
    }

    fn candidates(&self) -> Vec<Candidate> {
        // One that ends with the step in flight gives its pages anyway.
        let running = self.sequences.values().filter(|sequence| self.runnable(sequence));
        let max = self.state.limits.max_preemptions;
        running
            .map(|sequence| Candidate {
                seq: sequence.entry.seq,
                priority: sequence.entry.priority,
                arrival_us: sequence.entry.arrival_us,
                protected: sequence.entry.preemptions >= max,
            })
            .collect()
    }

    /// Sends a sequence back with all its outputs. What the step in flight draws for it is drawn again, alike.
    fn preempt(&mut self, seq: SeqId) {
        let Some(sequence) = self.sequences.remove(&seq) else { return };
        self.state.give_back(sequence.pages);
        self.state.counters.preemptions += 1;
        let preemptions = sequence.entry.preemptions.saturating_add(1);
        self.events.push(DecodeEvent::Preempted(Entry { replay: sequence.outputs, preemptions, ..sequence.entry }));
    }
}
