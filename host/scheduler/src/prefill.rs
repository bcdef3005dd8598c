//! Prefill: prompts go through in chunks, several to a step, until all of a prompt is in pages. Knows nothing of decode:
//! a finished prompt's pages wait here until somebody says that they are copied.
//!
//! ```text
//!   submit -> waiting -> prefilling -> handing off -> release_handed_off
//!                ^            |
//!                +-- reset ---+   only if several half-done prompts together exceed the pool
//! ```
//! A prompt with a scope begins behind the whole pages that the prefix tree has of it, and its own enter the tree as they are
//! computed; `prefix` has the rules.

mod plan;
mod prefix;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use millrace_core::{FinishReason, SeqId, Stage};
use millrace_kv::{KvError, PageId, PagePool, PageRef, PageTable, TagChange, TransferId};

use crate::stage::{Ran, StageState, stage_methods};
use crate::{
    Draft, Entry, Neighbours, Outcome, OutcomeStatus, PlanRow, PrefillEvent, StageCounters, StageCounts, StageLimits, StepCost,
    StepPlan, SubmitError, TenantLedger,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrefillState {
    Waiting,
    Prefilling,
    HandingOff,
}

#[derive(Debug)]
pub(crate) struct PrefillSequence {
    entry: Entry,
    epoch: u32,
    pub(crate) state: PrefillState,
    pub(crate) pages: PageTable,
    /// Prompt positions whose keys and values are in the pages.
    computed: u32,
    /// Tokens of the chunk that the step in flight computes.
    in_flight: u32,
    /// Prompt positions that were billed to the tenant.
    billed: u32,
    /// Lost its pages to other prompts once; admitted again only where all of it fits.
    was_reset: bool,
    /// Of its pages, the first ones: those that the prefix tree has.
    cached: usize,
    /// Prompt tokens that the tree had when it got its first pages.
    found_tokens: u32,
}

/// The host's order: replayed entries first (they hold up a running answer), then by priority, then by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct QueueKey {
    fresh: bool,
    priority: Reverse<i32>,
    arrival_us: u64,
    seq: SeqId,
}

impl QueueKey {
    fn of(entry: &Entry) -> Self {
        let fresh = entry.preemptions == 0;
        Self { fresh, priority: Reverse(entry.priority), arrival_us: entry.arrival_us, seq: entry.seq }
    }
}

impl PrefillSequence {
    /// Computed positions once the step in flight has ended.
    fn reached(&self) -> u32 {
        self.computed + self.in_flight
    }

    fn remaining(&self) -> u32 {
        self.entry.prompt_tokens().saturating_sub(self.reached())
    }

    fn runnable(&self) -> bool {
        self.state != PrefillState::HandingOff && self.remaining() > 0
    }
}

/// State machine of one prefill engine.
#[derive(Debug)]
pub struct PrefillScheduler {
    pub(crate) state: StageState,
    pub(crate) sequences: BTreeMap<SeqId, PrefillSequence>,
    waiting: BTreeSet<QueueKey>,
    /// Those that hold pages or were given a place among them: prefilling and handing off.
    resident: BTreeSet<QueueKey>,
    /// Of those that wait for their first chunk ever.
    deadlines: BTreeSet<(u64, SeqId)>,
    events: Vec<PrefillEvent>,
    neighbours: Neighbours,
}

impl PrefillScheduler {
    pub fn new(limits: StageLimits, pool: PagePool) -> Self {
        Self {
            state: StageState::new(Stage::Prefill, limits, pool),
            sequences: BTreeMap::new(),
            waiting: BTreeSet::new(),
            resident: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            events: Vec::new(),
            neighbours: Neighbours::default(),
        }
    }

    /// Whether a step of this pool keeps work of other pools waiting; to be said before each `plan` and `dispatch`. A step that
    /// keeps nobody waiting, in this pool or another, is bounded in tokens alone.
    pub fn set_neighbours(&mut self, neighbours: Neighbours) {
        self.neighbours = neighbours;
    }

