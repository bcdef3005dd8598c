//! The network between the two engines of a lane: frames on their way in both directions, and what becomes of them. Knows no message,
//! but for those that open a connection.
//!
//! TCP delays and breaks: then what had not arrived is lost, each side learns of it when it does, and another connection follows. It
//! neither repeats frames nor changes their order; the protocol promises to bear that too, so here it happens, within a connection and
//! from one to the next. What opens a connection stays first: TCP and TLS see to that, and the protocol counts on it. It promises that
//! nothing wrong follows from another order, not that everything goes on: a transfer whose end came before its beginning waits for the
//! next connection, in which all that is open is said again. So a connection on which the order changed does not last.

use std::collections::VecDeque;

use millrace_transfer::tcp::{ByHand, Sent};

use crate::rng::Rng;

/// Frames of earlier connections that may come once more.
const KEPT: usize = 8;
/// Turns that a frame may take by itself, and with a delay.
const LATENCY: u32 = 3;
const LONG: u32 = 60;
/// Turns that a connection lasts on which the order changed.
const DISORDERED: u32 = 200;
/// Turns until a side learns that the connection is gone, and until there is another.
const UNNOTICED: u32 = 12;
const PAUSE: u32 = 8;

/// What happens to what is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Delay,
    Duplicate,
    Reorder,
    /// The connection breaks.
    Lose,
}

struct Flight {
    due: u64,
    frame: Vec<u8>,
}

impl Flight {
    /// Hello, welcome or refusal: the codec's kinds of those have the highest bit.
    fn opens(&self) -> bool {
        self.frame.first().is_some_and(|kind| kind & 0x80 != 0)
    }
}

/// By side: who has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Down {
        until: u64,
    },
    Opening {
        told: [bool; 2],
    },
    Up,
    /// Each side learns of it at its time, or has.
    Breaking {
        at: [Option<u64>; 2],
    },
}

/// Its sides: prefill, decode. What goes in a direction is named by the side that it comes from.
pub(super) struct Line {
    ends: [ByHand; 2],
    flights: [VecDeque<Flight>; 2],
    kept: VecDeque<(usize, Vec<u8>)>,
    state: State,
    /// When the connection breaks because the order changed on it.
    ends_at: Option<u64>,
}

impl Line {
    pub(super) fn new(ends: [ByHand; 2]) -> Self {
        Self { ends, flights: Default::default(), kept: VecDeque::new(), state: State::Down { until: 0 }, ends_at: None }
    }

    /// What happens of itself in a turn.
    pub(super) fn turn(&mut self, now: u64, rng: &mut Rng) {
        match self.state {
            State::Down { until } if until <= now => self.state = State::Opening { told: [false; 2] },
            State::Down { .. } => {}
            State::Opening { mut told } => {
                (0..2).for_each(|side| told[side] = told[side] || self.ends[side].open());
                self.state = if told == [true; 2] { State::Up } else { State::Opening { told } };
            }
            State::Up => {
                let is_over = self.ends_at.is_some_and(|at| at <= now);
                if !self.collect(now, rng) || is_over {
                    return self.lose(now, rng);
                }
                (0..2).for_each(|from| self.deliver(from, now));
            }
            State::Breaking { at } => self.tell(at, now, rng),
        }
    }

    /// False: a side has ended it.
    fn collect(&mut self, now: u64, rng: &mut Rng) -> bool {
        for from in 0..2 {
            loop {
                match self.ends[from].take() {
                    Sent::Frame(frame) => {
                        let before = self.flights[from].back().map_or(0, |flight| flight.due);
                        let due = before.max(now + u64::from(rng.below(LATENCY)));
                        self.flights[from].push_back(Flight { due, frame });
                    }
                    Sent::Nothing => break,
                    Sent::Ended => return false,
                }
            }
        }
        true
    }

    fn deliver(&mut self, from: usize, now: u64) {
        while let Some(flight) = self.flights[from].pop_front_if(|flight| flight.due <= now) {
            let Flight { due, frame } = flight;
            if let Err(frame) = self.ends[1 - from].deliver(frame.clone()) {
                // It reads as fast as it can.
                return self.flights[from].push_front(Flight { due, frame });
            }
            self.keep(from, frame);
        }
    }

