//! A whole engine on a tiny checkpoint: reference compute on the CPU behind the strict backend, which runs operations late and
//! forbids host reads. Knows nothing of HTTP or text.
#![allow(dead_code, reason = "each test binary uses a part of it")]

mod failing;
pub(crate) mod log;
pub(crate) mod pair;

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use millrace_core::{
    Clock, FinishReason, KvFormat, LaneId, PoolId, Precision, RequestId, SamplingParams, SeqId, Stage, StagePrecision,
    StageRecipe, TenantId,
};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions, StrictBackend};
use millrace_engine::{
    EngineHandle, EngineSnapshot, EngineSpec, Event, EventSink, Job, JobError, LaneSpec, PoolSpec, SubmitError, TagChecks,
};
use millrace_kv::{PrefixOptions, PrefixScope, ZeroFreed};
use millrace_model::{Architecture, Checkpoint, WeightCache};
use millrace_ops::Backend;
use millrace_policy::{BreakerSettings, FairSchedule, PolicyInfo, SchedulePolicy, ScheduleSlot};
use millrace_scheduler::{StageLimits, TenantShare};

use failing::FailingBackend;
pub(crate) use failing::Faults;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Time since the first look.
struct TestClock(Instant);

impl Clock for TestClock {
    fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap()
    }
}

struct Sink(Sender<Event>);

impl EventSink for Sink {
    fn emit(&mut self, event: Event) {
        let _ = self.0.send(event);
    }
}

/// What can be varied.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    /// Begins the names of its pools, so that they can be told from other engines' in a log.
    pub(crate) name: &'static str,
    pub(crate) pools: &'static [Stage],
    /// Prefill and decode pool of each lane.
    pub(crate) lanes: &'static [[u32; 2]],
    /// A fixture of the model crate.
    pub(crate) checkpoint: &'static str,
    pub(crate) pages: u32,
    pub(crate) kv: [KvFormat; 2],
    pub(crate) max_waiting: usize,
    /// Tokens of a prefill step.
    pub(crate) chunk: u32,
    /// Time of a prefill step.
    pub(crate) max_step_us: Option<u32>,
    pub(crate) tag_checks: TagChecks,
    pub(crate) prefixes: Option<PrefixOptions>,
    /// How late the backend begins a submission.
    pub(crate) delay: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            name: "",
            pools: &[Stage::Prefill, Stage::Decode],
            lanes: &[[0, 1]],
            checkpoint: "llama-tied-bf16",
            pages: 64,
            kv: [KvFormat::F32; 2],
            max_waiting: 64,
            chunk: 24,
            max_step_us: None,
            tag_checks: if millrace_engine::TAGS_BUILT { TagChecks::On } else { TagChecks::Off },
            prefixes: None,
            delay: Duration::from_micros(200),
        }
    }
}

impl Setup {
    pub(crate) fn pool_name(&self, index: usize) -> String {
        format!("{}{}{index}", self.name, self.pools[index])
    }
}

fn precision(setup: &Setup, stage: Stage) -> StagePrecision {
    StagePrecision { recipe: StageRecipe::Stored, kv: setup.kv[usize::from(stage == Stage::Decode)] }
}

fn limits(setup: &Setup, stage: Stage) -> StageLimits {
    StageLimits {
        max_step_tokens: if stage == Stage::Prefill { setup.chunk } else { 16 },
        max_step_us: setup.max_step_us.filter(|_| stage == Stage::Prefill),
        max_sequences: 16,
        max_resident: 64,
        max_waiting: 64,
        max_context: 256,
        watermark_pages: 1,
        max_preemptions: 3,
        max_view_rows: 256,
        step_us_hint: 1_000,
    }
}

/// A model on its device.
pub(crate) struct Loaded {
    model: Arc<dyn Architecture>,
    backend: Arc<dyn Backend>,
    digest: String,
}