    /// Queues a prompt. A preempted entry is never refused for a full queue: it was admitted before, and takes no other's place.
    ///
    /// # Errors
    /// The queue is full, or the prompt is empty, known already, or longer than this lane can ever take.
    pub fn submit(&mut self, entry: Entry) -> Result<(), SubmitError> {
        if entry.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt(entry.seq));
        }
        // One position is left for the first output token, which needs no page here.
        let max = self.state.limits.max_context.saturating_sub(1).min(self.state.pool_tokens());
        if entry.prompt_tokens() > max {
            return Err(SubmitError::TooLong { tokens: entry.prompt.len() as u64, max });
        }
        if self.sequences.contains_key(&entry.seq) {
            return Err(SubmitError::Duplicate(entry.seq));
        }
        let max = self.state.limits.max_waiting;
        // Whoever counts at the door counts those that wait for their first step: it must not let in what is refused here.
        if entry.preemptions == 0 && self.waiting.len() >= max as usize && self.never_ran() >= max as usize {
            return Err(SubmitError::QueueFull { max });
        }
        self.waiting.insert(QueueKey::of(&entry));
        if let (0, Some(at)) = (entry.preemptions, entry.deadline_us) {
            self.deadlines.insert((at, entry.seq));
        }
        let epoch = self.state.next_epoch();
        let sequence = PrefillSequence {
            epoch,
            state: PrefillState::Waiting,
            pages: PageTable::new(),
            computed: 0,
            in_flight: 0,
            billed: 0,
            was_reset: false,
            cached: 0,
            found_tokens: 0,
            entry,
        };
        self.sequences.insert(sequence.entry.seq, sequence);
        Ok(())
    }

    /// Drops a sequence in any state, without an event. Its pages rest until the last dispatched step has ended, but for those
    /// that others pin or the prefix tree keeps. False if it is not here (it ended, or never was): aborting twice is harmless.
    pub fn abort(&mut self, seq: SeqId) -> bool {
        self.remove(seq).is_some_and(|sequence| {
            self.state.give_back(sequence.pages);
            true
        })
    }

    /// A tag check outside of a step (an export) failed for this sequence: drops it like [`Self::abort`], and puts its pages
    /// under suspicion as a `StalePage` outcome does. False if it is not here.
    pub fn abort_mismatched(&mut self, seq: SeqId) -> bool {
        self.remove(seq).is_some_and(|sequence| {
            self.state.give_back_mismatched(sequence.pages);
            true
        })
    }

    /// Frees the pages of a sequence whose hand-off was acknowledged or given up. False if none is being handed off.
    pub fn release_handed_off(&mut self, seq: SeqId) -> bool {
        let handing_off = self.sequences.get(&seq).is_some_and(|sequence| sequence.state == PrefillState::HandingOff);
        handing_off && self.abort(seq)
    }

    /// Drops the sequences that still wait for their first step after their deadline, one `Expired` each. Replayed entries
    /// stay: they were served in time.
    pub fn expire(&mut self, now_us: u64) -> Vec<PrefillEvent> {
        let expired: Vec<SeqId> = self.deadlines.range(..(now_us, SeqId(0))).map(|&(_, seq)| seq).collect();
        for &seq in &expired {
            self.remove(seq);
        }
        expired.into_iter().map(|seq| PrefillEvent::Expired { seq }).collect()
    }

    /// Events that no `commit` has returned yet; look after each `plan`, which may end sequences too.
    pub fn take_events(&mut self) -> Vec<PrefillEvent> {
        std::mem::take(&mut self.events)
    }

    /// Turns a draft into a step: drops rows that went stale since, cuts it to what a step may have by now, fills in the tokens,
    /// takes the tag changes. `None` if no row is left or a step is in flight; nothing is lost then.
    pub fn dispatch(&mut self, mut draft: Draft) -> Option<StepPlan> {
        if self.state.in_flight().is_some() {
            return None;
        }
        self.look_around();
        draft.cut(self.state.step_tokens());
        let page_tokens = self.state.pool.page_tokens();
        let mut rows = Vec::with_capacity(draft.rows.len());
        for row in &draft.rows {
            let Some(sequence) = self.sequences.get_mut(&row.seq) else { continue };
            let current = sequence.epoch == row.epoch && sequence.computed == row.start;
            let end = row.start + row.tokens;
            let pages = millrace_kv::pages_for(end, page_tokens) as usize;
            let tokens = sequence.entry.prompt.get(row.start as usize..end as usize);
            let (true, Some(tokens), Some(table)) = (current, tokens, sequence.pages.get(..pages)) else { continue };
            let (tokens, table) = (tokens.to_vec(), table.to_vec());
            // What a replayed entry would draw here is known already.
            let last = end == sequence.entry.prompt_tokens();
            let sample = last && sequence.entry.replay.is_empty();
            rows.push(PlanRow {
                seq: row.seq,
                epoch: row.epoch,
                tenant: sequence.entry.tenant,
                start: row.start,
                tokens,
                sample,
                table,
                billed_tokens: sequence.bill(end, last),
            });
            sequence.in_flight = row.tokens;
        }
        self.state.begin_step(rows, &draft)
    }

    /// Takes the step's outcomes and passes its fence. Rows without an outcome are planned again; outcomes of sequences that
    /// are gone are dropped. A step that is not in flight changes nothing.
    pub fn commit(&mut self, step: u64, outcomes: &[Outcome]) -> Vec<PrefillEvent> {
        for Ran { seq, epoch, outcome } in self.state.end_step(step, outcomes) {
            let Some(sequence) = self.sequences.get_mut(&seq).filter(|sequence| sequence.epoch == epoch) else { continue };
            let chunk = std::mem::take(&mut sequence.in_flight);
            match outcome.map(|outcome| (outcome.status, outcome.token)) {
                None => {}
                Some((OutcomeStatus::Ok, token)) => self.advance(seq, chunk, token),
                Some((OutcomeStatus::StalePage, _)) => {
                    self.abort_mismatched(seq);
                    self.events.push(PrefillEvent::Stale { seq });
                }
                Some((OutcomeStatus::NotFinite, _)) => {
                    self.state.counters.not_finite += 1;
                    self.forget(seq);
                    self.abort(seq);
                    self.events.push(PrefillEvent::NotFinite { seq });
                }
            }
        }
        self.take_events()
    }

    pub fn counts(&self) -> StageCounts {
        let resident = self.resident.len() as u32;
        let handing_off = self.handing_off() as u32;
        StageCounts { waiting: self.waiting.len() as u32, prefilling: resident - handing_off, handing_off, running: 0 }
    }

    /// Adds this stage's sequences to the tenants' running and waiting counts.
    pub fn count_into(&self, ledger: &mut TenantLedger) {
        for sequence in self.sequences.values() {
            match sequence.state {
                PrefillState::Waiting => ledger.count_waiting(sequence.entry.tenant),
                PrefillState::Prefilling | PrefillState::HandingOff => ledger.count_running(sequence.entry.tenant),
            }
        }
    }

    /// # Errors
    /// The first invariant that is broken, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.state.check_pages(self.sequences.values().flat_map(|sequence| &sequence.pages))?;
        if self.sequences.len() != self.waiting.len() + self.resident.len() {
            return Err("a sequence is in no queue, or in two".into());
        }
        self.sequences.values().try_for_each(|sequence| self.check_sequence(sequence))
    }

    fn check_sequence(&self, sequence: &PrefillSequence) -> Result<(), String> {
        let key = QueueKey::of(&sequence.entry);
        let waits = sequence.state == PrefillState::Waiting;
        let pages = sequence.pages.len();
        let fault = if self.waiting.contains(&key) != waits || self.resident.contains(&key) == waits {
            "is in the wrong queue"
        } else if waits && (pages > 0 || sequence.reached() > 0) {
            "waits but holds pages or progress"
        } else if sequence.cached > (sequence.computed / self.state.pool.page_tokens()) as usize {
            "has more pages in the prefix tree than it has computed"
        } else if pages < self.state.pages_for(sequence.reached()) as usize {
            "has fewer pages than computed tokens"
        } else if sequence.reached() > sequence.entry.prompt_tokens() {
            "computed past its prompt"
        } else if (sequence.state == PrefillState::HandingOff) != (sequence.computed == sequence.entry.prompt_tokens()) {
            "hands off an unfinished prompt, or holds on to a finished one"
        } else if sequence.in_flight > 0 && self.state.in_flight().is_none() {
            "waits for a step that is not in flight"
        } else if self.deadlines.iter().any(|&(_, seq)| seq == sequence.entry.seq) && (!waits || sequence.was_reset) {
            "can expire although it was served"
        } else {
            return Ok(());
        };
        Err(format!("sequence {} {fault}", sequence.entry.seq))
    }

    /// A chunk has been computed; the last one drew the first token.
    fn advance(&mut self, seq: SeqId, chunk: u32, token: u32) {
        let max_context = self.state.limits.max_context;
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        sequence.computed += chunk;
        self.enter_tree(seq);
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        if sequence.computed < sequence.entry.prompt_tokens() {
            return;
        }
        sequence.state = PrefillState::HandingOff;
        let fresh = sequence.entry.replay.is_empty();
        let finished: Option<FinishReason> = fresh.then(|| sequence.entry.finish_with(token, 1, max_context)).flatten();
        self.events.push(PrefillEvent::Prefilled {
            entry: sequence.entry.clone(),
            first_token: token,
            finished,
            pages: sequence.pages.clone(),
            tokens: sequence.computed,
            cached_tokens: sequence.found_tokens,
        });
    }

    /// Of those that wait: those that had no pages yet. The others were admitted before, and are as many as have places at most.
    fn never_ran(&self) -> usize {
        let ran = |key: &&QueueKey| !key.fresh || self.sequences.get(&key.seq).is_some_and(|sequence| sequence.was_reset);
        self.waiting.len() - self.waiting.iter().filter(ran).count()
    }

    fn handing_off(&self) -> usize {
        let state = |key: &&QueueKey| self.sequences.get(&key.seq).map(|sequence| sequence.state);
        self.resident.iter().filter(|key| state(key) == Some(PrefillState::HandingOff)).count()
    }

    fn remove(&mut self, seq: SeqId) -> Option<PrefillSequence> {
        let sequence = self.sequences.remove(&seq)?;
        if let Some(at) = sequence.entry.deadline_us {
            self.deadlines.remove(&(at, seq));
        }
        let key = QueueKey::of(&sequence.entry);
        self.waiting.remove(&key);
        self.resident.remove(&key);
        Some(sequence)
    }
}

impl PrefillSequence {
    /// Tokens up to `end` that were not billed yet, and the first output token with the last chunk. What is computed again
    /// because of the host's own shortage is free.
    fn bill(&mut self, end: u32, last: bool) -> u32 {
        if self.entry.preemptions > 0 || end <= self.billed {
            return 0;
        }
        let tokens = end - self.billed + u32::from(last);
        self.billed = end;
        tokens
    }
}

stage_methods!(PrefillScheduler);
