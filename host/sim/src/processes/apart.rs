//! Every pool in a process of its own, as `process = true` has it: stage engines with the sending and receiving ends of the hand-off that
//! serve over TCP, here over a network that is played. Knows no faults but the network's, and no right answer.

use std::sync::PoisonError;

use millrace_core::{LaneId, PoolId, SeqId};
use millrace_engine::{EventSink, SinkOf, SteppedEngine, SubmitError};
use millrace_transfer::Incarnation;
use millrace_transfer::tcp::{ByHand, Port};

use super::desk::{Desk, Errand, Reports, Teller};
use super::line::{Line, Trouble};
use super::{Counted, Wanted};
use crate::SimError;
use crate::lab::{LANES, POOLS};
use crate::rng::Rng;

/// What a process is born with.
pub(crate) struct Life {
    pub(crate) pool: PoolId,
    pub(crate) incarnation: Incarnation,
    /// One for each lane of the pool, in the order of the lanes.
    pub(crate) ports: Vec<Port>,
    pub(crate) sinks: Box<SinkOf>,
}

/// Makes the engine of a life.
pub(crate) type Make<'a> = dyn FnMut(Life) -> Result<SteppedEngine, SimError> + 'a;

/// See the module.
pub(crate) struct Apart {
    /// By pool.
    engines: Vec<SteppedEngine>,
    lives: Vec<Incarnation>,
    /// By lane.
    lines: Vec<Line>,
    desk: Desk,
    reports: Reports,
    epoch: u64,
    turns: u64,
    rng: Rng,
    past: Counted,
    /// Taken before, begun anew, and one too many for those that wait then.
    refused: Vec<SeqId>,
}

/// Lanes of a pool, with its side of each.
fn lanes_of(pool: PoolId) -> impl Iterator<Item = (usize, usize)> {
    LANES.iter().enumerate().filter_map(move |(lane, pools)| Some((lane, pools.iter().position(|&of| of == pool.0)?)))
}

fn sinks(pool: PoolId, reports: &Reports) -> Box<SinkOf> {
    let reports = reports.clone();
    Box::new(move |seq, replayed: &[u32]| -> Box<dyn EventSink> {
        let tokens = u32::try_from(replayed.len()).unwrap_or(u32::MAX);
        Box::new(Teller { from: pool, seq, tokens, reports: reports.clone() })
    })
}

impl Apart {
    /// # Errors
    /// An engine cannot be made.
    pub(crate) fn new(rng: Rng, make: &mut Make<'_>) -> Result<Self, SimError> {
        let (reports, mut epoch) = (Reports::default(), 0);
        let mut ports: Vec<Vec<Port>> = POOLS.iter().map(|_| Vec::new()).collect();
        let mut lines = Vec::new();
        for [prefill, decode] in LANES {
            let ((to_prefill, one), (to_decode, other)) = (ByHand::new(), ByHand::new());
            ports[prefill as usize].push(to_prefill);
            ports[decode as usize].push(to_decode);
            lines.push(Line::new([one, other]));
        }
        let (mut engines, mut lives) = (Vec::new(), Vec::new());
        for (pool, ports) in (0..).map(PoolId).zip(ports) {
            let incarnation = next_life(&mut epoch);
            engines.push(make(Life { pool, incarnation, ports, sinks: sinks(pool, &reports) })?);
            lives.push(incarnation);
        }
        let (desk, past) = (Desk::default(), Counted::default());
        Ok(Self { engines, lives, lines, desk, reports, epoch, turns: 0, rng, past, refused: Vec::new() })
    }

    pub(super) fn engine(&self, pool: PoolId) -> &SteppedEngine {
        &self.engines[pool.0 as usize]
    }

    pub(super) fn engine_mut(&mut self, pool: PoolId) -> &mut SteppedEngine {
        &mut self.engines[pool.0 as usize]
    }

    pub(super) fn engines(&self) -> &[SteppedEngine] {
        &self.engines
    }

    pub(super) fn engines_mut(&mut self) -> &mut [SteppedEngine] {
        &mut self.engines
    }

    pub(super) fn submit(&mut self, wanted: Wanted, client: Box<dyn EventSink>) -> Result<(), SubmitError> {
        let seq = wanted.seq;
        self.desk.insert(wanted.clone(), client);
        let taken = self.send(&wanted);
        if taken.is_err() {
            self.desk.forget(seq);
        }
        taken
    }

    fn send(&self, wanted: &Wanted) -> Result<(), SubmitError> {
        let prefill = PoolId(LANES[wanted.lane as usize][0]);
        self.engine(prefill).handle().submit(wanted.job(self.teller(prefill, wanted.seq, 0)))
    }

