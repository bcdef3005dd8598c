//! A real engine on the CPU for measuring, with its native schedule, fed with token ids: one prefill pool, and a decode pool and a lane
//! for each way in which decode is measured.

mod build;
mod prompts;
mod stamps;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use millrace_core::{Clock, LaneId, PoolId, Precision, RequestId, SamplingParams, SeqId, StagePrecision, TenantId};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
use millrace_engine::{EngineHandle, EngineSpec, Event, Hold, Job, TagChecks};
use millrace_kv::PrefixScope;
use millrace_model::{Architecture, Checkpoint, WeightCache};
use millrace_ops::Backend;

pub(super) use build::{Parts, native_schedule};
pub(super) use prompts::Ids;

use super::memory;
use super::profile::Profile;
use super::room::{LESS_OF_ENGINE, LESS_OF_KV, PAGE_TOKENS, Room, Wanted};
use crate::Failure;
use build::{cost, row};
use stamps::{PATIENCE, Stamp, Stamped, Stamps, wait_for};

pub(crate) struct LaneOptions {
    pub(crate) precision: Precision,
    pub(crate) threads: usize,
    pub(super) wanted: Wanted,
    /// A decode pool and a lane for each.
    pub(super) tags: Vec<TagChecks>,
    pub(super) profile: Profiling,
    /// Of a decode pool; none: what the tests need.
    pub(super) pool_bytes: Option<u64>,
    pub(super) prompts: Prompts,
    pub(super) tenants: usize,
}

/// Whether the device measures its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profiling {
    Off,
    On,
}

/// Whether the prefill pool keeps the pages of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prompts {
    Fresh,
    Kept,
}

/// Streams that decode together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Streams {
    pub(super) batch: usize,
    /// Tokens of each stream's prompt.
    pub(super) depth: usize,
    /// Tokens of each stream, the one of prefill included.
    pub(super) output: usize,
}

/// One run of a test.
pub(super) struct Run {
    pub(super) tokens_per_second: f64,
    /// Of all streams, in microseconds; 0 of prefill.
    pub(super) itl_p95_us: f64,
    pub(super) profile: Profile,
}

/// One sequence to run.
pub(super) struct Ask {
    pub(super) lane: LaneId,
    pub(super) tenant: TenantId,
    pub(super) scope: Option<PrefixScope>,
    pub(super) prompt: Arc<[u32]>,
    pub(super) output: usize,
}

/// How one prompt went through prefill.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct First {
    /// From submission to the first token.
    pub(super) ttft: Duration,
    /// Prompt tokens that were found in the prefix tree.
    pub(super) cached_tokens: u32,
    /// Input tokens of the prefill pool's steps meanwhile.
    pub(super) computed_tokens: u64,
}

pub(crate) struct BenchLane {
    engine: EngineHandle,
    backend: Arc<dyn Backend>,
    models: [Arc<dyn Architecture>; 2],
    description: String,
    threads: usize,
    load: Duration,
    weight_bytes: usize,
    decode_pool: (u32, u64),
    next_seq: AtomicU64,
}

/// Time since this process asked first.
pub(super) struct BenchClock(pub(super) Instant);

impl Clock for BenchClock {
    fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Row of the prefill pool; the decode pools follow in the order of the lanes.
const PREFILL: PoolId = PoolId(0);
/// How often to look whether all streams are in place.
const LOOK: Duration = Duration::from_millis(1);

fn decode_pool(lane: usize) -> PoolId {
    PoolId(u32::try_from(lane + 1).unwrap_or(u32::MAX))
}

impl BenchLane {
    /// # Errors
    /// Usage where a test exceeds the model's context or the machine's memory.
    pub(crate) fn start(path: &Path, options: &LaneOptions) -> Result<Self, Failure> {
        let began = Instant::now();
        let checkpoint = Checkpoint::open(path)?;
        let room = options.wanted.room(millrace_model::spec_of(checkpoint.config())?.max_tokens).map_err(Failure::Usage)?;
        let threads = if options.threads == 0 { millrace_cpu::available_threads() } else { options.threads };
        let cpu = CpuBackend::new(CpuOptions { threads, compute: CpuCompute::Fast, isa: None })?;
        if options.profile == Profiling::On {
            cpu.measure_operations();
        }
        let backend: Arc<dyn Backend> = Arc::new(cpu);
        let device = backend.describe();
        let mut cache = WeightCache::default();
        let mut model = |stage: StagePrecision| -> Result<Arc<dyn Architecture>> {
            Ok(millrace_model::load(&checkpoint, backend.as_ref(), stage.recipe, &mut cache)?.into())
        };
        let models = [model(options.precision.prefill)?, model(options.precision.decode)?];
        let weight_bytes = cache.bytes();
        let load = began.elapsed();
        let page_bytes = models[1].kv_layout(options.precision.decode.kv, PAGE_TOKENS).page_bytes() as u64;
        let room = match options.pool_bytes {
            Some(bytes) => Room { decode_pages: u32::try_from(bytes / page_bytes).unwrap_or(u32::MAX), ..room },
            None => room,
        };
        let parts = Parts { options, room, backend: &backend, digest: checkpoint.digest(), models: &models };
        let pools = parts.pools();
        let relief = if options.pool_bytes.is_some() { LESS_OF_KV } else { LESS_OF_ENGINE };
        cost(&pools, room).check(room, memory::available_bytes().unwrap_or(u64::MAX), relief).map_err(Failure::Usage)?;
        let engine = millrace_engine::start(EngineSpec {
            pools,
            lanes: parts.lanes(),
            tenants: vec![millrace_scheduler::TenantShare { weight: 1, tier: 1 }; options.tenants],
            schedule: Arc::new(native_schedule()),
            clock: Arc::new(BenchClock(Instant::now())),
            boot_nonce: 1,
        })
        .context("cannot start the engine")?;
        let description = format!(
            "{} on {} ({}, {} threads), {}, {:.1} MiB of weights loaded in {:.2} s",
            checkpoint.summary(),
            device.name,
            device.architecture,
            device.threads,
            options.precision,
            weight_bytes as f64 / f64::from(1 << 20),
            load.as_secs_f64()
        );
        let next_seq = AtomicU64::new(1);
        let (threads, decode_pool) = (device.threads, (room.decode_pages, page_bytes));
        Ok(Self { engine, backend, models, description, threads, load, weight_bytes, decode_pool, next_seq })
    }

    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn load_seconds(&self) -> f64 {
        self.load.as_secs_f64()
    }

