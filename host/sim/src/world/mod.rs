//! One world: an engine, its device, its clients and what happens to them, all from one seed. The loop is here; what can happen is in
//! `inject`, what must hold in `judge` and `quiet`.

#[cfg(all(test, feature = "tags"))]
mod bugs;
mod build;
mod client;
mod inject;
mod judge;
mod quiet;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod scene;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::{PoolId, SamplingParams, SeqId, TenantId};
use millrace_kv::PageId;
use millrace_ops::Ticket;

use crate::clock::VirtualClock;
use crate::device::Device;
use crate::device::machine::Reader;
use crate::device::submission::{Kind, Submission};
use crate::lab::{Lab, POOLS, Shape};
use crate::policy::{Policies, SharedMood};
use crate::processes::{Counted, Processes, Wanted};
use crate::rng::Rng;
use crate::trace::{Note, Trace};
use crate::workload::Request;
use crate::{FaultKind, GuardOff, SimError, Tally};

use build::Making;
use client::{Client, Mailbox, Sink};

/// Turns within which a world comes to its end, faults or not: so many, and so many more for each request.
const MOST_TURNS: u64 = 20_000;
const MOST_TURNS_OF_A_REQUEST: u64 = 1_000;
/// Requests in a world, at the end of it, that faults leave alone.
const SPARED: u32 = 2;

/// What is between the two engines of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Copies in the queues of one device: late or failed, never lost.
    InProcess,
    /// Messages between processes, by the machines and the codec that serve over TCP: late, lost with their connection, twice, out of
    /// order; and either process may die.
    Messages,
}

/// Which transport in which worlds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transports {
    /// Messages in one world of three.
    Mixed,
    Only(Transport),
}

impl Transports {
    fn choose(self, rng: &mut Rng) -> Transport {
        let rare = rng.one_in(3);
        match self {
            Self::Only(transport) => transport,
            Self::Mixed if rare => Transport::Messages,
            Self::Mixed => Transport::InProcess,
        }
    }
}

/// What is to happen in worlds, whatever their seed.
#[derive(Debug, Clone)]
pub struct WorldOptions {
    /// Faults that may strike.
    pub faults: BTreeSet<FaultKind>,
    /// Chance of each in 1,000 turns; those that end an engine have a fiftieth of it.
    pub per_mille: u32,
    /// Requests of one world.
    pub requests: u32,
    pub off: Option<GuardOff>,
    pub policy: Policies,
    pub transport: Transports,
}

impl Default for WorldOptions {
    /// Every fault.
    fn default() -> Self {
        Self {
            faults: FaultKind::ALL.into(),
            per_mille: 25,
            requests: 40,
            off: None,
            policy: Policies::Mixed,
            transport: Transports::Mixed,
        }
    }
}

/// What became of a world.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    pub tally: Tally,
    /// The first thing that must not be, in words; a world ends with it.
    pub violation: Option<String>,
    /// Follows from everything that happened, in order.
    pub digest: u64,
}

pub(crate) struct World<'a> {
    lab: &'a Lab,
    options: &'a WorldOptions,
    shape: Shape,
    rng: Rng,
    clock: Arc<VirtualClock>,
    mood: SharedMood,
    engine: Processes,
    making: Making<'a>,
    device: Device,
    clients: BTreeMap<SeqId, Client>,
    /// Of these: those that are owed an end.
    live: BTreeSet<SeqId>,
    mailbox: Mailbox,
    /// Requests that have not come yet.
    to_come: u32,
    next_seq: u64,
    /// (pool, page, tag) that was taken from its owner, who may name it on.
    taken: BTreeSet<(u32, u32, u64)>,
    /// A page was taken and is not given back.
    thefts: bool,
    /// Turn in which pages of a pool were last under suspicion.
    suspected: BTreeMap<PoolId, u64>,
    /// (pool, page, tag) whose numbers are not finite.
    not_finite: BTreeSet<(u32, u32, u64)>,
    /// Turn until which copies in a queue are held back.
    copies_held_until: BTreeMap<usize, u64>,
    /// Rows of the last step that ran, by queue.
    last_rows: BTreeMap<usize, Vec<SeqId>>,
    /// Nothing strikes any more.
    quiet: bool,
    turns: u64,
    tally: Tally,
    trace: Trace,
    violation: Option<String>,
}

