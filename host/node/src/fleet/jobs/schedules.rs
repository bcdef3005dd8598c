//! Two engine processes that are played, under schedules drawn from a seed: what either says may be heard late, and not at all once it is
//! dead. Whatever happens, every client hears an end and its tokens in order, and in the end nobody has anything.
//!
//! Played is what matters to the table: who has a sequence, and what was said of it. No page, no step.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, channel};

use millrace_transfer::Incarnation;

use super::tests::{DECODE, PREFILL, Sink, submission};
use super::*;

const TOKENS: u32 = 5;
const TURNS: usize = 160;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }

    fn one_of(&mut self, of: impl IntoIterator<Item = SeqId>) -> Option<SeqId> {
        let all: Vec<SeqId> = of.into_iter().collect();
        all.get(self.below(all.len())).copied()
    }
}

/// What the node has sent.
enum Ordered {
    Errand(Errand),
    /// That life of decode is over.
    PeerDead(u64),
}

/// Where a sequence is in prefill.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Waiting,
    Prefilled,
    /// To this life of decode.
    Offered(u64),
}

/// A process, as far as the node can tell.
#[derive(Default)]
struct Process {
    life: u64,
    alive: bool,
    /// Whether the node takes it for alive.
    up: bool,
    orders: VecDeque<Ordered>,
    said: VecDeque<(SeqId, SequenceEvent)>,
    /// Errands until it is up.
    later: Vec<Errand>,
}

impl Process {
    fn say(&mut self, seq: SeqId, event: SequenceEvent) {
        self.said.push_back((seq, event));
    }
}

