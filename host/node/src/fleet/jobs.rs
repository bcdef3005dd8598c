//! Sequences that run in engine processes: where each is, what its client has heard, and what becomes of it when a process ends.
//! Knows no socket and no process; whoever calls sends what comes out.
//!
//! ```text
//!   submitted -> in prefill -> HandedOver, or decode tells of it -> in decode -> end
//!       ^------------------------------ Preempted ---------------------|
//! ```

use std::collections::BTreeMap;

use millrace_core::{PoolId, SeqId};
use millrace_engine::{Event, EventSink, JobError, Replay};

use crate::control::{SequenceEvent, Submission};

/// How often a sequence begins anew of which nothing was published.
const MAX_ATTEMPTS: u32 = 3;

/// The two engines of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) lane: usize,
    pub(crate) prefill: PoolId,
    pub(crate) decode: PoolId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Prefill,
    Decode,
}

struct Live {
    route: Route,
    submission: Submission,
    place: Place,
    told_prefilled: bool,
    /// Output tokens that the client has.
    published: u32,
    attempts: u32,
    /// Prefill said so of this attempt.
    handed_over: bool,
    /// Earlier attempts that it has to say so of: decode was heard first, and the sequence came back meanwhile.
    owed: u32,
    events: Box<dyn EventSink>,
}

/// What is to be sent.
#[derive(Debug, PartialEq)]
pub(crate) enum Errand {
    Submit(PoolId, Box<Submission>),
    Abort(PoolId, SeqId),
}

/// All of them.
#[derive(Default)]
pub(crate) struct Jobs {
    live: BTreeMap<SeqId, Live>,
}

impl Jobs {
    /// Takes a sequence that is being submitted.
    pub(crate) fn insert(&mut self, route: Route, submission: Submission, events: Box<dyn EventSink>) {
        let (place, published) = (Place::Prefill, 0);
        let live =
            Live { route, place, told_prefilled: false, published, attempts: 1, handed_over: false, owed: 0, events, submission };
        self.live.insert(live.submission.seq, live);
    }

    /// Sequences of a lane without a token.
    pub(crate) fn waiting(&self, lane: usize) -> usize {
        self.live.values().filter(|live| live.route.lane == lane && live.published == 0).count()
    }

    /// Forgets a sequence; tells both engines.
    pub(crate) fn abort(&mut self, seq: SeqId) -> Vec<Errand> {
        let Some(live) = self.live.remove(&seq) else { return Vec::new() };
        vec![Errand::Abort(live.route.prefill, seq), Errand::Abort(live.route.decode, seq)]
    }

    /// Takes what an engine tells of a sequence.
    pub(crate) fn hear(&mut self, from: PoolId, seq: SeqId, event: SequenceEvent) -> Vec<Errand> {
        let Some(live) = self.live.get_mut(&seq) else {
            // Nobody wants it: it was aborted while it was between the two.
            let over = matches!(event, SequenceEvent::Finished(_) | SequenceEvent::Failed(_));
            return if over { Vec::new() } else { vec![Errand::Abort(from, seq)] };
        };
        let mut errands = Vec::new();
        if from == live.route.decode && live.place == Place::Prefill {
            live.place = Place::Decode;
        }
        if from == live.route.prefill && live.place == Place::Decode {
            // What it said before it handed over may come late; that it failed is of an attempt that was given up.
            if !matches!(event, SequenceEvent::Prefilled { .. } | SequenceEvent::Token { .. } | SequenceEvent::HandedOver) {
                return errands;
            }
        }
        match event {
            SequenceEvent::Prefilled { cached_tokens, queued_us } => live.prefilled(cached_tokens, queued_us),
            SequenceEvent::Token { index, token } => {
                if index == live.published {
                    live.published += 1;
                    live.events.emit(Event::Token(token));
                } else if index > live.published {
                    let why = format!("output token {index} came where {} was due", live.published);
                    errands = self.fail(seq, JobError::Device(why));
                }
            }
            SequenceEvent::Finished(reason) => self.end(seq, Event::Finished(reason)),
            SequenceEvent::Failed(error) => self.end(seq, Event::Failed(error)),
            SequenceEvent::HandedOver => live.handed_over(),
            SequenceEvent::Preempted(again) => {
                live.back_to_prefill();
                live.submission.replay = again;
                errands.push(Errand::Submit(live.route.prefill, Box::new(live.submission.clone())));
            }
        }
        errands
    }

