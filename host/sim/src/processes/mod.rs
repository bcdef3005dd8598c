//! The engines of a world, however they are put together: one process with every pool, or one for each pool with messages between
//! them. A world names pools by their number in either. Knows no faults but those of the network, and no right answer.

mod apart;
mod desk;
mod line;

use std::sync::Arc;

use millrace_core::{LaneId, PoolId, RequestId, SamplingParams, SeqId, TenantId};
use millrace_engine::{EventSink, Job, Place, RunningStep, SteppedEngine, SubmitError};
use millrace_kv::{PageId, PagePool, PageRef, PrefixScope};

pub(crate) use apart::{Apart, Life};
pub(crate) use line::Trouble;

/// A sequence as its client asks for it.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) seq: SeqId,
    pub(crate) lane: u32,
    pub(crate) tenant: u32,
    pub(crate) priority: i32,
    pub(crate) deadline_us: Option<u64>,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) scope: Option<PrefixScope>,
    pub(crate) sampling: SamplingParams,
}

impl Wanted {
    fn job(&self, events: Box<dyn EventSink>) -> Job {
        Job {
            seq: self.seq,
            request: RequestId(self.seq.0),
            lane: LaneId(self.lane),
            tenant: TenantId(self.tenant),
            priority: self.priority,
            deadline_us: self.deadline_us,
            prompt: self.prompt.clone(),
            scope: self.scope,
            sampling: self.sampling.clone(),
            events,
        }
    }
}

/// See the module.
pub(crate) enum Processes {
    One(Box<SteppedEngine>),
    Apart(Box<Apart>),
}

/// What engines counted, all lives of them together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) preemptions: u64,
    pub(crate) hand_offs: u64,
}

impl Counted {
    fn of(engine: &SteppedEngine) -> Self {
        let counters = engine.handle().snapshot().counters;
        Self { preemptions: counters.preemptions, hand_offs: counters.hand_offs }
    }

    fn plus(self, other: Self) -> Self {
        Self { preemptions: self.preemptions + other.preemptions, hand_offs: self.hand_offs + other.hand_offs }
    }
}

impl Processes {
    /// The engine that has a pool, and the pool's number there.
    fn of(&self, pool: PoolId) -> (&SteppedEngine, PoolId) {
        match self {
            Self::One(engine) => (engine.as_ref(), pool),
            Self::Apart(apart) => (apart.engine(pool), PoolId(0)),
        }
    }

    fn of_mut(&mut self, pool: PoolId) -> (&mut SteppedEngine, PoolId) {
        match self {
            Self::One(engine) => (engine.as_mut(), pool),
            Self::Apart(apart) => (apart.engine_mut(pool), PoolId(0)),
        }
    }

    fn all_mut(&mut self) -> &mut [SteppedEngine] {
        match self {
            Self::One(engine) => std::slice::from_mut(engine.as_mut()),
            Self::Apart(apart) => apart.engines_mut(),
        }
    }

    fn all(&self) -> &[SteppedEngine] {
        match self {
            Self::One(engine) => std::slice::from_ref(engine.as_ref()),
            Self::Apart(apart) => apart.engines(),
        }
    }

    /// # Errors
    /// As for an engine's handle.
    pub(crate) fn submit(&mut self, wanted: Wanted, events: Box<dyn EventSink>) -> Result<(), SubmitError> {
        match self {
            Self::One(engine) => engine.handle().submit(wanted.job(events)),
            Self::Apart(apart) => apart.submit(wanted, events),
        }
    }

    pub(crate) fn abort(&mut self, seq: SeqId) {
        match self {
            Self::One(engine) => engine.handle().abort(seq),
            Self::Apart(apart) => apart.abort(seq),
        }
    }

    /// Every engine once, and the network before them.
    pub(crate) fn turn(&mut self) {
        match self {
            Self::One(engine) => engine.turn(),
            Self::Apart(apart) => apart.turn(),
        }
    }

    pub(crate) fn counted(&self) -> Counted {
        match self {
            Self::One(engine) => Counted::of(engine),
            Self::Apart(apart) => apart.counted(),
        }
    }

    /// Nothing is on its way between engines.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::One(_) => true,
            Self::Apart(apart) => apart.is_settled(),
        }
    }

    /// What was seen between engines that must not be.
    pub(crate) fn take_violation(&mut self) -> Option<String> {
        match self {
            Self::One(_) => None,
            Self::Apart(apart) => apart.take_violation(),
        }
    }

    /// # Errors
    /// The first thing that does not hold of a pool, in words.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        self.all().iter().try_for_each(SteppedEngine::check_invariants)
    }

    pub(crate) fn pages(&self, pool: PoolId) -> Option<&PagePool> {
        let (engine, pool) = self.of(pool);
        engine.pages(pool)
    }

    pub(crate) fn running(&self, pool: PoolId) -> Option<RunningStep> {
        let (engine, pool) = self.of(pool);
        engine.running(pool)
    }

    pub(crate) fn places(&self) -> Vec<(SeqId, PoolId, Place)> {
        match self {
            Self::One(engine) => engine.places(),
            Self::Apart(apart) => {
                let engines = (0..).map(PoolId).zip(apart.engines());
                engines
                    .flat_map(|(pool, engine)| engine.places().into_iter().map(move |(seq, _, place)| (seq, pool, place)))
                    .collect()
            }
        }
    }

    pub(crate) fn table(&self, pool: PoolId, seq: SeqId) -> Vec<PageRef> {
        let (engine, pool) = self.of(pool);
        engine.table(pool, seq)
    }

    pub(crate) fn steal(&mut self, pool: PoolId, seq: SeqId, index: usize) -> Option<PageRef> {
        let (engine, pool) = self.of_mut(pool);
        engine.steal(pool, seq, index)
    }

    pub(crate) fn readers(&self, pool: PoolId, page: PageId) -> Vec<SeqId> {
        let (engine, pool) = self.of(pool);
        engine.readers(pool, page)
    }

    pub(crate) fn return_stolen(&mut self) {
        self.all_mut().iter_mut().for_each(SteppedEngine::return_stolen);
    }

    pub(crate) fn readmit_all(&mut self) {
        for engine in self.all_mut() {
            engine.readmit_all();
        }
    }

    pub(crate) fn forget_prefixes(&mut self) {
        self.all_mut().iter_mut().for_each(SteppedEngine::forget_prefixes);
    }
}
