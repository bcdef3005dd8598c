//! Sequences that run in engine processes: where each is, what its client has heard, and what becomes of it when a process ends.
//! Knows no socket and no process; whoever calls sends what comes out.
//!
//! ```text
//!   submitted -> in prefill -> HandedOver, or decode tells of it -> in decode -> end
//!       ^------------- once prefill has let go of it -------------- Preempted
//! ```
//!
//! Each submission of a sequence is a round of its own. The next one waits until prefill has let go of the one before: it has to hear
//! from decode that the pages arrived, and decode may be heard here before that.

use std::collections::BTreeMap;

use millrace_core::{PoolId, SeqId};
use millrace_engine::{Event, EventSink, JobError, Replay};

use crate::control::{Order, SequenceEvent, Submission};

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
    /// As it was sent last.
    submission: Submission,
    place: Place,
    /// Prefill has nothing of this round any more.
    let_go: bool,
    /// It is to be submitted again as soon as prefill has let go of it.
    held: bool,
    told_prefilled: bool,
    /// Output tokens that the client has.
    published: u32,
    attempts: u32,
    events: Box<dyn EventSink>,
}

/// What is to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Errand {
    Submit(PoolId, Box<Submission>),
    Abort(PoolId, SeqId),
}

impl Errand {
    /// To whose process.
    pub(crate) fn pool(&self) -> PoolId {
        match self {
            Self::Submit(pool, _) | Self::Abort(pool, _) => *pool,
        }
    }

    pub(crate) fn seq(&self) -> SeqId {
        match self {
            Self::Submit(_, submission) => submission.seq,
            Self::Abort(_, seq) => *seq,
        }
    }

