//! Which prompts get a chunk in the next step, and pages for it. Runs ahead: a chunk that is in flight counts as done.

use millrace_core::SeqId;
use millrace_kv::PageRef;
use millrace_policy::Table;

use super::{PrefillScheduler, PrefillSequence, PrefillState, QueueKey};
use crate::draft::DraftRow;
use crate::kept::SeqOrder;
use crate::stage::Question;
use crate::validate::default_order;
use crate::view::{RowFacts, RowState, rows_table};
use crate::{Draft, Neighbours, PolicyCall, PrefillEvent};

/// What one pass over the order found.
#[derive(Default)]
struct Pass {
    rows: Vec<DraftRow>,
    /// The first sequence for which there were no pages.
    short: Option<SeqId>,
}

impl PrefillScheduler {
    /// Chooses the next step's chunks, in the policy's order and sizes within the limits, and gives them pages. May be called
    /// while a step is in flight. `None`: nothing can run now.
    ///
    /// Where pages are short, prompts that are under way come before new ones, and the first new one without pages keeps
    /// those after it from overtaking. A policy that lets all work rest for more than eight plans in a row is overruled. An order
    /// that the policy called valid for further steps serves those without asking, as long as no row comes, ends or leaves and
    /// there are pages for all that it runs.
    pub fn plan(&mut self, now_us: u64, policy: &mut PolicyCall<'_>, tenants: &Table) -> Option<Draft> {
        self.look_around();
        let rows: Vec<(SeqId, u32, bool)> = self.view_rows().map(|s| (s.entry.seq, s.epoch, s.runnable())).collect();
        if !rows.iter().any(|&(_, _, runs)| runs) {
            return None;
        }
        let order = match self.state.kept_order(&rows) {
            Some(kept) if self.demand(&kept.order().run) <= self.state.pool.counts().available() => self.state.reuse(kept),
            _ => {
                let table = rows_table(now_us, &self.view_rows().map(|sequence| self.facts(sequence)).collect::<Vec<_>>());
                self.state.ask(policy, &Question { rows: &rows, table, tenants })
            }
        };
        let mut chosen = self.allocate(order);
        if chosen.is_empty() {
            self.state.forget_order();
        }
        if self.state.out_of_patience(chosen.is_empty()) {
            chosen = self.allocate(default_order(&rows));
            self.state.counters.policy_overruled += u64::from(!chosen.is_empty());
        }
        self.state.draft(chosen)
    }

    /// A sequence that is alone here keeps no other of this pool waiting.
    pub(super) fn look_around(&mut self) {
        self.state.kept_waiting = if self.sequences.len() > 1 { Neighbours::Waiting } else { self.neighbours };
    }

    /// Residents, then the head of the queue.
    fn view_rows(&self) -> impl Iterator<Item = &PrefillSequence> {
        let waiting = (self.state.limits.max_view_rows as usize).saturating_sub(self.resident.len()).max(1);
        self.resident.iter().chain(self.waiting.iter().take(waiting)).filter_map(|key| self.sequences.get(&key.seq))
    }