fn pool_spec(setup: &Setup, index: usize, stage: Stage, loaded: &Loaded) -> PoolSpec {
    PoolSpec {
        name: setup.pool_name(index),
        stage,
        precision: precision(setup, stage),
        model: loaded.model.clone(),
        backend: loaded.backend.clone(),
        kv: precision(setup, stage).kv,
        pages: setup.pages,
        page_tokens: 16,
        limits: limits(setup, stage),
        zero_freed: ZeroFreed::Zero,
        tag_checks: setup.tag_checks,
        prefixes: setup.prefixes,
        weights_digest: loaded.digest.clone(),
    }
}

/// A running engine.
pub(crate) struct Rig {
    pub(crate) engine: EngineHandle,
    pub(crate) schedule: Arc<ScheduleSlot>,
    next: std::cell::Cell<u64>,
}

/// The usual fixture's prompt and its greedy continuation by HF transformers.
pub(crate) fn expected() -> &'static (Vec<u32>, Vec<u32>) {
    static EXPECTED: OnceLock<(Vec<u32>, Vec<u32>)> = OnceLock::new();
    EXPECTED.get_or_init(|| expected_of(Setup::default().checkpoint))
}

/// A fixture's prompt and its greedy continuation by HF transformers.
pub(crate) fn expected_of(checkpoint: &str) -> (Vec<u32>, Vec<u32>) {
    let bytes = std::fs::read(checkpoint_path(checkpoint).join("expected.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| -> Vec<u32> {
        let data = file.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(8).map(|b| u32::try_from(i64::from_le_bytes(b.try_into().unwrap())).unwrap()).collect()
    };
    (ids("ids"), ids("greedy"))
}

fn checkpoint_path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name)
}

impl Rig {
    pub(crate) fn start(setup: Setup) -> Self {
        Self::planned_by(Box::new(FairSchedule), setup)
    }

    pub(crate) fn planned_by(policy: Box<dyn SchedulePolicy>, setup: Setup) -> Self {
        Self::on(policy, setup, |strict| strict)
    }

    /// An engine on a device that can be told to fail.
    pub(crate) fn failing(setup: Setup) -> (Self, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        let rig = Self::on(Box::new(FairSchedule), setup, |strict| Arc::new(FailingBackend::new(strict, faults.clone())));
        (rig, faults)
    }

    fn on(policy: Box<dyn SchedulePolicy>, setup: Setup, wrap: impl FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend>) -> Self {
        let checkpoint = Checkpoint::open(&checkpoint_path(setup.checkpoint)).unwrap();
        let cpu = CpuBackend::new(CpuOptions { threads: 2, compute: CpuCompute::Reference, isa: None }).unwrap();
        let strict: Arc<dyn Backend> = Arc::new(StrictBackend::with_delay(Arc::new(cpu), setup.delay));
        let mut cache = WeightCache::default();
        let model = millrace_model::load(&checkpoint, strict.as_ref(), StageRecipe::Stored, &mut cache).unwrap();
        let model: Arc<dyn Architecture> = model.into();
        // Behind the model, whose loading takes queues of its own.
        let backend = wrap(strict);
        let precision = Precision { prefill: precision(&setup, Stage::Prefill), decode: precision(&setup, Stage::Decode) };
        let digest = checkpoint.digest().to_owned();
        let loaded = Loaded { model, backend, digest };
        let pool = |(index, &stage): (usize, &Stage)| pool_spec(&setup, index, stage, &loaded);
        let lane = |(index, &[prefill, decode]): (usize, &[u32; 2])| LaneSpec {
            name: if setup.lanes.len() == 1 { "only".into() } else { format!("lane{index}") },
            prefill: PoolId(prefill),
            decode: PoolId(decode),
            precision,
            max_waiting: setup.max_waiting,
        };
        let schedule = Arc::new(ScheduleSlot::new(policy, PolicyInfo::native("test"), BreakerSettings::default()));
        let engine = millrace_engine::start(EngineSpec {
            pools: setup.pools.iter().enumerate().map(pool).collect(),
            lanes: setup.lanes.iter().enumerate().map(lane).collect(),
            tenants: vec![TenantShare { weight: 1, tier: 1 }],
            schedule: schedule.clone(),
            clock: Arc::new(TestClock(Instant::now())),
            boot_nonce: 7,
        });
        Self { engine: engine.unwrap(), schedule, next: std::cell::Cell::new(1) }
    }