impl Lab {
    /// The world of a seed, from beginning to end.
    ///
    /// # Errors
    /// The engine cannot be built or the policy not loaded; never what goes wrong in the world.
    pub fn run(&self, seed: u64, options: &WorldOptions) -> Result<Outcome, SimError> {
        let mut world = World::new(self, seed, options)?;
        world.live_through()?;
        if world.violation.is_none() {
            world.come_to_rest();
        }
        world.close_books();
        Ok(Outcome { tally: world.tally, violation: world.violation, digest: world.trace.digest() })
    }
}

impl World<'_> {
    /// Until every request has come and ended.
    fn live_through(&mut self) -> Result<(), SimError> {
        // Once nobody new comes, faults go on until most have ended, and stop then.
        let spared = SPARED.min(self.options.requests / 4) as usize;
        while self.violation.is_none() && (self.to_come > 0 || self.live.len() > spared) {
            self.arrive();
            self.strike()?;
            self.run_device();
            self.turn();
            if self.turns > self.most_turns() {
                self.violate(format!("after {} turns {} requests have no end", self.turns, self.live.len()));
            }
        }
        Ok(())
    }

    /// Turns after which a world that is not at its end never comes to it.
    fn most_turns(&self) -> u64 {
        MOST_TURNS + MOST_TURNS_OF_A_REQUEST * u64::from(self.options.requests)
    }

    fn arrive(&mut self) {
        // Some worlds are idle now and then, some get all at once.
        if self.to_come == 0 || self.live.len() > 24 || !self.rng.one_in(3) {
            return;
        }
        self.submit_one();
    }

    fn submit_one(&mut self) {
        let longest = self.shape.limits.max_context.min(self.shape.pages[0] * self.shape.page_tokens);
        // Some are longer than the engine can ever take.
        let longest = if self.rng.one_in(40) { longest + 8 } else { longest.saturating_sub(2) };
        let request = self.lab.prompts.request(&mut self.rng, longest, crate::lab::LANES.len() as u32);
        self.to_come = self.to_come.saturating_sub(1);
        self.submit(request);
    }

    fn submit(&mut self, request: Request) -> SeqId {
        let seq = SeqId(self.next_seq);
        self.next_seq += 1;
        self.tally.requests += 1;
        let wanted = self.wanted(seq, &request);
        let mut client = Client::new(request, wanted.deadline_us, self.turns);
        match self.engine.submit(wanted, Box::new(Sink::new(seq, self.mailbox.clone()))) {
            Ok(()) => {
                self.live.insert(seq);
            }
            Err(error) => {
                let end = self.refused(&client, &error);
                client.end = Some(end);
                *self.tally.ends.entry(end).or_default() += 1;
            }
        }
        self.clients.insert(seq, client);
        seq
    }

    fn wanted(&self, seq: SeqId, request: &Request) -> Wanted {
        let now_us = millrace_core::Clock::now_us(self.clock.as_ref());
        Wanted {
            seq,
            lane: request.lane,
            tenant: request.tenant,
            priority: request.priority,
            deadline_us: request.deadline_in_us.map(|within| now_us + within),
            prompt: request.prompt.clone(),
            scope: request.scope,
            sampling: SamplingParams::greedy(request.max_output, request.stop_tokens.clone()),
        }
    }

    /// Runs what the devices have to do, or some of it, or nothing.
    fn run_device(&mut self) {
        for _ in 0..1 + self.rng.below(2) {
            let held = |queue: &usize| {
                let is_copy = self.device.look(*queue, |_, next| matches!(next.kind, Kind::Export | Kind::Import));
                is_copy == Some(true) && self.copies_held_until.get(queue).is_some_and(|&until| until > self.turns)
            };
            let ready: Vec<usize> = self.device.ready().into_iter().filter(|queue| !held(queue)).collect();
            let Some(&queue) = self.rng.pick(&ready) else { return };
            if self.rng.one_in(4) {
                return;
            }
            self.run_queue(queue);
        }
    }

    /// Runs the next submission of a queue, and whatever happens in it.
    fn run_queue(&mut self, queue: usize) {
        let happening = self.happening(queue);
        self.note_run(queue);
        let rows = self.rows(queue);
        let readers = self.readers(&rows);
        let ran = self.device.run_next(queue, readers, happening);
        if !rows.is_empty() {
            self.last_rows.insert(queue, rows.clone());
        }
        self.tally.submissions += 1;
        if let Some(happening) = happening.filter(|_| ran.happened) {
            self.note(queue, happening);
        }
        self.clock.advance(u64::from(self.rng.below(900)));
        for page in ran.lost {
            self.lose(PoolId(queue as u32), PageId(page));
        }
        self.see_device();
    }

    fn note_run(&mut self, queue: usize) {
        let now_us = millrace_core::Clock::now_us(self.clock.as_ref());
        let look = |ticket, next: &Submission| Note::Ran { queue, ticket, operations: next.ops.len(), now_us };
        self.device.look(queue, look).into_iter().for_each(|note| self.trace.note(note));
    }

    /// Sequences of the rows of the submission that runs next, if it is a step; pages that are not finite spread by it.
    fn rows(&mut self, queue: usize) -> Vec<SeqId> {
        let look = |ticket, next: &Submission| (ticket, next.kind, next.rows.clone());
        let Some((ticket, kind, tables)) = self.device.look(queue, look) else { return Vec::new() };
        let rows = if kind == Kind::Step { self.rows_of(queue, ticket) } else { Vec::new() };
        if !self.not_finite.is_empty() {
            self.spread_not_finite(queue, &rows, &tables);
        }
        rows
    }

    fn rows_of(&self, queue: usize, ticket: Ticket) -> Vec<SeqId> {
        let running = self.engine.running(PoolId(queue as u32)).filter(|running| running.ticket == ticket);
        running.map(|running| running.rows).unwrap_or_default()
    }

    fn readers(&self, rows: &[SeqId]) -> Vec<Reader> {
        let tenant = |seq| self.clients.get(seq).map_or(u32::MAX - 1, |client| client.request.tenant);
        rows.iter().map(|seq| Reader { seq: *seq, tenant: TenantId(tenant(seq)) }).collect()
    }

    fn turn(&mut self) {
        self.turns += 1;
        self.tally.turns += 1;
        self.engine.turn();
        self.note_suspicion();
        self.hear();
        if let Some(what) = self.engine.take_violation() {
            self.violate(what);
        }
        self.check();
    }

    fn note_suspicion(&mut self) {
        for pool in (0..POOLS.len()).map(|index| PoolId(index as u32)) {
            if self.is_suspected(pool) {
                self.suspected.insert(pool, self.turns);
            }
        }
    }

    /// Whether a pool has a page under suspicion now.
    fn is_suspected(&self, pool: PoolId) -> bool {
        self.engine.pages(pool).is_some_and(|pages| !pages.suspects().is_empty())
    }

    /// A fault strikes.
    fn count(&mut self, kind: FaultKind, state: &'static str) {
        self.trace.note(Note::Struck { kind: kind.name(), state, turn: self.turns });
        self.tally.count(kind, state);
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// What the engine counted itself, before it is gone.
    fn count_engine(&mut self) {
        let Counted { preemptions: preempted, hand_offs } = self.engine.counted();
        self.tally.preemptions += preempted;
        self.tally.hand_offs += hand_offs;
        if preempted > 0 {
            *self.tally.faults.entry((FaultKind::Exhausted, "preempted")).or_default() += preempted;
        }
    }

    fn close_books(&mut self) {
        self.count_engine();
        self.count_moods();
    }

    fn count_moods(&mut self) {
        let mut mood = self.mood.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, answers) = (std::mem::take(&mut mood.done), std::mem::take(&mut mood.answers));
        drop(mood);
        self.tally.policy_answers += answers - done.len() as u64;
        self.tally.fallback_answers += done.len() as u64;
        done.into_iter().for_each(|kind| self.count(kind, "planning"));
    }
}

/// Locks what nobody else holds for long.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
