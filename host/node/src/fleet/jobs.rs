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
//!
//! A deadline is one moment on the node's clock, whatever the round: each says what is left of it, and none begins once it is over.

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
    /// On the node's clock.
    deadline_us: Option<u64>,
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

/// A round that begins, or why it does not: then the sequence ends.
type Round = Result<Errand, JobError>;

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

    /// The same with so much left of its deadline.
    fn within(self, within_us: Option<u64>) -> Self {
        match self {
            Self::Submit(pool, submission) => Self::Submit(pool, Box::new(Submission { within_us, ..*submission })),
            abort @ Self::Abort(..) => abort,
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
    /// As it was told last.
    now_us: u64,
}

impl Jobs {
    /// Says how late it is on the node's clock; to be said before each question.
    pub(crate) fn it_is(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    /// Takes a sequence that is being submitted. `deadline_us`: on the node's clock.
    pub(crate) fn insert(&mut self, route: Route, submission: Submission, deadline_us: Option<u64>, events: Box<dyn EventSink>) {
        let live = Live {
            route,
            submission,
            deadline_us,
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
        let now_us = self.now_us;
        let Some(live) = self.live.get_mut(&seq) else {
            // Nobody wants it: it was aborted while it was between the two.
            let over = matches!(event, SequenceEvent::Finished(_) | SequenceEvent::Failed(_));
            return if over { Vec::new() } else { vec![Errand::Abort(from, seq)] };
        };
        if from == live.route.decode {
            live.came_to_decode(&event);
        } else if let Some(why) = live.went_to_the_dead(&event, &self.over) {
            live.let_go = true;
            let round = live.again(now_us, &why);
            return self.begun(seq, round);
        } else if let Some(round) = live.left_prefill(&event, now_us) {
            return round.into_iter().flat_map(|round| self.begun(seq, round)).collect();
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
                if !live.held {
                    let round = live.begin_round(now_us);
                    return self.begun(seq, round);
                }
            }
        }
        Vec::new()
    }

    /// A life of an engine process that was ready has ended, with everything that it had. Sequences of which nothing was published
    /// begin anew once it is back: they are returned as errands to be run then. The others end. `life`: its epoch.
    pub(crate) fn lost(&mut self, engine: PoolId, life: u64, why: &JobError) -> Vec<Errand> {
        self.over.insert(engine, (life, why.clone()));
        let (now_us, mut rounds) = (self.now_us, Vec::new());
        for live in self.live.values_mut() {
            if live.route.prefill == engine {
                live.let_go = true;
            }
            let hit = match live.place {
                Place::Prefill => live.route.prefill == engine,
                Place::Decode => live.route.decode == engine,
            };
            if hit {
                rounds.push((live.submission.seq, live.again(now_us, why)));
            }
        }
        rounds.into_iter().flat_map(|(seq, round)| self.begun(seq, round)).collect()
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

    /// What becomes of an errand that waited until its process was up. Nothing, where nobody wants the sequence any more, or decode spoke
    /// of it meanwhile; then prefill has nothing of that round and never will.
    pub(crate) fn kept(&mut self, errand: Errand) -> Vec<Errand> {
        let (seq, now_us) = (errand.seq(), self.now_us);
        let Some(live) = self.live.get_mut(&seq) else { return Vec::new() };
        if live.place == Place::Prefill && !live.held {
            let round = live.within(now_us).map(|within_us| errand.within(within_us));
            return self.begun(seq, round);
        }
        live.let_go = true;
        let round = live.held.then(|| live.begin_round(now_us));
        round.into_iter().flat_map(|round| self.begun(seq, round)).collect()
    }

    /// What is to be sent of a round.
    fn begun(&mut self, seq: SeqId, round: Round) -> Vec<Errand> {
        round.map_or_else(|why| self.fail(seq, why), |errand| vec![errand])
    }

    fn end(&mut self, seq: SeqId, event: Event) {
        if let Some(mut live) = self.live.remove(&seq) {
            live.events.emit(event);
        }
    }
}

impl Live {
    /// What is left of its deadline.
    fn within(&self, now_us: u64) -> Result<Option<u64>, JobError> {
        match self.deadline_us {
            Some(at) if at <= now_us => Err(JobError::DeadlinePassed),
            deadline => Ok(deadline.map(|at| at - now_us)),
        }
    }

    /// Prefill gets it, again.
    fn begin_round(&mut self, now_us: u64) -> Round {
        self.submission.within_us = self.within(now_us)?;
        (self.place, self.let_go, self.held) = (Place::Prefill, false, false);
        self.submission.round = self.submission.round.wrapping_add(1);
        Ok(Errand::Submit(self.route.prefill, Box::new(self.submission.clone())))
    }

    /// The process that had it is gone, and why: it begins anew, or goes on where it came back from, if it may.
    fn again(&mut self, now_us: u64, why: &JobError) -> Round {
        if !self.held {
            if self.published > 0 || !self.let_go || self.attempts == MAX_ATTEMPTS {
                return Err(why.clone());
            }
            self.attempts += 1;
            self.submission.replay = Replay { tokens: Vec::new(), preemptions: 0 };
        }
        self.begin_round(now_us)
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

    /// What prefill tells changes where the sequence is. If that was all that it had to say: the round that begins, if one does.
    fn left_prefill(&mut self, event: &SequenceEvent, now_us: u64) -> Option<Option<Round>> {
        match event {
            // What it said before it handed over may come late.
            SequenceEvent::Prefilled { .. } | SequenceEvent::Token { .. } => return None,
            SequenceEvent::HandedOver { round, .. } if *round != self.submission.round => return Some(None),
            SequenceEvent::HandedOver { .. } => {}
            // That it failed here is of an attempt that was given up: decode has it, or had it.
            _ if self.place == Place::Decode || self.held => {}
            _ => return None,
        }
        self.let_go = true;
        if self.held {
            return Some(Some(self.begin_round(now_us)));
        }
        self.place = Place::Decode;
        Some(None)
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