    pub(crate) fn submit(&self, prompt: &[u32], output: u32) -> Result<Stream, SubmitError> {
        self.submit_in(None, prompt, output)
    }

    /// A prompt that may share pages with others of its scope.
    pub(crate) fn submit_in(&self, scope: Option<PrefixScope>, prompt: &[u32], output: u32) -> Result<Stream, SubmitError> {
        self.submit_to(LaneId(0), scope, prompt, output)
    }

    pub(crate) fn submit_to(
        &self,
        lane: LaneId,
        scope: Option<PrefixScope>,
        prompt: &[u32],
        output: u32,
    ) -> Result<Stream, SubmitError> {
        let seq = self.next.get();
        self.next.set(seq + 1);
        let (sender, events) = channel();
        self.engine.submit(Job {
            seq: SeqId(seq),
            request: RequestId(seq),
            lane,
            tenant: TenantId(0),
            priority: 0,
            deadline_us: None,
            prompt: prompt.into(),
            scope,
            sampling: SamplingParams::greedy(output, Vec::new()),
            events: Box::new(Sink(sender)),
        })?;
        Ok(Stream { seq: SeqId(seq), events, cached_tokens: std::cell::Cell::new(None) })
    }

    /// Tokens of one prompt, from submission to its end.
    pub(crate) fn generate(&self, prompt: &[u32], output: u32) -> Vec<u32> {
        self.submit(prompt, output).unwrap().finish().unwrap()
    }

    /// Waits until a snapshot is so.
    pub(crate) fn wait_until(&self, what: &str, so: impl Fn(&EngineSnapshot) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so(&self.engine.snapshot()) {
            assert!(Instant::now() < deadline, "did not come true: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until every page of every pool is free (or under suspicion).
    pub(crate) fn wait_until_empty(&self, suspects: u32) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let snapshot = self.engine.snapshot();
            let pinned: u32 = snapshot.pools.iter().map(|p| p.pinned_pages).sum();
            let resting: u32 = snapshot.pools.iter().map(|p| p.quarantined_pages).sum();
            if pinned == 0 && resting <= suspects {
                return;
            }
            assert!(Instant::now() < deadline, "pages are still held: {:?}", snapshot.pools);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

/// One sequence's events.
pub(crate) struct Stream {
    pub(crate) seq: SeqId,
    pub(crate) events: Receiver<Event>,
    /// Once it was told.
    pub(crate) cached_tokens: std::cell::Cell<Option<u32>>,
}

impl Stream {
    /// The next token, or how it ended.
    pub(crate) fn next(&self) -> Result<u32, Result<FinishReason, JobError>> {
        loop {
            match self.events.recv_timeout(PATIENCE).expect("an event in time") {
                Event::Token(token) => return Ok(token),
                Event::Finished(reason) => return Err(Ok(reason)),
                Event::Failed(error) => return Err(Err(error)),
                Event::Prefilled { cached_tokens, .. } => {
                    assert_eq!(self.cached_tokens.replace(Some(cached_tokens)), None, "told once");
                }
            }
        }
    }

    pub(crate) fn finish(&self) -> Result<Vec<u32>, JobError> {
        let mut tokens = Vec::new();
        loop {
            match self.next() {
                Ok(token) => tokens.push(token),
                Err(Ok(_)) => {
                    assert!(self.events.recv_timeout(Duration::from_millis(20)).is_err(), "nothing after the end");
                    return Ok(tokens);
                }
                Err(Err(error)) => return Err(error),
            }
        }
    }
}