    fn keep(&mut self, from: usize, frame: Vec<u8>) {
        let flight = Flight { due: 0, frame };
        if !flight.opens() {
            self.kept.push_back((from, flight.frame));
            if self.kept.len() > KEPT {
                self.kept.pop_front();
            }
        }
    }

    /// What has arrived is read before a side learns that no more comes.
    fn tell(&mut self, mut at: [Option<u64>; 2], now: u64, rng: &mut Rng) {
        for (side, at) in at.iter_mut().enumerate() {
            self.deliver(1 - side, now);
            let read = self.flights[1 - side].is_empty();
            if at.is_some_and(|at| at <= now) && read && self.ends[side].close() {
                *at = None;
            }
        }
        let pause = now + u64::from(rng.below(PAUSE));
        self.state = if at == [None; 2] { State::Down { until: pause } } else { State::Breaking { at } };
    }

    /// The connection breaks: of what is on its way, the first part arrives.
    fn lose(&mut self, now: u64, rng: &mut Rng) {
        for flights in &mut self.flights {
            flights.truncate(rng.index(flights.len() + 1));
            flights.iter_mut().for_each(|flight| flight.due = flight.due.min(now));
        }
        self.ends_at = None;
        let mut learns = || Some(now + u64::from(rng.below(UNNOTICED)));
        self.state = State::Breaking { at: [learns(), learns()] };
    }

    /// One side is another life, with nothing of what was.
    pub(super) fn replace(&mut self, side: usize, end: ByHand, now: u64) {
        self.ends[side] = end;
        self.ends_at = None;
        self.flights.iter_mut().for_each(VecDeque::clear);
        let mut at = match self.state {
            State::Down { .. } => [None; 2],
            State::Opening { told } => [0, 1].map(|side| told[side].then_some(now)),
            State::Up => [Some(now); 2],
            State::Breaking { at } => at.map(|at| at.map(|_| now)),
        };
        at[side] = None;
        self.state = State::Breaking { at };
    }

    /// Where it struck; `None`: there was nothing to strike.
    pub(super) fn strike(&mut self, trouble: Trouble, now: u64, rng: &mut Rng) -> Option<&'static str> {
        if self.state != State::Up {
            return None;
        }
        let from = rng.index(2);
        let direction = ["to_decode", "to_prefill"][from];
        match trouble {
            Trouble::Lose => {
                let under_way = self.flights.iter().any(|flights| !flights.is_empty());
                self.lose(now, rng);
                Some(if under_way { "with_messages" } else { "idle" })
            }
            Trouble::Delay => {
                let longer = u64::from(1 + rng.below(LONG));
                self.flights[from].iter_mut().for_each(|flight| flight.due += longer);
                (!self.flights[from].is_empty()).then_some(direction)
            }
            Trouble::Duplicate => self.duplicate(now, rng, from).then_some(direction),
            Trouble::Reorder => {
                let flights = self.flights[from].make_contiguous();
                let pairs: Vec<usize> =
                    (1..flights.len()).filter(|&at| !flights[at - 1].opens() && !flights[at].opens()).collect();
                let at = *rng.pick(&pairs)?;
                let [before, behind] = flights.get_disjoint_mut([at - 1, at]).ok()?;
                std::mem::swap(&mut before.frame, &mut behind.frame);
                self.ends_at.get_or_insert(now + u64::from(rng.below(DISORDERED)));
                Some(direction)
            }
        }
    }

    /// A frame that is on its way, or one that arrived long ago, comes (once more) behind the others.
    fn duplicate(&mut self, now: u64, rng: &mut Rng, from: usize) -> bool {
        let flights = &self.flights[from];
        let under_way = flights.iter().filter(|flight| !flight.opens()).map(|flight| &flight.frame);
        let known = under_way.chain(self.kept.iter().filter(|(kept, _)| *kept == from).map(|(_, frame)| frame));
        let known: Vec<Vec<u8>> = known.cloned().collect();
        let Some(frame) = rng.pick(&known).cloned() else { return false };
        // Nothing overtakes what opens the connection.
        let due = flights.back().map_or(now, |flight| flight.due);
        self.flights[from].push_back(Flight { due, frame });
        true
    }

    pub(super) fn is_idle(&self) -> bool {
        self.state == State::Up && self.ends_at.is_none() && self.flights.iter().all(VecDeque::is_empty)
    }
}
