//! Decode: sequences whose prompt is in pages get one token per step until they end or give their pages up. Knows nothing
//! of prefill: prompts arrive as pages to reserve, and a preempted sequence leaves as an entry that says what to replay.
//!
//! ```text
//!   reserve -> reserved -> attach -> running -> Finished
//!                 |                     |
//!               cancel              Preempted(entry): prompt through prefill again, generated tokens replayed here
//!
//!   position   0 ........ prompt-1 | prompt .............. prompt+n-1
//!   token      the prompt          | outputs[0] .......... outputs[n-1]     outputs[0] was drawn by prefill
//! ```
//! A running sequence's next input is the token at position `computed`; the token drawn there is new only if that input
//! was the last output. So replayed tokens go through the same steps and draw nothing.

mod plan;
mod victim;

use std::collections::BTreeMap;

use millrace_core::{FinishReason, SeqId, Stage};
use millrace_kv::{KvError, PageId, PagePool, PageRef, PageTable, TagChange, TransferId};

use crate::stage::{Ran, StageState, stage_methods};
use crate::{
    DecodeEvent, Draft, Entry, NoRoom, Outcome, OutcomeStatus, PlanRow, StageCounters, StageCounts, StageLimits, StepCost,
    StepPlan, TenantLedger,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodeState {
    Reserved,
    Running,
}

#[derive(Debug)]
pub(crate) struct DecodeSequence {
    entry: Entry,
    epoch: u32,
    pub(crate) state: DecodeState,
    pub(crate) pages: PageTable,
    /// Positions whose keys and values are in the pages.
    computed: u32,
    /// All output tokens so far, those to be replayed included; never empty.
    outputs: Vec<u32>,
    in_flight: bool,
    /// Outputs that were billed to the tenant, this stay or before.
    billed: u32,
}

impl DecodeSequence {
    /// Computed positions once the step in flight has ended.
    fn reached(&self) -> u32 {
        self.computed + u32::from(self.in_flight)
    }

    /// The input of a position at or behind the prompt's end, if it is known.
    fn input(&self, position: u32) -> Option<u32> {
        let index = position.checked_sub(self.entry.prompt_tokens())?;
        self.outputs.get(index as usize).copied()
    }

    /// Whether the token that is drawn at `position` is a new output.
    fn draws_at(&self, position: u32) -> bool {
        let drawn = position.saturating_sub(self.entry.prompt_tokens()) as usize + 1;
        drawn == self.outputs.len()
    }

    /// Whether the step in flight draws the last token that the sequence may have, whatever it is.
    fn ends_in_flight(&self, max_context: u32) -> bool {
        let outputs = self.outputs.len() as u32 + 1;
        let full = self.entry.prompt_tokens().saturating_add(outputs) >= max_context;
        self.in_flight && self.draws_at(self.computed) && (outputs >= self.entry.max_output || full)
    }
}

/// State machine of one decode engine.
#[derive(Debug)]
pub struct DecodeScheduler {
    pub(crate) state: StageState,
    pub(crate) sequences: BTreeMap<SeqId, DecodeSequence>,
    events: Vec<DecodeEvent>,
}

impl DecodeScheduler {
    pub fn new(limits: StageLimits, pool: PagePool) -> Self {
        Self { state: StageState::new(Stage::Decode, limits, pool), sequences: BTreeMap::new(), events: Vec::new() }
    }

    /// Pages for a prompt that prefill has finished; the hand-off writes into them, then [`Self::attach`]. Returns exactly
    /// the pages of the `prompt_tokens` positions; pages for replayed tokens and the next one are set aside too, so that a
    /// sequence that comes back does not have to be preempted again at once. Before anything writes into the pages, the
    /// backend must have applied [`Self::take_changes`].
    ///
    /// # Errors
    /// [`NoRoom`]: all but `Pages` and `Sequences` are final.
    pub fn reserve(&mut self, entry: &Entry, prompt_tokens: u32, first_token: u32) -> Result<Vec<PageRef>, NoRoom> {
        let seq = entry.seq;
        if self.sequences.contains_key(&seq) {
            return Err(NoRoom::Duplicate(seq));
        }
        let expected = entry.prompt_tokens();
        if prompt_tokens != expected {
            return Err(NoRoom::Mismatch { seq, prompt_tokens, expected });
        }
        let outputs = if entry.replay.is_empty() { vec![first_token] } else { entry.replay.clone() };
        let wanted = self.pages_to_enter(entry, outputs.len() as u32)?;
        let max = self.state.limits.max_resident;
        if self.sequences.len() >= max as usize {
            return Err(NoRoom::Sequences { max });
        }
        // Alone, a sequence may have everything; kept pages would serve nobody.
        let watermark = if self.sequences.is_empty() { 0 } else { self.state.limits.watermark_pages };
        let free = self.state.pool.counts().free;
        let no_room = NoRoom::Pages { wanted, free, watermark };
        if wanted.saturating_add(watermark) > free {
            return Err(no_room);
        }
        let pages = self.state.pool.allocate(wanted).map_err(|_| no_room)?;
        let prompt_pages = self.state.pages_for(prompt_tokens) as usize;
        let handed = pages.iter().copied().take(prompt_pages).collect();
        let sequence = DecodeSequence {
            epoch: self.state.next_epoch(),
            state: DecodeState::Reserved,
            pages,
            computed: prompt_tokens,
            billed: outputs.len() as u32,
            outputs,
            in_flight: false,
            entry: entry.clone(),
        };
        self.sequences.insert(seq, sequence);
        Ok(handed)
    }

    /// The hand-off is committed: the sequence runs from now on. One that its first token ends is `Finished` at once. False
    /// if nothing is reserved for it.
    pub fn attach(&mut self, seq: SeqId) -> bool {
        let max_context = self.max_context();
        let Some(sequence) = self.reserved(seq) else { return false };
        sequence.state = DecodeState::Running;
        let outputs = sequence.outputs.len() as u32;
        let last = sequence.outputs.last().copied().unwrap_or_default();
        if let Some(reason) = sequence.entry.finish_with(last, outputs, max_context) {
            self.end(seq, DecodeEvent::Finished { seq, reason });
        }
        true
    }

    /// Gives up a hand-off that will not be committed. False if nothing is reserved for it.
    pub fn cancel(&mut self, seq: SeqId) -> bool {
        self.reserved(seq).is_some() && self.abort(seq)
    }

    /// Ends a sequence whose output is complete for a reason that only its reader sees (a stop string). No event follows.
    /// False if it is not here.
    pub fn finish(&mut self, seq: SeqId) -> bool {
        self.abort(seq)
    }

    /// Drops a sequence in any state, without an event. Its pages rest until the last dispatched step has ended and every
    /// transfer that holds them is drained. False if it is not here: aborting twice is harmless.
    pub fn abort(&mut self, seq: SeqId) -> bool {
        self.sequences.remove(&seq).is_some_and(|sequence| {
            self.state.give_back(sequence.pages);
            true
        })
    }

    /// A tag check outside of a step (an import) failed for this sequence: drops it like [`Self::abort`], and puts its pages
    /// under suspicion as a `StalePage` outcome does. False if it is not here.
    pub fn abort_mismatched(&mut self, seq: SeqId) -> bool {
        self.sequences.remove(&seq).is_some_and(|sequence| {
            self.state.give_back_mismatched(sequence.pages);
            true
        })
    }

    /// Events that no `commit` has returned yet; look after each `plan` and `attach`, which may end sequences too.
    pub fn take_events(&mut self) -> Vec<DecodeEvent> {
        std::mem::take(&mut self.events)
    }

    /// Turns a draft into a step: drops rows that went stale since, fills in the tokens, takes the tag changes. `None` if
    /// no row is left or a step is in flight; nothing is lost then.
    pub fn dispatch(&mut self, draft: Draft) -> Option<StepPlan> {
        if self.state.in_flight().is_some() {
            return None;
        }
        let page_tokens = self.state.pool.page_tokens();
        let mut rows = Vec::with_capacity(draft.rows.len());
        for row in &draft.rows {
            let Some(sequence) = self.sequences.get_mut(&row.seq) else { continue };
            let current = sequence.epoch == row.epoch && sequence.computed == row.start;
            let pages = millrace_kv::pages_for(row.start + row.tokens, page_tokens) as usize;
            let (true, Some(token), Some(table)) = (current, sequence.input(row.start), sequence.pages.get(..pages)) else {
                continue;
            };
            let (table, sample) = (table.to_vec(), sequence.draws_at(row.start));
            let drawn = sequence.outputs.len() as u32 + u32::from(sample);
            rows.push(PlanRow {
                seq: row.seq,
                epoch: row.epoch,
                tenant: sequence.entry.tenant,
                start: row.start,
                tokens: vec![token],
                sample,
                table,
                billed_tokens: drawn.saturating_sub(sequence.billed),
            });
            sequence.billed = sequence.billed.max(drawn);
            sequence.in_flight = true;
        }
        self.state.begin_step(rows, &draft)
    }

    /// Takes the step's outcomes and passes its fence. Rows without an outcome are planned again; outcomes of sequences that
    /// are gone are dropped. A step that is not in flight changes nothing.
    pub fn commit(&mut self, step: u64, outcomes: &[Outcome]) -> Vec<DecodeEvent> {
        for Ran { seq, epoch, outcome } in self.state.end_step(step, outcomes) {
            let Some(sequence) = self.sequences.get_mut(&seq).filter(|sequence| sequence.epoch == epoch) else { continue };
            sequence.in_flight = false;
            match outcome.map(|outcome| (outcome.status, outcome.token)) {
                None => {}
                Some((OutcomeStatus::Ok, token)) => self.advance(seq, token),
                Some((OutcomeStatus::StalePage, _)) => {
                    self.abort_mismatched(seq);
                    self.events.push(DecodeEvent::Stale { seq });
                }
                Some((OutcomeStatus::NotFinite, _)) => {
                    self.state.counters.not_finite += 1;
                    self.end(seq, DecodeEvent::NotFinite { seq });
                }
            }
        }
        self.take_events()
    }

    pub fn counts(&self) -> StageCounts {
        let running = self.sequences.values().filter(|sequence| sequence.state == DecodeState::Running).count() as u32;
        StageCounts { handing_off: self.sequences.len() as u32 - running, running, ..StageCounts::default() }
    }

    /// Adds the running sequences to the tenants' counts; reserved ones count where they come from.
    pub fn count_into(&self, ledger: &mut TenantLedger) {
        for sequence in self.sequences.values().filter(|sequence| sequence.state == DecodeState::Running) {
            ledger.count_running(sequence.entry.tenant);
        }
    }

    /// # Errors
    /// The first invariant that is broken, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.state.check_pages(self.sequences.values().flat_map(|sequence| &sequence.pages))?;
        self.sequences.values().try_for_each(|sequence| self.check_sequence(sequence))
    }

    fn check_sequence(&self, sequence: &DecodeSequence) -> Result<(), String> {
        let end = sequence.entry.prompt_tokens() + sequence.outputs.len() as u32;
        let reserved = sequence.state == DecodeState::Reserved;
        let fault = if sequence.input(sequence.computed).is_none() {
            "has no input for its next position"
        } else if sequence.pages.len() < self.state.pages_for(sequence.reached()) as usize {
            "has fewer pages than computed tokens"
        } else if sequence.in_flight && (reserved || self.state.in_flight().is_none()) {
            "waits for a step that is not in flight"
        } else if !reserved && (sequence.outputs.len() as u32 >= sequence.entry.max_output || end >= self.max_context()) {
            "runs past its end"
        } else {
            return Ok(());
        };
        Err(format!("sequence {} {fault}", sequence.entry.seq))
    }

    /// Prompt and output tokens at which a sequence ends; the last output token needs no position in the pool.
    fn max_context(&self) -> u32 {
        self.state.limits.max_context.min(self.state.pool_tokens().saturating_add(1))
    }

    /// Pages with which a sequence of so many outputs can run its next step.
    fn pages_to_enter(&self, entry: &Entry, outputs: u32) -> Result<u32, NoRoom> {
        let usable = self.state.usable_pages();
        let needed = self.state.pages_for(entry.prompt_tokens());
        if needed > usable {
            let max = usable.saturating_mul(self.state.pool.page_tokens());
            return Err(NoRoom::Never { tokens: entry.prompt.len() as u64, max });
        }
        Ok(self.state.pages_for(entry.prompt_tokens().saturating_add(outputs)).min(usable))
    }

    fn reserved(&mut self, seq: SeqId) -> Option<&mut DecodeSequence> {
        self.sequences.get_mut(&seq).filter(|sequence| sequence.state == DecodeState::Reserved)
    }

    /// A position has been computed; if its input was the last output, `token` is the next.
    fn advance(&mut self, seq: SeqId, token: u32) {
        let max_context = self.max_context();
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        let draws = sequence.draws_at(sequence.computed);
        sequence.computed += 1;
        if !draws {
            return;
        }
        sequence.outputs.push(token);
        let reason = sequence.entry.finish_with(token, sequence.outputs.len() as u32, max_context);
        if reason != Some(FinishReason::Stop) {
            self.events.push(DecodeEvent::Token { seq, token });
        }
        if let Some(reason) = reason {
            self.end(seq, DecodeEvent::Finished { seq, reason });
        }
    }

    fn end(&mut self, seq: SeqId, event: DecodeEvent) {
        self.abort(seq);
        self.events.push(event);
    }
}

stage_methods!(DecodeScheduler);
