//! What must hold in every world: tokens, ends and pages. Each check says in words what it saw.

use millrace_core::{Clock, FinishReason, PoolId, SeqId};
use millrace_engine::{Event, JobError, SubmitError};
use millrace_kv::PageId;

use super::World;
use super::client::Client;
use crate::FaultKind;
use crate::lab::{LANES, POOLS};
use crate::trace::Note;

impl World<'_> {
    /// Takes what the engine told its clients.
    pub(super) fn hear(&mut self) {
        let events = std::mem::take(&mut *super::lock(&self.mailbox));
        for (seq, event) in events {
            if self.violation.is_some() {
                return;
            }
            self.hear_event(seq, event);
        }
    }

    fn hear_event(&mut self, seq: SeqId, event: Event) {
        let Some(client) = self.clients.get_mut(&seq) else { return };
        match event {
            Event::Token(token) => self.trace.note(Note::Token { seq: seq.0, token }),
            ref other => self.trace.note(Note::Event { seq: seq.0, what: &format!("{other:?}") }),
        }
        if let Some(end) = client.end {
            return self.violate(format!("sequence {seq} was told {event:?} behind its end ({end})"));
        }
        match event {
            Event::Prefilled { cached_tokens, .. } => {
                self.tally.prefix_hits += u64::from(cached_tokens > 0);
                if cached_tokens as usize >= client.request.prompt.len() || cached_tokens > 0 && client.request.scope.is_none() {
                    self.violate(format!("sequence {seq} has {cached_tokens} cached tokens, which it cannot have"));
                }
            }
            Event::Token(token) => {
                client.tokens.push(token);
                self.judge_token(seq);
            }
            Event::Finished(reason) => self.judge_finish(seq, reason),
            Event::Failed(error) => self.judge_failure(seq, &error),
        }
    }

    /// Prompt and output tokens at which a sequence ends.
    fn max_context(&self) -> u32 {
        self.shape.limits.max_context.min(self.shape.pages[1] * self.shape.page_tokens + 1)
    }

    fn judge_token(&mut self, seq: SeqId) {
        self.tally.published_tokens += 1;
        let max_context = self.max_context();
        let Some(client) = self.clients.get(&seq) else { return };
        let (right, _) = client.request.answer(max_context);
        let at = client.tokens.len() - 1;
        let (got, wanted) = (client.tokens[at], right.get(at).copied());
        if wanted != Some(got) {
            self.tally.wrong_tokens += 1;
            let foreign = if got == crate::device::entry::POISON { " (made of what is not its own)" } else { "" };
            self.violate(format!("sequence {seq} published token {got}{foreign} as its number {at}; alone it has {wanted:?}"));
        }
    }

    fn judge_finish(&mut self, seq: SeqId, reason: FinishReason) {
        let max_context = self.max_context();
        let Some(client) = self.clients.get(&seq) else { return };
        let (right, why) = client.request.answer(max_context);
        let whole = client.tokens == right && reason == why;
        // Only pages of its decode pool that are under suspicion may cut an answer short: now, since this is told at once.
        let cut = reason == FinishReason::Length && self.is_suspected(PoolId(LANES[client.request.lane as usize][1]));
        if !whole && !cut {
            let (got, all) = (client.tokens.len(), right.len());
            return self
                .violate(format!("sequence {seq} ended ({reason:?}) with {got} tokens; alone it ends ({why:?}) with {all}"));
        }
        self.end(seq, if reason == FinishReason::Stop { "stop" } else { "length" });
    }

    fn judge_failure(&mut self, seq: SeqId, error: &JobError) {
        let Some(client) = self.clients.get(&seq) else { return };
        let (end, deserved) = match error {
            JobError::PageMismatch => ("page_mismatch", client.lost_a_page),
            JobError::NotFinite => ("not_finite", client.read_not_finite),
            JobError::DeadlinePassed => {
                ("deadline", client.deadline_us.is_some_and(|at| at <= self.clock.now_us()) && client.tokens.is_empty())
            }
            JobError::Device(_) => ("device", self.lane_has_failed(client) || self.is_too_long(client)),
            JobError::HandOff(_) => {
                ("no_room", self.was_suspected(client) || self.never_fits(client) || self.lane_has_failed(client))
            }
            JobError::ShuttingDown => ("shutting_down", false),
        };
        if !deserved {
            return self.violate(format!("sequence {seq} failed without a reason of its own: {error}"));
        }
        self.end(seq, end);
    }

    fn lane_has_failed(&self, client: &Client) -> bool {
        LANES[client.request.lane as usize].iter().any(|&pool| self.device.has_failed(pool as usize))
    }

    /// Whether pages of its pools were under suspicion while it was there.
    fn was_suspected(&self, client: &Client) -> bool {
        let pools = LANES[client.request.lane as usize].map(PoolId);
        pools.iter().any(|pool| self.suspected.get(pool).is_some_and(|&turn| turn >= client.since))
    }

    fn is_too_long(&self, client: &Client) -> bool {
        client.request.prompt.len() as u32 >= self.shape.limits.max_context
    }

    fn never_fits(&self, client: &Client) -> bool {
        let pages = (client.request.prompt.len() as u32).div_ceil(self.shape.page_tokens);
        self.shape.pages.iter().any(|&has| pages > has)
    }

    /// How a request ends that is not taken.
    pub(super) fn refused(&mut self, client: &Client, error: &SubmitError) -> &'static str {
        match error {
            SubmitError::QueueFull { .. } => {
                self.count(FaultKind::Exhausted, "queue_full");
                "queue_full"
            }
            SubmitError::TooLong { .. } => {
                let most = self.shape.pages.iter().min().copied().unwrap_or(0) * self.shape.page_tokens;
                if (client.request.prompt.len() as u32) < most {
                    self.violate(format!("a prompt of {} tokens was refused as too long", client.request.prompt.len()));
                }
                "too_long"
            }
            SubmitError::ShuttingDown | SubmitError::UnknownLane(_) | SubmitError::EmptyPrompt => {
                self.violate(format!("a request was refused without a reason: {error}"));
                "refused"
            }
        }
    }

    pub(super) fn end(&mut self, seq: SeqId, end: &'static str) {
        if let Some(client) = self.clients.get_mut(&seq) {
            client.end = Some(end);
            self.live.remove(&seq);
            *self.tally.ends.entry(end).or_default() += 1;
        }
    }

    /// Between two turns.
    pub(super) fn check(&mut self) {
        if let Err(why) = self.engine.check_invariants() {
            self.violate(why);
        }
        for index in 0..POOLS.len() {
            let Some(pages) = self.engine.pages(PoolId(index as u32)) else { continue };
            // A queue that failed runs nothing any more, whatever it was given.
            if self.device.has_failed(index) {
                continue;
            }
            let reused = self.device.named(index).into_iter().find(|named| {
                let taken = self.taken.contains(&(index as u32, named.page, named.tag));
                !taken && !pages.is_nobody_elses(PageId(named.page), named.tag)
            });
            if let Some(named) = reused {
                self.violate(format!("page {} of pool {index} was handed out while what runs names it", named.page));
            }
        }
    }

    /// What the devices saw that must not be.
    pub(super) fn see_device(&mut self) {
        if let Some(what) = self.device.take_violations().into_iter().next() {
            self.violate(what);
        }
    }
}
