//! One lane on the CPU for measuring: a real engine with its native schedule, fed with token ids.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use millrace_core::{Clock, LaneId, PoolId, Precision, RequestId, SamplingParams, SeqId, Stage, StagePrecision, TenantId};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
use millrace_engine::{EngineHandle, EngineSpec, Event, EventSink, Hold, Job, LaneSpec, PoolSpec, TagChecks};
use millrace_model::{Architecture, Checkpoint, WeightCache};
use millrace_ops::Backend;
use millrace_policy::{BreakerSettings, FairSchedule, PolicyInfo, ScheduleSlot};
use millrace_scheduler::StageLimits;

use super::memory;
use super::profile::Profile;
use super::room::{Cost, LESS_OF_ENGINE, LESS_OF_KV, PAGE_TOKENS, Room, Wanted};
use crate::Failure;

pub(crate) struct LaneOptions {
    pub(crate) precision: Precision,
    pub(crate) threads: usize,
    pub(super) wanted: Wanted,
    pub(crate) tags: bool,
    pub(super) profile: Profiling,
    /// Of the decode pool; none: what the tests need.
    pub(super) pool_bytes: Option<u64>,
}

/// Whether the device measures its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profiling {
    Off,
    On,
}

/// One run of a test.
pub(super) struct Run {
    pub(super) tokens_per_second: f64,
    pub(super) profile: Profile,
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
struct BenchClock(Instant);

impl Clock for BenchClock {
    fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Sends each event with the time it was published.
struct Stamp(Sender<(usize, Instant, Event)>, usize);

impl EventSink for Stamp {
    fn emit(&mut self, event: Event) {
        // A test that has seen enough drops its end.
        let _ = self.0.send((self.1, Instant::now(), event));
    }
}

/// Rows of the lane's two pools.
const PREFILL: PoolId = PoolId(0);
const DECODE: PoolId = PoolId(1);
/// How often to look whether all streams are in place.
const LOOK: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(600);

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
        let parts = Parts { options, room, backend: &backend, digest: checkpoint.digest() };
        let pools = vec![parts.pool(Stage::Prefill, &models[0]), parts.pool(Stage::Decode, &models[1])];
        let relief = if options.pool_bytes.is_some() { LESS_OF_KV } else { LESS_OF_ENGINE };
        cost(&pools, room).check(room, memory::available_bytes().unwrap_or(u64::MAX), relief).map_err(Failure::Usage)?;
        let lane = LaneSpec {
            name: "bench".into(),
            prefill: PREFILL,
            decode: DECODE,
            precision: options.precision,
            max_waiting: room.streams as usize + 1,
        };
        let engine = millrace_engine::start(EngineSpec {
            pools,
            lanes: vec![lane],
            tenants: vec![millrace_scheduler::TenantShare { weight: 1, tier: 1 }],
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

    /// Pages of the decode pool, and bytes of each.
    pub(super) fn decode_pool(&self) -> (u32, u64) {
        self.decode_pool
    }

    /// One prompt's prefill.
    pub(super) fn prefill(&self, tokens: usize) -> Result<Run> {
        let before = self.profile(PREFILL);
        let began = Instant::now();
        let events = self.submit(1, tokens, 1)?;
        let first = wait_for(&events, |event| matches!(event, Event::Token(_)))?;
        wait_for(&events, |event| matches!(event, Event::Finished(_)))?;
        let tokens_per_second = tokens as f64 / first.duration_since(began).as_secs_f64();
        Ok(Run { tokens_per_second, profile: self.profile(PREFILL).since(&before) })
    }

    /// All streams together, all of them in every step.
    pub(super) fn decode(&self, batch: usize, depth: usize, output: usize) -> Result<Run> {
        let handed_off = self.engine.snapshot().counters.hand_offs + batch as u64;
        self.engine.hold(DECODE, Hold::Held);
        let events = self.submit(batch, depth, output)?;
        let mut stamps: Vec<Vec<Instant>> = vec![Vec::with_capacity(output); batch];
        let mut running = batch;
        while stamps.iter().any(Vec::is_empty) {
            note(&events, &mut stamps, &mut running)?;
        }
        let began = Instant::now();
        while self.engine.snapshot().counters.hand_offs < handed_off {
            ensure!(began.elapsed() < PATIENCE, "the streams did not all reach the decode pool");
            std::thread::sleep(LOOK);
        }
        let before = self.profile(DECODE);
        self.engine.hold(DECODE, Hold::Free);
        while running > 0 {
            note(&events, &mut stamps, &mut running)?;
        }
        Ok(Run { tokens_per_second: rate(&stamps, output)?, profile: self.profile(DECODE).since(&before) })
    }

    /// What the pool and the device have counted so far.
    fn profile(&self, pool: PoolId) -> Profile {
        let snapshot = self.engine.snapshot();
        let (steps, phases) = snapshot.pools.get(pool.0 as usize).map_or_else(Default::default, |p| (p.steps, p.phases));
        Profile { steps, phases, operations: self.backend.operation_times() }
    }

    fn submit(&self, batch: usize, tokens: usize, output: usize) -> Result<Receiver<(usize, Instant, Event)>> {
        let (sender, receiver) = channel();
        let vocab = self.models[0].vocab() as u64;
        for stream in 0..batch {
            let seq = self.next_seq.fetch_add(1, Ordering::Relaxed);
            // Different ids per stream and position, all of them ordinary tokens.
            let prompt: Vec<u32> =
                (0..tokens as u64).map(|i| (1000 + (seq * 7919 + i * 104_729) % (vocab / 2)) as u32 % vocab as u32).collect();
            self.engine.submit(Job {
                seq: SeqId(seq),
                request: RequestId(seq),
                lane: LaneId(0),
                tenant: TenantId(0),
                priority: 0,
                deadline_us: None,
                prompt: prompt.into(),
                // Every prompt is computed: that is what is measured.
                scope: None,
                sampling: greedy(output),
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

/// The host's own order, so that the numbers are the engine's.
fn native_schedule() -> ScheduleSlot {
    ScheduleSlot::new(Box::new(FairSchedule), PolicyInfo::native("fair"), BreakerSettings::default())
}

fn greedy(output: usize) -> SamplingParams {
    let max_tokens = u32::try_from(output).unwrap_or(u32::MAX);
    SamplingParams { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 0, max_tokens, stop_tokens: Vec::new() }
}

fn wait_for(events: &Receiver<(usize, Instant, Event)>, wanted: impl Fn(&Event) -> bool) -> Result<Instant> {
    loop {
        let (_, at, event) = events.recv_timeout(PATIENCE).context("the engine went silent")?;
        if let Event::Failed(error) = &event {
            bail!("the sequence failed: {error}");
        }
        if wanted(&event) {
            return Ok(at);
        }
    }
}

/// Hears one event of a stream.
fn note(events: &Receiver<(usize, Instant, Event)>, stamps: &mut [Vec<Instant>], running: &mut usize) -> Result<()> {
    let (stream, at, event) = events.recv_timeout(PATIENCE).context("the engine went silent")?;
    match event {
        Event::Token(_) => stamps[stream].push(at),
        Event::Finished(_) => *running -= 1,
        Event::Failed(error) => bail!("a stream failed: {error}"),
        Event::Prefilled { .. } => {}
    }
    Ok(())
}

/// Tokens per second between the second token of all and the last of the first to end.
fn rate(stamps: &[Vec<Instant>], output: usize) -> Result<f64> {
    for stream in stamps {
        ensure!(stream.len() == output, "a stream ended after {} of {output} tokens", stream.len());
    }
    // The first token is prefill's.
    let from = stamps.iter().filter_map(|s| s.get(1)).max().copied();
    let until = stamps.iter().filter_map(|s| s.last()).min().copied();
    let (Some(from), Some(until)) = (from, until) else { bail!("a stream gave fewer than two tokens") };
    let counted = stamps.iter().flatten().filter(|&&at| from < at && at <= until).count();
    let seconds = until.checked_duration_since(from).filter(|d| !d.is_zero());
    let seconds =
        seconds.ok_or_else(|| anyhow!("the streams took no time that can be measured; generate more tokens with -n"))?;
    Ok(counted as f64 / seconds.as_secs_f64())
}

/// What both pools are made of.
struct Parts<'a> {
    options: &'a LaneOptions,
    room: Room,
    backend: &'a Arc<dyn Backend>,
    digest: &'a str,
}

impl Parts<'_> {
    fn pool(&self, stage: Stage, model: &Arc<dyn Architecture>) -> PoolSpec {
        let (options, streams) = (self.options, self.room.streams);
        let (precision, pages, max_step_tokens) = match stage {
            Stage::Prefill => (options.precision.prefill, self.room.prefill_pages, options.wanted.chunk as u32),
            Stage::Decode => (options.precision.decode, self.room.decode_pages, streams),
        };
        PoolSpec {
            name: stage.to_string(),
            stage,
            precision,
            model: model.clone(),
            backend: self.backend.clone(),
            kv: precision.kv,
            pages,
            page_tokens: PAGE_TOKENS as u32,
            limits: StageLimits {
                max_step_tokens,
                // The chunk is what is measured.
                max_step_us: None,
                max_sequences: streams,
                max_resident: streams,
                max_waiting: streams + 1,
                max_context: model.max_tokens() as u32,
                watermark_pages: 0,
                max_preemptions: 3,
                // A stream that the schedule does not see would be in no step.
                max_view_rows: streams.max(1024),
                step_us_hint: 5_000,
            },
            zero_freed: millrace_kv::ZeroFreed::Keep,
            tag_checks: if options.tags { TagChecks::On } else { TagChecks::Off },
            prefixes: None,
            weights_digest: self.digest.to_owned(),
        }
    }
}

/// Pages and logits: what grows with the streams.
fn cost(pools: &[PoolSpec], room: Room) -> Cost {
    let page_bytes = |pool: &PoolSpec| pool.model.kv_layout(pool.kv, PAGE_TOKENS).page_bytes() as u64;
    let pages_bytes = pools.iter().map(|pool| u64::from(pool.pages).saturating_mul(page_bytes(pool))).sum();
    let logits = |pool: &PoolSpec| u64::from(room.streams).saturating_mul(4 * pool.model.vocab() as u64);
    Cost { pages_bytes, logits_bytes: pools.iter().map(logits).sum() }
}
