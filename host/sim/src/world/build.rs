//! How a seed becomes a world: sizes of pools, bounds of steps, who decides. Small, so that everything is short now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use millrace_engine::SteppedEngine;
use millrace_scheduler::StageLimits;

use super::{World, WorldOptions};
use crate::clock::VirtualClock;
use crate::device::Device;
use crate::lab::{EngineKind, Lab, Shape};
use crate::policy::{Mood, PolicyChoice, SharedMood, slot};
use crate::rng::Rng;
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
        let guest = rng.one_in(8);
        let (engine, device) = build_engine(lab, options, &shape, (&mood, &clock, guest, 1))?;
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
            boot_nonce: 1,
            taken: BTreeSet::new(),
            thefts: false,
            suspicion: false,
            not_finite: BTreeSet::new(),
            copies_held_until: BTreeMap::new(),
            last_rows: BTreeMap::new(),
            quiet: false,
            turns: 0,
            tally: Tally::default(),
            violation: None,
        })
    }

    /// The process is gone, with all that it knew; another one begins on memory of its own.
    pub(super) fn begin_again(&mut self) -> Result<(), SimError> {
        self.count_engine();
        self.boot_nonce += 1;
        let guest = self.rng.one_in(8);
        let (engine, device) =
            build_engine(self.lab, self.options, &self.shape, (&self.mood, &self.clock, guest, self.boot_nonce))?;
        (self.engine, self.device) = (engine, device);
        self.taken.clear();
        self.not_finite.clear();
        self.copies_held_until.clear();
        (self.thefts, self.suspicion) = (false, false);
        Ok(())
    }
}

fn build_engine(
    lab: &Lab,
    options: &WorldOptions,
    shape: &Shape,
    (mood, clock, guest, boot_nonce): (&SharedMood, &Arc<VirtualClock>, bool, u16),
) -> Result<(SteppedEngine, Device), SimError> {
    let choice = options.policy.unwrap_or(if guest { PolicyChoice::Guest } else { PolicyChoice::Native });
    let schedule = Arc::new(slot(choice, mood, clock)?);
    lab.engine(shape, options.off, schedule, (clock, boot_nonce))
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
    }
}