struct World {
    random: Random,
    jobs: Jobs,
    clients: BTreeMap<SeqId, Receiver<Event>>,
    prefill: Process,
    decode: Process,
    lives: u64,
    /// A turn takes one of them.
    now_us: u64,
    deadlines: BTreeMap<SeqId, u64>,
    /// In prefill.
    stays: BTreeMap<SeqId, (Submission, At)>,
    /// In prefill, until an earlier stay is over.
    back: BTreeMap<SeqId, Submission>,
    /// In decode: the next token, and how often it was preempted.
    runs: BTreeMap<SeqId, (u32, u32)>,
    /// From decode to prefill: whether that life took the sequence.
    ends: VecDeque<(u64, SeqId, bool)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            random: Random(seed),
            jobs: Jobs::default(),
            clients: BTreeMap::new(),
            prefill: Process::default(),
            decode: Process::default(),
            lives: 0,
            now_us: 0,
            deadlines: BTreeMap::new(),
            stays: BTreeMap::new(),
            back: BTreeMap::new(),
            runs: BTreeMap::new(),
            ends: VecDeque::new(),
        };
        [PREFILL, DECODE].into_iter().for_each(|pool| world.begin(pool));
        world
    }

    fn process(&mut self, pool: PoolId) -> &mut Process {
        if pool == PREFILL { &mut self.prefill } else { &mut self.decode }
    }

    fn run(&mut self, errands: Vec<Errand>) {
        for errand in errands {
            let up = self.process(errand.pool()).up;
            if let Errand::Submit(_, submission) = &errand
                && up
            {
                let left = self.deadlines.get(&submission.seq).map(|at| at.saturating_sub(self.now_us));
                assert_eq!(submission.within_us, left, "sequence {}, round {}", submission.seq, submission.round);
                assert!(left != Some(0), "sequence {} is sent after its deadline", submission.seq);
            }
            let process = self.process(errand.pool());
            if up {
                process.orders.push_back(Ordered::Errand(errand));
            } else if matches!(errand, Errand::Submit(..)) {
                process.later.retain(|kept| kept.seq() != errand.seq());
                process.later.push(errand);
            }
        }
    }

    fn submit(&mut self) {
        if !self.prefill.up {
            return;
        }
        let (seq, (sender, events)) = (SeqId(self.clients.len() as u64 + 1), channel());
        let within_us = (self.random.below(3) == 0).then(|| self.random.below(TURNS) as u64 + 1);
        let deadline_us = within_us.map(|within| self.now_us + within);
        self.deadlines.extend(deadline_us.map(|at| (seq, at)));
        let submission = Submission { seq, within_us, ..submission() };
        self.clients.insert(seq, events);
        let route = Route { lane: 0, prefill: PREFILL, decode: DECODE };
        self.jobs.insert(route, submission.clone(), deadline_us, Box::new(Sink(sender)));
        self.run(vec![Errand::Submit(PREFILL, Box::new(submission))]);
    }

    fn abort(&mut self) {
        let live: Vec<SeqId> = self.jobs.live.keys().copied().collect();
        if let Some(seq) = self.random.one_of(live) {
            let errands = self.jobs.abort(seq);
            self.clients.remove(&seq);
            // So that numbers are not given out twice.
            self.clients.insert(seq, channel().1);
            self.run(errands);
        }
    }

    /// A process dies, with what it had not said yet, or with what nobody had heard yet.
    fn crash(&mut self, pool: PoolId) {
        let process = self.process(pool);
        process.alive = false;
        (process.orders, process.said) = Default::default();
        if pool == PREFILL {
            (self.stays, self.back, self.ends) = Default::default();
        } else {
            self.runs.clear();
        }
    }

    /// The node finds out.
    fn notice(&mut self, pool: PoolId) {
        let process = self.process(pool);
        let life = process.life;
        if process.alive || !std::mem::replace(&mut process.up, false) {
            return;
        }
        if pool == DECODE && self.prefill.up {
            self.prefill.orders.push_back(Ordered::PeerDead(life));
        }
        let errands = self.jobs.lost(pool, life, &JobError::ShuttingDown);
        self.run(errands);
    }

    fn begin(&mut self, pool: PoolId) {
        self.lives += 1;
        let life = self.lives;
        let process = self.process(pool);
        if process.alive || process.up {
            return;
        }
        // What was sent after its death went nowhere.
        (process.orders, process.said) = Default::default();
        (process.life, process.alive, process.up) = (life, true, true);
        let later = std::mem::take(&mut process.later);
        let errands = later.into_iter().flat_map(|errand| self.jobs.kept(errand)).collect();
        self.run(errands);
    }

    fn hear(&mut self, pool: PoolId) {
        if let Some((seq, event)) = self.process(pool).said.pop_front() {
            let errands = self.jobs.hear(pool, seq, event);
            self.run(errands);
        }
    }

    fn obey(&mut self, pool: PoolId) {
        match self.process(pool).orders.pop_front() {
            Some(Ordered::Errand(Errand::Submit(_, submission))) => self.admit(*submission),
            Some(Ordered::Errand(Errand::Abort(_, seq))) if pool == PREFILL => {
                self.back.remove(&seq);
                self.stays.remove(&seq);
            }
            Some(Ordered::Errand(Errand::Abort(_, seq))) => drop(self.runs.remove(&seq)),
            Some(Ordered::PeerDead(life)) => {
                self.ends.retain(|(of, ..)| *of != life);
                self.stays.values_mut().filter(|(_, at)| *at == At::Offered(life)).for_each(|(_, at)| *at = At::Prefilled);
            }
            None => {}
        }
    }

    /// As an engine does: one that comes back waits for its last stay, another one must not be here.
    fn admit(&mut self, submission: Submission) {
        let seq = submission.seq;
        let known = self.stays.contains_key(&seq) || self.back.contains_key(&seq);
        assert!(!known || submission.replay.preemptions > 0, "sequence {seq} is submitted where it is");
        if self.stays.get(&seq).is_some_and(|(_, at)| matches!(at, At::Offered(_))) {
            self.back.insert(seq, submission);
        } else {
            self.stays.insert(seq, (submission, At::Waiting));
        }
    }

    fn prefill_turns(&mut self) {
        let Some(seq) = self.random.one_of(self.stays.keys().copied()) else { return };
        let fails = self.random.below(40) == 0;
        let (decode, prefill) = (&self.decode, &mut self.prefill);
        let Some((submission, at)) = self.stays.get_mut(&seq) else { return };
        match *at {
            At::Waiting if fails => {
                prefill.say(seq, SequenceEvent::Failed(JobError::NotFinite));
                self.stays.remove(&seq);
            }
            At::Waiting => {
                *at = At::Prefilled;
                if submission.replay.tokens.is_empty() {
                    prefill.say(seq, SequenceEvent::Prefilled { cached_tokens: 0, queued_us: 0 });
                    prefill.say(seq, SequenceEvent::Token { index: 0, token: 100 });
                }
            }
            At::Prefilled if decode.alive => *at = At::Offered(decode.life),
            At::Prefilled | At::Offered(_) => {}
        }
    }

    /// Decode answers an offer.
    fn take(&mut self) {
        let life = self.decode.life;
        let offered = self.stays.iter().filter(|(_, (_, at))| *at == At::Offered(life));
        let offered: Vec<SeqId> = offered.map(|(seq, _)| *seq).filter(|seq| !self.ends.contains(&(life, *seq, true))).collect();
        let Some(seq) = self.random.one_of(offered) else { return };
        if self.runs.contains_key(&seq) {
            return self.ends.push_back((life, seq, false));
        }
        let Some((submission, _)) = self.stays.get(&seq) else { return };
        let replay = &submission.replay;
        let next = u32::try_from(replay.tokens.len()).unwrap_or(u32::MAX).max(1);
        self.runs.insert(seq, (next, replay.preemptions));
        self.ends.push_back((life, seq, true));
        if replay.tokens.is_empty() {
            self.decode.say(seq, SequenceEvent::Prefilled { cached_tokens: 0, queued_us: 0 });
            self.decode.say(seq, SequenceEvent::Token { index: 0, token: 100 });
        }
    }

    /// Prefill hears decode's answer.
    fn hear_end(&mut self) {
        let Some((life, seq, took)) = self.ends.pop_front() else { return };
        let offered = self.stays.get(&seq).is_some_and(|(_, at)| *at == At::Offered(life));
        let Some((submission, _)) = offered.then(|| self.stays.remove(&seq)).flatten() else { return };
        let round = submission.round;
        match self.back.remove(&seq) {
            Some(again) => drop(self.stays.insert(seq, (again, At::Waiting))),
            None if took => {
                self.prefill.say(seq, SequenceEvent::HandedOver { round, to: Incarnation { epoch: life, boot: life } })
            }
            None => self.prefill.say(seq, SequenceEvent::Failed(JobError::HandOff("it is here already".into()))),
        }
    }

    fn decode_turns(&mut self) {
        let Some(seq) = self.random.one_of(self.runs.keys().copied()) else { return };
        let preempts = self.random.below(5) == 0;
        let Some((next, preemptions)) = self.runs.get_mut(&seq) else { return };
        let (index, preemptions) = (*next, *preemptions);
        if preempts && preemptions < 3 {
            let tokens = (0..index).map(|index| 100 + index).collect();
            self.decode.say(seq, SequenceEvent::Preempted(Replay { tokens, preemptions: preemptions + 1 }));
            self.runs.remove(&seq);
        } else if index == TOKENS {
            self.decode.say(seq, SequenceEvent::Finished(millrace_core::FinishReason::Length));
            self.runs.remove(&seq);
        } else {
            *next += 1;
            self.decode.say(seq, SequenceEvent::Token { index, token: 100 + index });
        }
    }

    fn turn(&mut self, troubles: usize) {
        self.now_us += 1;
        self.jobs.it_is(self.now_us);
        let pool = if self.random.below(2) == 0 { PREFILL } else { DECODE };
        let (prefill, decode) = (self.prefill.alive, self.decode.alive);
        match self.random.below(20 + troubles) {
            0..=3 => self.hear(pool),
            4..=6 if self.process(pool).alive => self.obey(pool),
            7..=9 if prefill => self.prefill_turns(),
            10..=12 if decode => self.take(),
            13 | 14 if prefill => self.hear_end(),
            15 | 16 if decode => self.decode_turns(),
            4..=16 => {}
            17 => self.notice(pool),
            18 | 19 => self.begin(pool),
            20..=22 => self.submit(),
            23 => self.abort(),
            _ => self.crash(pool),
        }
    }

    /// Everything is heard and done, without more trouble.
    fn quiesce(&mut self) {
        for _ in 0..6_000 {
            self.turn(0);
        }
        let waits: Vec<_> = self.jobs.live.iter().map(|(seq, live)| (seq, live.place, live.held, live.let_go)).collect();
        assert!(waits.is_empty(), "clients wait for ever: {waits:?}");
        assert!(self.stays.is_empty() && self.back.is_empty() && self.runs.is_empty(), "engines have what nobody wants");
        for (seq, events) in &self.clients {
            let heard: Vec<Event> = events.try_iter().collect();
            let tokens = heard.iter().filter_map(|event| if let Event::Token(token) = event { Some(*token) } else { None });
            assert!(tokens.enumerate().all(|(index, token)| token as usize == 100 + index), "sequence {seq}: {heard:?}");
            let late = heard.contains(&Event::Failed(JobError::DeadlinePassed));
            assert!(!late || self.deadlines.contains_key(seq), "sequence {seq} has no deadline: {heard:?}");
        }
    }
}

#[test]
fn every_client_hears_an_end_whatever_is_heard_when() {
    for seed in 0..3_000 {
        let played = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            (0..TURNS).for_each(|_| world.turn(5));
            world.quiesce();
        });
        assert!(played.is_ok(), "seed {seed}");
    }
}
