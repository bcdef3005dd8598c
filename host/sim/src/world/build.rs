//! How a seed becomes a world: sizes of pools, bounds of steps, who decides. Small, so that everything is short now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use millrace_core::{PoolId, SeqId};
use millrace_engine::SteppedEngine;
use millrace_ops::Backend;
use millrace_policy::ScheduleSlot;
use millrace_scheduler::StageLimits;

use super::{Transport, World, WorldOptions};
use crate::clock::VirtualClock;
use crate::device::Device;
use crate::lab::{EngineKind, Lab, Process, Shape};
use crate::policy::{Mood, PolicyChoice, SharedMood, slot};
use crate::processes::{Apart, Life, Processes};
use crate::rng::Rng;
use crate::trace::Trace;
use crate::workload::TENANTS;
use crate::{FaultKind, SimError, Tally};

const POLICY_FAULTS: [FaultKind; 4] =
    [FaultKind::PolicyTrap, FaultKind::PolicyTimeout, FaultKind::PolicyGarbage, FaultKind::PolicyIdle];

impl<'a> World<'a> {
    pub(super) fn new(lab: &'a Lab, seed: u64, options: &'a WorldOptions) -> Result<Self, SimError> {
        let mut rng = Rng::new(seed);
        let shape = shape(&mut rng, lab.kind);
        Self::shaped(lab, (rng, shape), options)
    }

    /// With an engine of these bounds.
    pub(super) fn shaped(lab: &'a Lab, (mut rng, shape): (Rng, Shape), options: &'a WorldOptions) -> Result<Self, SimError> {
        let clock = Arc::new(VirtualClock::default());
        let faults: Vec<FaultKind> = POLICY_FAULTS.into_iter().filter(|kind| options.faults.contains(kind)).collect();
        let per_mille = if faults.is_empty() { 0 } else { options.per_mille * 4 };
        let mood = Mood { per_mille, faults, rng: Rng::new(rng.next()), done: Vec::new(), answers: 0 };
        let mood: SharedMood = Arc::new(Mutex::new(mood));
        let choice = options.policy.choose(&mut rng);
        let transport = options.transport.choose(&mut rng);
        let mut making =
            Making { lab, options, shape, mood: mood.clone(), clock: clock.clone(), choice, boot_nonce: 0, backend: None };
        let (engine, device) = making.begin(transport, &mut rng)?;
        Ok(Self {
            lab,
            options,
            shape,
            rng,
            clock,
            mood,
            engine,
            device,
            clients: BTreeMap::new(),
            live: BTreeSet::new(),
            mailbox: Arc::default(),
            to_come: options.requests,
            next_seq: 1,
            making,
            taken: BTreeSet::new(),
            thefts: false,
            suspected: BTreeMap::new(),
            not_finite: BTreeSet::new(),
            copies_held_until: BTreeMap::new(),
            last_rows: BTreeMap::new(),
            quiet: false,
            turns: 0,
            tally: Tally::default(),
            trace: Trace::default(),
            violation: None,
        })
    }

    /// A process is gone, with all that it knew, and another one begins on memory of its own: that of this pool, or of all where there
    /// is one. Those are named that end with it.
    pub(super) fn begin_again(&mut self, pool: usize) -> Result<Vec<SeqId>, SimError> {
        self.making.choice = self.options.policy.choose(&mut self.rng);
        if let Processes::Apart(apart) = &mut self.engine {
            self.device.replace(pool);
            let making = &mut self.making;
            let over = apart.replace(PoolId(pool as u32), &mut |life| making.stage(life))?;
            self.forget_pools(|of| of == pool);
            return Ok(over);
        }
        self.count_engine();
        let (engine, device) = self.making.begin(Transport::InProcess, &mut self.rng)?;
        (self.engine, self.device) = (engine, device);
        self.forget_pools(|_| true);
        Ok(self.live.iter().copied().collect())
    }

    /// What was noted of pools that are others now.
    fn forget_pools(&mut self, gone: impl Fn(usize) -> bool) {
        self.taken.retain(|(pool, ..)| !gone(*pool as usize));
        self.not_finite.retain(|(pool, ..)| !gone(*pool as usize));
        self.suspected.retain(|pool, _| !gone(pool.0 as usize));
        self.copies_held_until.retain(|&queue, _| !gone(queue));
        self.last_rows.retain(|&queue, _| !gone(queue));
    }
}

/// How a world's engines are made, at its beginning and again.
pub(super) struct Making<'a> {
    lab: &'a Lab,
    options: &'a WorldOptions,
    shape: Shape,
    mood: SharedMood,
    clock: Arc<VirtualClock>,
    choice: PolicyChoice,
    /// Lives of processes so far: part of every tag.
    boot_nonce: u16,
    /// Of all processes, where there are several.
    backend: Option<Arc<dyn Backend>>,
}

impl Making<'_> {
    fn begin(&mut self, transport: Transport, rng: &mut Rng) -> Result<(Processes, Device), SimError> {
        if transport == Transport::InProcess {
            let schedule = self.schedule()?;
            let (engine, device) = self.lab.engine(&self.shape, self.options.off, schedule, (&self.clock, self.boot_nonce))?;
            return Ok((Processes::One(Box::new(engine)), device));
        }
        let backend = self.lab.backend(self.options.off);
        let device = backend.device();
        self.backend = Some(Arc::new(backend));
        let rng = Rng::new(rng.next());
        let apart = Apart::new(rng, &mut |life| self.stage(life))?;
        Ok((Processes::Apart(Box::new(apart)), device))
    }

    fn stage(&mut self, life: Life) -> Result<SteppedEngine, SimError> {
        let schedule = self.schedule()?;
        let backend = self.backend.as_ref().ok_or_else(|| SimError::Alone("processes without a device".into()))?;
        let process = Process { life, schedule, clock: &self.clock, backend, boot_nonce: self.boot_nonce };
        self.lab.stage(&self.shape, self.options.off, process)
    }

    /// Of another life.
    fn schedule(&mut self) -> Result<Arc<ScheduleSlot>, SimError> {
        self.boot_nonce += 1;
        Ok(Arc::new(slot(self.choice, &self.mood, &self.clock)?))
    }
}

fn shape(rng: &mut Rng, kind: EngineKind) -> Shape {
    // The CPU's kernels want pages of 16; fewer of them make the same pressure.
    let (page_tokens, pages, more) = match kind {
        EngineKind::Fake => (4, 10, 20),
        EngineKind::Cpu => (16, 6, 8),
    };
    let max_waiting = 3 + rng.below(12);
    let max_step_us = rng.one_in(3).then_some(1_000);
    let limits = StageLimits {
        max_step_tokens: 0,
        max_step_us,
        max_sequences: 2 + rng.below(7),
        max_resident: 2 + rng.below(8),
        // Both lanes wait in one prefill pool.
        max_waiting: 2 * max_waiting,
        max_context: 40 + rng.below(60),
        watermark_pages: rng.below(3),
        max_preemptions: 1 + rng.below(3),
        max_view_rows: 2 + rng.below(16),
        step_us_hint: 1000,
    };
    Shape {
        page_tokens,
        pages: [pages + rng.below(more), pages + rng.below(more)],
        limits,
        chunk: 4 + rng.below(28),
        owner_pages: (!rng.one_in(5)).then(|| if rng.one_in(3) { rng.below(8) } else { u32::MAX }),
        max_waiting: max_waiting as usize,
        weights: [1; TENANTS as usize],
    }
}
