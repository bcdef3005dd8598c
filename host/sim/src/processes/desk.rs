//! The node's part where engines are processes: who has a sequence, what its client has heard, and what becomes of it when a process
//! ends. The rules are those of the node's own table (`host/node`, `fleet`); here they are small enough to be read beside the faults.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::{PoolId, SeqId, Stage};
use millrace_engine::{Event, EventSink, Replay};
use millrace_transfer::Incarnation;

use super::Wanted;
use crate::lab::{LANES, POOLS};

/// How often a sequence begins anew of which nothing was published.
const MAX_ATTEMPTS: u32 = 3;

/// What an engine tells of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Told {
    /// An output token has its number.
    Token(u32, u32),
    /// Anything but a token.
    Event(Event),
    HandedOver,
    Preempted(Replay),
}

/// What engines have told and nobody has read.
pub(super) type Reports = Arc<Mutex<Vec<(PoolId, SeqId, Told)>>>;

/// Tells what one engine says of one sequence.
pub(super) struct Teller {
    pub(super) from: PoolId,
    pub(super) seq: SeqId,
    /// Output tokens so far.
    pub(super) tokens: u32,
    pub(super) reports: Reports,
}

impl Teller {
    fn tell(&self, told: Told) {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).push((self.from, self.seq, told));
    }
}

impl EventSink for Teller {
    fn emit(&mut self, event: Event) {
        match event {
            Event::Token(token) => {
                self.tell(Told::Token(self.tokens, token));
                self.tokens += 1;
            }
            other => self.tell(Told::Event(other)),
        }
    }

    fn handed_over(&mut self, _to: Incarnation) {
        self.tell(Told::HandedOver);
    }

    fn preempted(&mut self, again: Replay) {
        self.tell(Told::Preempted(again));
    }
}

/// What is to be sent to an engine.
#[derive(Debug)]
pub(super) enum Errand {
    Submit(Box<Wanted>),
    Resume(Box<Wanted>, Replay),
    Abort(PoolId, SeqId),
}

struct Live {
    wanted: Wanted,
    place: Stage,
    told_prefilled: bool,
    /// Output tokens that the client has.
    published: Vec<u32>,
    attempts: u32,
    /// Prefill said so of this attempt.
    handed_over: bool,
    /// Earlier attempts that it has to say so of.
    owed: u32,
    client: Box<dyn EventSink>,
}

impl Live {
    fn pool(&self, stage: Stage) -> PoolId {
        PoolId(LANES[self.wanted.lane as usize][usize::from(stage == Stage::Decode)])
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Desk {
    live: BTreeMap<SeqId, Live>,
    /// The first thing that must not be.
    pub(super) violation: Option<String>,
}

impl Desk {
    pub(super) fn insert(&mut self, wanted: Wanted, client: Box<dyn EventSink>) {
        let (place, published) = (Stage::Prefill, Vec::new());
        self.live.insert(
            wanted.seq,
            Live { wanted, place, told_prefilled: false, published, attempts: 1, handed_over: false, owed: 0, client },
        );
    }

    pub(super) fn forget(&mut self, seq: SeqId) {
        self.live.remove(&seq);
    }

    /// Forgets a sequence; tells both engines.
    pub(super) fn abort(&mut self, seq: SeqId) -> Vec<Errand> {
        let Some(live) = self.live.remove(&seq) else { return Vec::new() };
        [Stage::Prefill, Stage::Decode].map(|stage| Errand::Abort(live.pool(stage), seq)).into()
    }

    /// Takes what an engine tells of a sequence.
    pub(super) fn hear(&mut self, from: PoolId, seq: SeqId, told: Told) -> Option<Errand> {
        let Some(live) = self.live.get_mut(&seq) else {
            // Nobody wants it: it was aborted while it was between the two.
            let over = matches!(told, Told::Event(Event::Finished(_) | Event::Failed(_)));
            return (!over).then_some(Errand::Abort(from, seq));
        };
        let stage = POOLS[from.0 as usize];
        let began = matches!(told, Told::Token(..) | Told::HandedOver | Told::Event(Event::Prefilled { .. }));
        // That it failed in prefill is of an attempt that was given up.
        if stage == Stage::Prefill && live.place == Stage::Decode && !began {
            return None;
        }
        if stage == Stage::Decode {
            live.place = Stage::Decode;
        }
        match told {
            Told::Token(index, token) => match live.published.get(index as usize) {
                Some(&known) if known != token => {
                    let why =
                        format!("output token {index} of sequence {seq} was {known} and is {token} in the engine of pool {from}");
                    self.violation.get_or_insert(why);
                }
                Some(_) => {}
                None if index as usize == live.published.len() => {
                    live.published.push(token);
                    live.client.emit(Event::Token(token));
                }
                None => {
                    let due = live.published.len();
                    let why = format!("output token {index} of sequence {seq} came from pool {from} where {due} was due");
                    self.violation.get_or_insert(why);
                }
            },
            Told::Event(prefilled @ Event::Prefilled { .. }) => {
                if !std::mem::replace(&mut live.told_prefilled, true) {
                    live.client.emit(prefilled);
                }
            }
            Told::Event(end) => {
                live.client.emit(end);
                self.live.remove(&seq);
            }
            Told::HandedOver if live.owed > 0 => live.owed -= 1,
            Told::HandedOver => (live.place, live.handed_over) = (Stage::Decode, true),
            Told::Preempted(again) => {
                live.owed += u32::from(!std::mem::take(&mut live.handed_over));
                live.place = Stage::Prefill;
                return Some(Errand::Resume(Box::new(live.wanted.clone()), again));
            }
        }
        None
    }

    /// An engine process has ended, with everything that it had. Sequences of which nothing was published begin anew; the others are
    /// over, and named.
    pub(super) fn lost(&mut self, pool: PoolId) -> (Vec<Errand>, Vec<SeqId>) {
        let (mut errands, mut over) = (Vec::new(), Vec::new());
        // What prefill had to tell is never told.
        for live in self.live.values_mut().filter(|live| live.pool(Stage::Prefill) == pool) {
            (live.handed_over, live.owed) = (live.place == Stage::Decode, 0);
        }
        for live in self.live.values_mut().filter(|live| live.pool(live.place) == pool) {
            if live.published.is_empty() && live.attempts < MAX_ATTEMPTS {
                live.attempts += 1;
                (live.place, live.handed_over, live.owed) = (Stage::Prefill, false, 0);
                errands.push(Errand::Submit(Box::new(live.wanted.clone())));
            } else {
                over.push(live.wanted.seq);
            }
        }
        over.iter().for_each(|&seq| errands.extend(self.abort(seq)));
        (errands, over)
    }
}
