//! What worlds are made from and may share: a loaded model, memory, prompts with their answers. Knows no faults.

use std::sync::Arc;

use millrace_core::{Clock, KvFormat, LaneId, PoolId, Precision, Stage, StagePrecision, StageRecipe};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
use millrace_engine::{EngineSpec, LaneSpec, PoolSpec, StageLane, StageSpec, SteppedEngine, TagChecks};
use millrace_kv::{PrefixOptions, ZeroFreed};
use millrace_model::Architecture;
use millrace_ops::{Backend, Priority};
use millrace_policy::ScheduleSlot;
use millrace_scheduler::{StageLimits, TenantShare};
use millrace_transfer::tcp::Port;

use crate::clock::VirtualClock;
use crate::device::cpu::CpuMachine;
use crate::device::fake::{FakeMachine, WriteFence};
use crate::device::fake_memory::FakeBackend;
use crate::device::machine::Machine;
use crate::device::{ChecksLeftOut, Device, SimBackend};
use crate::model::{FAKE_MAX_TOKENS, MAX_TOKENS, Size, tiny};
use crate::processes::Life;
use crate::workload::{Prompts, TENANTS};
use crate::{GuardOff, SimError, solo};

/// What runs the operations of steps and copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// Pages hold who wrote what for whom; every read is judged. No arithmetic, so runs are many.
    Fake,
    /// The CPU backend with reference compute on a tiny model.
    Cpu,
}

impl EngineKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Fake => "fake",
            Self::Cpu => "cpu",
        }
    }
}

/// The bounds of one world's engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) page_tokens: u32,
    /// Of the prefill pool and of each decode pool.
    pub(crate) pages: [u32; 2],
    pub(crate) limits: StageLimits,
    pub(crate) chunk: u32,
    /// Pages that a tenant may have in the prefix tree; `None`: no tree.
    pub(crate) owner_pages: Option<u32>,
    pub(crate) max_waiting: usize,
    /// Of the tenants.
    pub(crate) weights: [u32; TENANTS as usize],
}

/// Pools of every world: one that prefills, two that decode, each in a lane.
pub(crate) const POOLS: [Stage; 3] = [Stage::Prefill, Stage::Decode, Stage::Decode];
/// Prefill and decode pool of each lane.
pub(crate) const LANES: [[u32; 2]; 2] = [[0, 1], [0, 2]];

/// See the module. Worlds of one lab do not disturb each other.
pub struct Lab {
    pub(crate) kind: EngineKind,
    model: Arc<dyn Architecture>,
    digest: String,
    memory: Arc<dyn Backend>,
    pub(crate) prompts: Prompts,
}

impl Lab {
    /// # Errors
    /// The model cannot be made or loaded.
    pub fn new(kind: EngineKind) -> Result<Self, SimError> {
        let (memory, size): (Arc<dyn Backend>, Size) = match kind {
            EngineKind::Fake => (Arc::new(FakeBackend), Size { layers: 1, max_tokens: FAKE_MAX_TOKENS }),
            EngineKind::Cpu => {
                let options = CpuOptions { threads: 1, compute: CpuCompute::Reference, isa: None };
                (Arc::new(CpuBackend::new(options)?), Size { layers: 2, max_tokens: MAX_TOKENS })
            }
        };
        let (model, digest) = tiny(memory.as_ref(), size)?;
        let mut lab = Self { kind, model, digest, memory, prompts: Prompts::Free };
        if kind == EngineKind::Cpu {
            lab.prompts = Prompts::Catalogue(solo::catalogue(&lab)?);
        }
        Ok(lab)
    }

    /// An engine on a device of its own.
    pub(crate) fn engine(
        &self,
        shape: &Shape,
        off: Option<GuardOff>,
        schedule: Arc<ScheduleSlot>,
        (clock, boot_nonce): (&Arc<VirtualClock>, u16),
    ) -> Result<(SteppedEngine, Device), SimError> {
        let backend = self.backend(off);
        let device = backend.device();
        let backend: Arc<dyn Backend> = Arc::new(backend);
        let spec = EngineSpec {
            pools: POOLS.iter().enumerate().map(|(index, &stage)| self.pool(shape, off, (index, stage), &backend)).collect(),
            lanes: LANES.iter().enumerate().map(|(index, &pools)| lane(index, pools, shape.max_waiting)).collect(),
            tenants: shares(shape),
            schedule,
            clock: clock.clone() as Arc<dyn Clock>,
            boot_nonce,
        };
        let mut engine = SteppedEngine::new(spec)?;
        switch_off(&mut engine, off);
        Ok((engine, device))
    }