    fn facts<'a>(&self, sequence: &'a PrefillSequence) -> RowFacts<'a> {
        let reached = sequence.reached();
        let state = match sequence.state {
            PrefillState::Waiting if sequence.entry.preemptions > 0 => RowState::Preempted,
            PrefillState::Waiting => RowState::Waiting,
            PrefillState::Prefilling if sequence.remaining() > 0 => RowState::Prefilling,
            PrefillState::Prefilling | PrefillState::HandingOff => RowState::HandingOff,
        };
        let chunk = sequence.remaining().min(self.state.step_tokens());
        let pages_held = sequence.pages.len() as u32;
        RowFacts {
            entry: &sequence.entry,
            state,
            computed_tokens: reached,
            cached_tokens: self.state.pool.caches_prefixes().then_some(sequence.found_tokens),
            output_tokens: sequence.entry.replay.len() as u32,
            pages_held,
            pages_for_next_step: self.state.pages_for(reached + chunk).saturating_sub(pages_held),
        }
    }

    /// Gives chunks and pages in order; where half-done prompts block each other, the youngest gives its pages up.
    fn allocate(&mut self, order: SeqOrder) -> Vec<DraftRow> {
        let mut wanted = order.run;
        if self.demand(&wanted) > self.state.pool.counts().available() {
            wanted.sort_by_key(|(seq, _)| self.sequences.get(seq).is_none_or(|s| s.state == PrefillState::Waiting));
        }
        // Each turn but the last takes one prompt out of prefill.
        loop {
            let pass = self.pass(&wanted);
            match pass.short {
                Some(seq) if pass.rows.is_empty() && self.break_deadlock(seq) => {}
                _ => return pass.rows,
            }
        }
    }

    /// Pages that the order would take if there were enough.
    fn demand(&self, wanted: &[(SeqId, Option<u32>)]) -> u32 {
        let mut budget = self.state.step_tokens();
        let mut pages = 0_u32;
        for (seq, tokens) in wanted {
            let Some(sequence) = self.sequences.get(seq) else { continue };
            let chunk = tokens.unwrap_or(u32::MAX).min(sequence.remaining()).min(budget);
            budget -= chunk;
            pages = pages.saturating_add(self.missing_pages(sequence, chunk));
        }
        pages
    }

    fn missing_pages(&self, sequence: &PrefillSequence, chunk: u32) -> u32 {
        self.state.pages_for(sequence.reached() + chunk).saturating_sub(sequence.pages.len() as u32)
    }

    fn pass(&mut self, wanted: &[(SeqId, Option<u32>)]) -> Pass {
        let mut pass = Pass::default();
        let mut budget = self.state.step_tokens();
        for &(seq, tokens) in wanted {
            if budget == 0 || pass.rows.len() >= self.state.limits.max_sequences as usize {
                break;
            }
            let Some(sequence) = self.sequences.get(&seq).filter(|sequence| sequence.runnable()) else { continue };
            let waits = sequence.state == PrefillState::Waiting;
            if waits && (pass.short.is_some() || self.resident.len() >= self.state.limits.max_resident as usize) {
                continue;
            }
            if waits && sequence.was_reset && !self.fits_with_all(sequence) {
                pass.short.get_or_insert(seq);
                continue;
            }
            match self.give_chunk(seq, tokens.unwrap_or(u32::MAX).min(budget)) {
                Some(row) => {
                    budget -= row.tokens;
                    pass.rows.push(row);
                }
                None => {
                    pass.short.get_or_insert(seq);
                }
            }
        }
        pass
    }

    /// A chunk of at most so many tokens, with its pages; a prompt that waits begins behind what the prefix tree has of it.
    /// `None`: there are no pages for it.
    fn give_chunk(&mut self, seq: SeqId, most_tokens: u32) -> Option<DraftRow> {
        let waits = self.sequences.get(&seq)?.state == PrefillState::Waiting;
        // Pinned, so that making room for the rest takes none of them.
        let found = if waits { self.look_up(seq) } else { Vec::new() };
        let sequence = self.sequences.get(&seq)?;
        let start = sequence.reached() + self.state.pool.page_tokens() * found.len() as u32;
        let tokens = most_tokens.min(sequence.entry.prompt_tokens() - start);
        let held = (sequence.pages.len() + found.len()) as u32;
        let row = DraftRow { seq, epoch: sequence.epoch, start, tokens };
        let tenant = sequence.entry.tenant;
        match self.state.allocate(self.state.pages_for(start + tokens).saturating_sub(held), tenant) {
            Ok(pages) => {
                if waits {
                    self.admit(seq, found);
                }
                self.sequences.get_mut(&seq)?.pages.extend(pages);
                Some(row)
            }
            Err(_) => {
                self.put_back(found);
                None
            }
        }
    }

    /// Whether the whole prompt fits beside the whole prompts of all that are under way.
    fn fits_with_all(&self, sequence: &PrefillSequence) -> bool {
        let under_way = self.sequences.values().filter(|other| other.state == PrefillState::Prefilling);
        let pages = |sequence: &PrefillSequence| u64::from(self.state.pages_for(sequence.entry.prompt_tokens()));
        under_way.map(pages).sum::<u64>() + pages(sequence) <= u64::from(self.state.usable_pages())
    }

    /// From waiting to prefilling, with the pages that were found for it.
    fn admit(&mut self, seq: SeqId, found: Vec<PageRef>) {
        self.begin_behind(seq, found);
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        sequence.state = PrefillState::Prefilling;
        let key = QueueKey::of(&sequence.entry);
        self.waiting.remove(&key);
        self.resident.insert(key);
        if let Some(at) = sequence.entry.deadline_us {
            self.deadlines.remove(&(at, seq));
        }
    }

    /// Nothing could run for want of pages. If none will come free by itself, the youngest half-done prompt is reset, or a
    /// prompt that is alone with the pool and still does not fit is given up. False: waiting helps.
    fn break_deadlock(&mut self, short: SeqId) -> bool {
        if self.handing_off() > 0 || !self.state.nothing_coming() || self.any_can_go_on() {
            return false;
        }
        // Without hand-offs every resident is half done.
        match self.resident.last().map(|key| key.seq) {
            Some(youngest) if youngest != short || self.resident.len() > 1 => self.reset(youngest),
            _ => {
                self.abort(short);
                self.events.push(PrefillEvent::NoRoom { seq: short });
                true
            }
        }
    }

    /// Whether a half-done prompt would find pages if the policy let it run.
    fn any_can_go_on(&self) -> bool {
        let available = self.state.pool.counts().available();
        let under_way = self.sequences.values().filter(|sequence| sequence.state == PrefillState::Prefilling);
        let chunk = |sequence: &PrefillSequence| sequence.remaining().min(self.state.step_tokens());
        under_way.into_iter().any(|sequence| self.missing_pages(sequence, chunk(sequence)) <= available)
    }

    /// Back to waiting; what was computed is lost.
    fn reset(&mut self, seq: SeqId) -> bool {
        let epoch = self.state.next_epoch();
        let Some(sequence) = self.sequences.get_mut(&seq) else { return false };
        sequence.epoch = epoch;
        sequence.state = PrefillState::Waiting;
        sequence.computed = 0;
        sequence.cached = 0;
        sequence.was_reset = true;
        let pages = std::mem::take(&mut sequence.pages);
        let key = QueueKey::of(&sequence.entry);
        self.resident.remove(&key);
        self.waiting.insert(key);
        self.state.give_back(pages);
        self.state.counters.preemptions += 1;
        true
    }
}