    pub(crate) fn order(&self) -> Order {
        match self {
            Self::Submit(_, submission) => Order::Submit(submission.clone()),
            Self::Abort(_, seq) => Order::Abort(*seq),
        }
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Jobs {
    live: BTreeMap<SeqId, Live>,
    /// The last life of each engine that is known to be over, and why it is.
    over: BTreeMap<PoolId, (u64, JobError)>,
}

impl Jobs {
    /// Takes a sequence that is being submitted.
    pub(crate) fn insert(&mut self, route: Route, submission: Submission, events: Box<dyn EventSink>) {
        let live = Live {
            route,
            submission,
            place: Place::Prefill,
            let_go: false,
            held: false,
            told_prefilled: false,
            published: 0,
            attempts: 1,
            events,
        };
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
        if from == live.route.decode {
            live.came_to_decode(&event);
        } else if let Some(why) = live.went_to_the_dead(&event, &self.over) {
            live.let_go = true;
            return match live.again() {
                Some(errand) => vec![errand],
                None => self.fail(seq, why),
            };
        } else if let Some(errands) = live.left_prefill(&event) {
            return errands;
        }
        match event {
            SequenceEvent::Prefilled { cached_tokens, queued_us } => live.prefilled(cached_tokens, queued_us),
            SequenceEvent::Token { index, token } => {
                if index == live.published {
                    live.published += 1;
                    live.events.emit(Event::Token(token));
                } else if index > live.published {
                    let why = format!("output token {index} came where {} was due", live.published);
                    return self.fail(seq, JobError::Device(why));
                }
            }
            SequenceEvent::Finished(reason) => self.end(seq, Event::Finished(reason)),
            SequenceEvent::Failed(error) => self.end(seq, Event::Failed(error)),
            SequenceEvent::HandedOver { .. } => {}
            SequenceEvent::Preempted(again) => {
                live.submission.replay = again;
                (live.place, live.held) = (Place::Prefill, !live.let_go);
                return if live.held { Vec::new() } else { vec![live.begin_round()] };
            }
        }
        Vec::new()
    }

    /// A life of an engine process that was ready has ended, with everything that it had. Sequences of which nothing was published
    /// begin anew once it is back: they are returned as errands to be run then. The others end. `life`: its epoch.
    pub(crate) fn lost(&mut self, engine: PoolId, life: u64, why: &JobError) -> Vec<Errand> {
        self.over.insert(engine, (life, why.clone()));
        let (mut errands, mut over) = (Vec::new(), Vec::new());
        for live in self.live.values_mut() {
            if live.route.prefill == engine {
                live.let_go = true;
            }
            let hit = match live.place {
                Place::Prefill => live.route.prefill == engine,
                Place::Decode => live.route.decode == engine,
            };
            if hit {
                match live.again() {
                    Some(errand) => errands.push(errand),
                    None => over.push(live.submission.seq),
                }
            }
        }
        for seq in over {
            errands.extend(self.fail(seq, why.clone()));
        }
        errands
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

    /// What becomes of an errand that waited until its process was up. None, where nobody wants the sequence any more, or decode spoke
    /// of it meanwhile; then prefill has nothing of that round and never will.
    pub(crate) fn kept(&mut self, errand: Errand) -> Option<Errand> {
        let live = self.live.get_mut(&errand.seq())?;
        if live.place == Place::Prefill && !live.held {
            return Some(errand);
        }
        live.let_go = true;
        live.held.then(|| live.begin_round())
    }

    fn end(&mut self, seq: SeqId, event: Event) {
        if let Some(mut live) = self.live.remove(&seq) {
            live.events.emit(event);
        }
    }
}

impl Live {
    /// Prefill gets it, again.
    fn begin_round(&mut self) -> Errand {
        (self.place, self.let_go, self.held) = (Place::Prefill, false, false);
        self.submission.round = self.submission.round.wrapping_add(1);
        Errand::Submit(self.route.prefill, Box::new(self.submission.clone()))
    }

    /// The process that had it is gone: it begins anew, or goes on where it came back from, if it may.
    fn again(&mut self) -> Option<Errand> {
        if !self.held {
            if self.published > 0 || !self.let_go || self.attempts == MAX_ATTEMPTS {
                return None;
            }
            self.attempts += 1;
            self.submission.replay = Replay { tokens: Vec::new(), preemptions: 0 };
        }
        Some(self.begin_round())
    }

    /// Prefill handed this round over to a life of decode that ended before it was heard here; why it ended. Prefill was told of the
    /// end later than it heard of the commit, so it offers the sequence to nobody else.
    fn went_to_the_dead(&self, event: &SequenceEvent, over: &BTreeMap<PoolId, (u64, JobError)>) -> Option<JobError> {
        let SequenceEvent::HandedOver { round, to } = event else { return None };
        let (life, why) = over.get(&self.route.decode)?;
        let here = self.place == Place::Prefill && !self.held && *round == self.submission.round;
        (here && to.epoch <= *life).then(|| why.clone())
    }

    /// Whatever decode tells, it has the sequence, if only to give it back.
    fn came_to_decode(&mut self, event: &SequenceEvent) {
        if !matches!(event, SequenceEvent::HandedOver { .. }) {
            (self.place, self.held) = (Place::Decode, false);
        }
    }

    /// What prefill tells changes where the sequence is. The errands, if that was all that it had to say.
    fn left_prefill(&mut self, event: &SequenceEvent) -> Option<Vec<Errand>> {
        match event {
            // What it said before it handed over may come late.
            SequenceEvent::Prefilled { .. } | SequenceEvent::Token { .. } => return None,
            SequenceEvent::HandedOver { round, .. } if *round != self.submission.round => return Some(Vec::new()),
            SequenceEvent::HandedOver { .. } => {}
            // That it failed here is of an attempt that was given up: decode has it, or had it.
            _ if self.place == Place::Decode || self.held => {}
            _ => return None,
        }
        self.let_go = true;
        if self.held {
            return Some(vec![self.begin_round()]);
        }
        self.place = Place::Decode;
        Some(Vec::new())
    }

    /// Told once, by whichever engine is heard first.
    fn prefilled(&mut self, cached_tokens: u32, queued_us: u64) {
        if !std::mem::replace(&mut self.told_prefilled, true) {
            self.events.emit(Event::Prefilled { cached_tokens, queued_us });
        }
    }
}

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