    /// The engine of one process, whose device is the others' too but for its queue.
    pub(crate) fn stage(&self, shape: &Shape, off: Option<GuardOff>, process: Process<'_>) -> Result<SteppedEngine, SimError> {
        let Process { life, schedule, clock, backend, boot_nonce } = process;
        let index = life.pool.0 as usize;
        let lanes = LANES.iter().enumerate().filter(|(_, pools)| pools.contains(&life.pool.0));
        let lane = |((index, _), port): ((usize, &[u32; 2]), Port)| StageLane {
            name: format!("lane{index}"),
            pool: PoolId(0),
            precision: Precision { prefill: precision(), decode: precision() },
            max_waiting: shape.max_waiting,
            incarnation: life.incarnation,
            port,
            model: "simulated".into(),
            wire: KvFormat::F32,
        };
        let spec = StageSpec {
            pools: vec![self.pool(shape, off, (index, POOLS[index]), backend)],
            lanes: lanes.zip(life.ports).map(lane).collect(),
            tenants: shares(shape),
            schedule,
            clock: clock.clone() as Arc<dyn Clock>,
            boot_nonce,
            sinks: life.sinks,
        };
        let mut engine = SteppedEngine::stage(spec)?;
        switch_off(&mut engine, off);
        Ok(engine)
    }

    pub(crate) fn backend(&self, off: Option<GuardOff>) -> SimBackend {
        let left_out = ChecksLeftOut { head: off == Some(GuardOff::HeadCheck), tail: off == Some(GuardOff::TailCheck) };
        let fence = if off == Some(GuardOff::WriteFence) { WriteFence::Off } else { WriteFence::On };
        let memory = self.memory.clone();
        let kind = self.kind;
        let make = move |priority: Priority| -> Box<dyn Machine> {
            match kind {
                EngineKind::Fake => Box::new(FakeMachine::new(fence)),
                EngineKind::Cpu => Box::new(CpuMachine::new(memory.as_ref(), priority)),
            }
        };
        SimBackend::new(self.memory.clone(), Box::new(make), left_out)
    }

    fn pool(&self, shape: &Shape, off: Option<GuardOff>, (index, stage): (usize, Stage), backend: &Arc<dyn Backend>) -> PoolSpec {
        let prefill = stage == Stage::Prefill;
        let limits = StageLimits {
            max_step_tokens: if prefill { shape.chunk } else { shape.limits.max_sequences },
            max_step_us: shape.limits.max_step_us.filter(|_| prefill),
            ..shape.limits
        };
        PoolSpec {
            name: format!("{stage}{index}"),
            stage,
            precision: precision(),
            model: self.model.clone(),
            backend: backend.clone(),
            kv: KvFormat::F32,
            pages: shape.pages[usize::from(!prefill)],
            page_tokens: shape.page_tokens,
            limits,
            zero_freed: if off == Some(GuardOff::Zeroing) { ZeroFreed::Keep } else { ZeroFreed::Zero },
            tag_checks: if off == Some(GuardOff::TagChecks) { TagChecks::Off } else { TagChecks::On },
            prefixes: shape.owner_pages.map(|owner_pages| PrefixOptions { owner_pages }),
            weights_digest: self.digest.clone(),
        }
    }
}

/// What one process is made of beside its bounds.
pub(crate) struct Process<'a> {
    pub(crate) life: Life,
    pub(crate) schedule: Arc<ScheduleSlot>,
    pub(crate) clock: &'a Arc<VirtualClock>,
    pub(crate) backend: &'a Arc<dyn Backend>,
    pub(crate) boot_nonce: u16,
}

fn shares(shape: &Shape) -> Vec<TenantShare> {
    shape.weights.map(|weight| TenantShare { weight, tier: 1 }).into()
}

fn switch_off(engine: &mut SteppedEngine, off: Option<GuardOff>) {
    match off {
        Some(GuardOff::Quarantine) => engine.switch_off(millrace_kv::Guard::Quarantine),
        Some(GuardOff::Scope) => engine.switch_off(millrace_kv::Guard::Scope),
        _ => {}
    }
}

fn precision() -> StagePrecision {
    StagePrecision { recipe: StageRecipe::Stored, kv: KvFormat::F32 }
}

fn lane(index: usize, [prefill, decode]: [u32; 2], max_waiting: usize) -> LaneSpec {
    LaneSpec {
        name: format!("lane{}", LaneId(index as u32)),
        prefill: PoolId(prefill),
        decode: PoolId(decode),
        precision: Precision { prefill: precision(), decode: precision() },
        max_waiting,
    }
}