    fn teller(&self, from: PoolId, seq: SeqId, tokens: u32) -> Box<Teller> {
        Box::new(Teller { from, seq, tokens, reports: self.reports.clone() })
    }

    pub(super) fn abort(&mut self, seq: SeqId) {
        let errands = self.desk.abort(seq);
        self.run(errands);
    }

    pub(super) fn turn(&mut self) {
        self.turns += 1;
        let (now, rng) = (self.turns, &mut self.rng);
        self.lines.iter_mut().for_each(|line| line.turn(now, rng));
        // Nobody is always first.
        let first = self.rng.index(self.engines.len());
        for index in 0..self.engines.len() {
            let count = self.engines.len();
            self.engines[(first + index) % count].turn();
            self.hear();
        }
    }

    fn hear(&mut self) {
        let told = std::mem::take(&mut *self.reports.lock().unwrap_or_else(PoisonError::into_inner));
        let errands = told.into_iter().filter_map(|(from, seq, told)| self.desk.hear(from, seq, told)).collect();
        self.run(errands);
    }

    fn run(&mut self, errands: Vec<Errand>) {
        for errand in errands {
            let sent = match errand {
                Errand::Abort(pool, seq) => {
                    self.engine(pool).handle().abort(seq);
                    Ok(())
                }
                Errand::Submit(wanted) => self.send(&wanted).map_err(|error| (wanted.seq, error)),
                Errand::Resume(wanted, again) => {
                    let prefill = PoolId(LANES[wanted.lane as usize][0]);
                    let tokens = u32::try_from(again.tokens.len()).unwrap_or(u32::MAX);
                    let job = wanted.job(self.teller(prefill, wanted.seq, tokens));
                    self.engine(prefill).handle().resume(job, again).map_err(|error| (wanted.seq, error))
                }
            };
            if let Err((seq, SubmitError::QueueFull { .. })) = sent {
                self.desk.forget(seq);
                self.refused.push(seq);
            } else if let Err((seq, error)) = sent {
                let why = format!("sequence {seq} was taken before and is not taken again: {error}");
                self.desk.violation.get_or_insert(why);
            }
        }
    }

    /// Something happens on the way between two engines. Where; `None`: there was nothing to strike.
    pub(crate) fn trouble(&mut self, trouble: Trouble) -> Option<&'static str> {
        let lane = self.rng.index(self.lines.len());
        self.lines[lane].strike(trouble, self.turns, &mut self.rng)
    }

    /// The process of a pool ends, and another one begins on memory of its own. Returns the sequences that are over with it.
    ///
    /// # Errors
    /// The next engine cannot be made.
    pub(crate) fn replace(&mut self, pool: PoolId, make: &mut Make<'_>) -> Result<Vec<SeqId>, SimError> {
        let (row, over) = (pool.0 as usize, self.lives[pool.0 as usize]);
        self.past = self.past.plus(Counted::of(&self.engines[row]));
        let mut ports = Vec::new();
        for (lane, side) in lanes_of(pool) {
            let (port, end) = ByHand::new();
            ports.push(port);
            self.lines[lane].replace(side, end, self.turns);
            let peer = PoolId(LANES[lane][1 - side]);
            let at_peer = lanes_of(peer).position(|(of, _)| of == lane).unwrap_or(0);
            self.engine(peer).handle().peer_dead(LaneId(at_peer as u32), over);
        }
        let incarnation = next_life(&mut self.epoch);
        self.engines[row] = make(Life { pool, incarnation, ports, sinks: sinks(pool, &self.reports) })?;
        self.lives[row] = incarnation;
        let (errands, mut ended) = self.desk.lost(pool);
        self.run(errands);
        ended.append(&mut self.refused);
        Ok(ended)
    }

    pub(super) fn counted(&self) -> Counted {
        self.engines.iter().map(Counted::of).fold(self.past, Counted::plus)
    }

    /// Every lane is connected, and nothing is on its way.
    pub(super) fn is_settled(&self) -> bool {
        let open = |engine: &SteppedEngine| engine.handle().snapshot().links.iter().any(|link| link.open > 0 || !link.connected);
        self.lines.iter().all(Line::is_idle) && !self.engines.iter().any(open)
    }

    pub(super) fn take_violation(&mut self) -> Option<String> {
        self.desk.violation.take()
    }
}

/// Counted by who starts processes; the nonce is a random number where they serve.
fn next_life(epoch: &mut u64) -> Incarnation {
    *epoch += 1;
    Incarnation { epoch: *epoch, boot: crate::rng::mix(*epoch) }
}
