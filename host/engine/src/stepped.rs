//! The engine without a thread, for whoever turns its loop by hand: the same driver, one turn at a time, under a clock and on devices of
//! the caller's. With it come the ways to break pages and guards on purpose and to look at what a test must judge.
//!
//! Only with the feature `fault-injection`. It does not know what a fault is for, nor what a right answer is.

use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_core::{PoolId, SeqId};
use millrace_kv::{Guard, PageId, PagePool, PageRef};
use millrace_ops::Ticket;
use millrace_scheduler::SequenceState;

use crate::driver::Driver;
use crate::pool::Scheduler;
use crate::stage::build_stage;
use crate::start::build;
use crate::{EngineError, EngineHandle, EngineSpec, StageSpec};

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Without pages: before its first step, or preempted.
    Waiting,
    /// In prefill, and no step of it runs: before, between or behind its chunks.
    PrefillBetween,
    /// In prefill, and a step that computes a part of it runs.
    PrefillStep,
    /// Prefilled; waits for room in decode or for a copy.
    HandOff,
    /// In decode, and no step of it runs.
    DecodeBetween,
    /// In decode, and a step that computes a token of it runs.
    DecodeStep,
}

impl Place {
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::PrefillBetween, Self::PrefillStep, Self::HandOff, Self::DecodeBetween, Self::DecodeStep];

    fn of(state: SequenceState, runs: bool) -> Self {
        match (state, runs) {
            (SequenceState::Waiting, _) => Self::Waiting,
            (SequenceState::Prefilling, false) => Self::PrefillBetween,
            (SequenceState::Prefilling, true) => Self::PrefillStep,
            (SequenceState::HandingOff, _) => Self::HandOff,
            (SequenceState::Running, false) => Self::DecodeBetween,
            (SequenceState::Running, true) => Self::DecodeStep,
        }
    }

    /// For reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::PrefillBetween => "prefill",
            Self::PrefillStep => "prefill_step",
            Self::HandOff => "hand_off",
            Self::DecodeBetween => "decode",
            Self::DecodeStep => "decode_step",
        }
    }
}

/// A step that was handed to the device and not collected yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningStep {
    /// On the pool's queue.
    pub ticket: Ticket,
    /// Of its rows, in order.
    pub rows: Vec<SeqId>,
}

/// See the module.
pub struct SteppedEngine {
    driver: Driver,
    handle: EngineHandle,
}

impl SteppedEngine {
    /// # Errors
    /// As for [`crate::start()`].
    pub fn new(spec: EngineSpec) -> Result<Self, EngineError> {
        let driver = build(spec)?;
        let handle = EngineHandle { shared: driver.shared.clone() };
        Ok(Self { driver, handle })
    }

    /// One stage's engine, whose lanes end in other ones.
    ///
    /// # Errors
    /// As for [`crate::start_stage`].
    pub fn stage(spec: StageSpec) -> Result<Self, EngineError> {
        let driver = build_stage(spec)?;
        let handle = EngineHandle { shared: driver.shared.clone() };
        Ok(Self { driver, handle })
    }

    /// To submit to and abort by; what waits for the driver's answer would wait for ever.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// One turn of the loop. Events go to their sinks from within. Does nothing once the engine was stopped but to end its sequences.
    pub fn turn(&mut self) {
        if self.driver.shared.stopping.load(Ordering::Acquire) {
            self.driver.end();
        } else {
            self.driver.turn(Duration::ZERO);
        }
    }

    /// # Errors
    /// The first thing that does not hold of every pool between two turns, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.driver.check_invariants()
    }

    /// The logical pages of a pool.
    pub fn pages(&self, pool: PoolId) -> Option<&PagePool> {
        self.driver.pools.get(pool.0 as usize).map(|pool| pool.pages())
    }

    pub fn running(&self, pool: PoolId) -> Option<RunningStep> {
        let (ticket, rows) = self.driver.pools.get(pool.0 as usize)?.runner.running_rows()?;
        Some(RunningStep { ticket, rows })
    }

    /// Every sequence that is somewhere, with its pool; one in hand-off is in both.
    pub fn places(&self) -> Vec<(SeqId, PoolId, Place)> {
        let mut places = Vec::new();
        for (id, pool) in (0..).map(PoolId).zip(&self.driver.pools) {
            let running = pool.runner.running_rows().map(|(_, rows)| rows).unwrap_or_default();
            let states = match &pool.scheduler {
                Scheduler::Prefill(scheduler) => scheduler.states(),
                Scheduler::Decode(scheduler) => scheduler.states(),
            };
            places.extend(states.into_iter().map(|(seq, state)| (seq, id, Place::of(state, running.contains(&seq)))));
        }
        places
    }

    /// The pages that a pool has for a sequence.
    pub fn table(&self, pool: PoolId, seq: SeqId) -> Vec<PageRef> {
        match self.driver.pools.get(pool.0 as usize).map(|pool| &pool.scheduler) {
            Some(Scheduler::Prefill(scheduler)) => scheduler.table(seq),
            Some(Scheduler::Decode(scheduler)) => scheduler.table(seq),
            None => Vec::new(),
        }
    }

    /// Hands a page of a sequence out again while the sequence still uses it, as a bug in the pool would. `None` if it has no such page
    /// there any more.
    pub fn steal(&mut self, pool: PoolId, seq: SeqId, index: usize) -> Option<PageRef> {
        match &mut self.driver.pools.get_mut(pool.0 as usize)?.scheduler {
            Scheduler::Prefill(scheduler) => scheduler.steal_page(seq, index),
            Scheduler::Decode(scheduler) => scheduler.steal_page(seq, index),
        }
    }

    /// The new owners of all stolen pages give them back.
    pub fn return_stolen(&mut self) {
        self.driver.return_stolen();
    }

    /// Sequences of a pool whose tables name this page, under whatever tag.
    pub fn readers(&self, pool: PoolId, page: PageId) -> Vec<SeqId> {
        match self.driver.pools.get(pool.0 as usize).map(|pool| &pool.scheduler) {
            Some(Scheduler::Prefill(scheduler)) => scheduler.readers(page),
            Some(Scheduler::Decode(scheduler)) => scheduler.readers(page),
            None => Vec::new(),
        }
    }

    /// Takes every page back into use that is under suspicion, as an operator would.
    pub fn readmit_all(&mut self) -> u32 {
        self.driver.pools.iter_mut().map(|pool| pool.readmit_all()).sum()
    }

    /// Empties the prefix trees; tells the devices with the next turn.
    pub fn forget_prefixes(&mut self) {
        for pool in &mut self.driver.pools {
            if let Scheduler::Prefill(scheduler) = &mut pool.scheduler {
                scheduler.forget_prefixes();
            }
        }
    }

    /// Switches a guard of every pool off for good, so that a test can show that it sees what the guard prevents.
    pub fn switch_off(&mut self, guard: Guard) {
        for pool in &mut self.driver.pools {
            match &mut pool.scheduler {
                Scheduler::Prefill(scheduler) => scheduler.switch_off(guard),
                Scheduler::Decode(scheduler) => scheduler.switch_off(guard),
            }
        }
    }
}