    /// An engine process has ended, with everything that it had. Sequences of which nothing was published begin anew once it is
    /// back: they are returned as errands to be run then. The others end.
    pub(crate) fn lost(&mut self, engine: PoolId, why: &JobError) -> Vec<Errand> {
        let mut again = Vec::new();
        self.live.values_mut().filter(|live| live.route.prefill == engine).for_each(Live::prefill_is_gone);
        let hit = |live: &&mut Live| match live.place {
            Place::Prefill => live.route.prefill == engine,
            Place::Decode => live.route.decode == engine,
        };
        let mut over = Vec::new();
        for live in self.live.values_mut().filter(hit) {
            if live.published == 0 && live.attempts < MAX_ATTEMPTS {
                live.attempts += 1;
                live.begin_anew();
                live.submission.replay = Replay { tokens: Vec::new(), preemptions: 0 };
                again.push(Errand::Submit(live.route.prefill, Box::new(live.submission.clone())));
            } else {
                over.push(live.submission.seq);
            }
        }
        for seq in over {
            again.extend(self.fail(seq, why.clone()));
        }
        again
    }

    /// Ends everything.
    pub(crate) fn fail_all(&mut self, why: &JobError) {
        let all: Vec<SeqId> = self.live.keys().copied().collect();
        all.into_iter().for_each(|seq| self.end(seq, Event::Failed(why.clone())));
    }

    /// Ends a sequence with an error, in the engines as well.
    pub(crate) fn fail(&mut self, seq: SeqId, why: JobError) -> Vec<Errand> {
        let Some(live) = self.live.get(&seq) else { return Vec::new() };
        let errands = vec![Errand::Abort(live.route.prefill, seq), Errand::Abort(live.route.decode, seq)];
        self.end(seq, Event::Failed(why));
        errands
    }

    /// Whether a sequence that is to begin anew is still wanted.
    pub(crate) fn wants(&self, seq: SeqId) -> bool {
        self.live.get(&seq).is_some_and(|live| live.place == Place::Prefill)
    }

    fn end(&mut self, seq: SeqId, event: Event) {
        if let Some(mut live) = self.live.remove(&seq) {
            live.events.emit(event);
        }
    }
}

impl Live {
    /// Prefill has handed a sequence over: this attempt of it, unless an earlier one is still to be told of.
    fn handed_over(&mut self) {
        if self.owed > 0 {
            self.owed -= 1;
        } else {
            (self.place, self.handed_over) = (Place::Decode, true);
        }
    }

    /// Decode sends it back.
    fn back_to_prefill(&mut self) {
        self.owed += u32::from(!std::mem::take(&mut self.handed_over));
        self.place = Place::Prefill;
    }

    /// What prefill had to tell is never told.
    fn prefill_is_gone(&mut self) {
        (self.handed_over, self.owed) = (self.place == Place::Decode, 0);
    }

    /// The process that had it is gone.
    fn begin_anew(&mut self) {
        (self.place, self.handed_over, self.owed) = (Place::Prefill, false, 0);
    }

    /// Told once, by whichever engine is heard first.
    fn prefilled(&mut self, cached_tokens: u32, queued_us: u64) {
        if !std::mem::replace(&mut self.told_prefilled, true) {
            self.events.emit(Event::Prefilled { cached_tokens, queued_us });
        }
    }
}

#[cfg(test)]
mod tests;