    pub(crate) fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The device that all pools share.
    pub(super) fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    pub(super) fn ids(&self) -> Ids {
        Ids(self.models[0].vocab())
    }

    /// Pages of a decode pool, and bytes of each.
    pub(super) fn decode_pool(&self) -> (u32, u64) {
        self.decode_pool
    }

    /// One prompt's prefill.
    pub(super) fn prefill(&self, tokens: usize) -> Result<Run> {
        let before = self.profile(PREFILL);
        let first = self.first(self.fresh(tokens, 1))?;
        let tokens_per_second = tokens as f64 / first.ttft.as_secs_f64();
        Ok(Run { tokens_per_second, itl_p95_us: 0.0, profile: self.profile(PREFILL).since(&before) })
    }

    /// One prompt on an idle engine. With more than one token of output, all its prefill has been counted by the end.
    pub(super) fn first(&self, ask: Ask) -> Result<First> {
        let computed = || self.engine.snapshot().pools.get(row(PREFILL)).map_or(0, |pool| pool.computed_tokens);
        let before = computed();
        let began = Instant::now();
        let events = self.submit([ask])?;
        let (_, prefilled) = wait_for(&events, |event| matches!(event, Event::Prefilled { .. }))?;
        let (at, _) = wait_for(&events, |event| matches!(event, Event::Token(_)))?;
        wait_for(&events, |event| matches!(event, Event::Finished(_)))?;
        let cached_tokens = if let Event::Prefilled { cached_tokens, .. } = prefilled { cached_tokens } else { 0 };
        Ok(First { ttft: at.duration_since(began), cached_tokens, computed_tokens: computed() - before })
    }

    /// All streams together, all of them in every step; every prompt is computed.
    pub(super) fn decode(&self, streams: Streams) -> Result<Run> {
        self.decode_in(LaneId(0), streams.output, (0..streams.batch).map(|_| self.fresh(streams.depth, streams.output)))
    }

    /// The same of one lane's decode pool, for asks of `output` tokens each.
    pub(super) fn decode_in(&self, lane: LaneId, output: usize, asks: impl ExactSizeIterator<Item = Ask>) -> Result<Run> {
        let pool = decode_pool(lane.0 as usize);
        let batch = asks.len();
        let handed_off = self.engine.snapshot().counters.hand_offs + batch as u64;
        self.engine.hold(pool, Hold::Held);
        let events = self.submit(asks)?;
        let mut stamps = Stamps::new(batch, output);
        while !stamps.all_began() {
            stamps.note(&events)?;
        }
        let began = Instant::now();
        while self.engine.snapshot().counters.hand_offs < handed_off {
            ensure!(began.elapsed() < PATIENCE, "the streams did not all reach the decode pool");
            std::thread::sleep(LOOK);
        }
        let before = self.profile(pool);
        self.engine.hold(pool, Hold::Free);
        while !stamps.all_ended() {
            stamps.note(&events)?;
        }
        let (tokens_per_second, itl_p95_us) = (stamps.rate(output)?, stamps.itl_p95_us());
        Ok(Run { tokens_per_second, itl_p95_us, profile: self.profile(pool).since(&before) })
    }

    /// What the pool and the device have counted so far.
    fn profile(&self, pool: PoolId) -> Profile {
        let snapshot = self.engine.snapshot();
        let (steps, phases) = snapshot.pools.get(row(pool)).map_or_else(Default::default, |p| (p.steps, p.phases));
        Profile { steps, phases, operations: self.backend.operation_times() }
    }

    /// A prompt that nobody has sent, and that nobody can share: every token of it is computed.
    pub(super) fn fresh(&self, tokens: usize, output: usize) -> Ask {
        let prompt = self.ids().text(self.next_seq.load(Ordering::Relaxed), tokens);
        Ask { lane: LaneId(0), tenant: TenantId(0), scope: None, prompt, output }
    }

    pub(super) fn submit(&self, asks: impl IntoIterator<Item = Ask>) -> Result<Receiver<Stamped>> {
        let (sender, receiver) = channel();
        for (stream, ask) in asks.into_iter().enumerate() {
            let seq = self.next_seq.fetch_add(1, Ordering::Relaxed);
            self.engine.submit(Job {
                seq: SeqId(seq),
                request: RequestId(seq),
                lane: ask.lane,
                tenant: ask.tenant,
                priority: 0,
                deadline_us: None,
                prompt: ask.prompt,
                scope: ask.scope,
                sampling: greedy(ask.output),
                events: Box::new(Stamp(sender.clone(), stream)),
            })?;
        }
        Ok(receiver)
    }
}

impl Drop for BenchLane {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

pub(super) fn greedy(output: usize) -> SamplingParams {
    let max_tokens = u32::try_from(output).unwrap_or(u32::MAX);
    SamplingParams::greedy(max_tokens, Vec::new())
}
