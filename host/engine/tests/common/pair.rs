//! Two engines of one stage each, in one process but with nothing in common but a TCP connection with TLS and a secret.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use millrace_core::{KvFormat, LaneId, PoolId, Precision, RequestId, SamplingParams, SeqId, Stage, StageRecipe, TenantId};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions, StrictBackend};
use millrace_engine::{EngineHandle, Event, EventSink, Job, LinkFacts, Replay, StageLane, StageSpec};
use millrace_model::{Checkpoint, WeightCache};
use millrace_policy::{BreakerSettings, FairSchedule, PolicyInfo, ScheduleSlot};
use millrace_scheduler::TenantShare;
use millrace_transfer::Incarnation;
use millrace_transfer::tcp::{Endpoint, Port, Secret, Wire, answer, dial};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use super::{Loaded, PATIENCE, Setup, TestClock, checkpoint_path, pool_spec, precision};

/// What a decode engine tells of a sequence.
#[derive(Debug, PartialEq)]
pub(crate) enum Told {
    Event(Event),
    HandedOver,
    Preempted(Replay),
}

struct Teller(Sender<Told>);

impl EventSink for Teller {
    fn emit(&mut self, event: Event) {
        let _ = self.0.send(Told::Event(event));
    }

    fn handed_over(&mut self, _to: Incarnation) {
        let _ = self.0.send(Told::HandedOver);
    }

    fn preempted(&mut self, again: Replay) {
        let _ = self.0.send(Told::Preempted(again));
    }
}

/// What decode told, in order.
pub(crate) type Heard = Arc<Mutex<BTreeMap<SeqId, Vec<Told>>>>;

struct Hearing {
    seq: SeqId,
    heard: Heard,
}

impl Hearing {
    fn tell(&self, told: Told) {
        self.heard.lock().unwrap().entry(self.seq).or_default().push(told);
    }
}

impl EventSink for Hearing {
    fn emit(&mut self, event: Event) {
        self.tell(Told::Event(event));
    }

    fn preempted(&mut self, again: Replay) {
        self.tell(Told::Preempted(again));
    }
}

/// Both engines and what lies between them.
pub(crate) struct Pair {
    setup: Setup,
    runtime: Runtime,
    endpoint: Endpoint,
    pub(crate) prefill: EngineHandle,
    pub(crate) decode: EngineHandle,
    pub(crate) heard: Heard,
    peer: watch::Sender<Option<SocketAddr>>,
    epoch: AtomicU64,
    next: AtomicU64,
}

fn load(checkpoint: &str, setup: &Setup) -> Loaded {
    let checkpoint = Checkpoint::open(&checkpoint_path(checkpoint)).unwrap();
    let cpu = CpuBackend::new(CpuOptions { threads: 1, compute: CpuCompute::Reference, isa: None }).unwrap();
    let backend: Arc<dyn millrace_ops::Backend> = Arc::new(StrictBackend::with_delay(Arc::new(cpu), setup.delay));
    let model = millrace_model::load(&checkpoint, backend.as_ref(), StageRecipe::Stored, &mut WeightCache::default()).unwrap();
    Loaded { model: model.into(), backend, digest: checkpoint.digest().to_owned() }
}

fn engine(setup: &Setup, stage: Stage, loaded: &Loaded, (epoch, port): (u64, Port), heard: &Heard) -> EngineHandle {
    let heard = heard.clone();
    let policy = Box::new(FairSchedule);
    let lane = StageLane {
        name: "only".into(),
        pool: PoolId(0),
        precision: Precision { prefill: precision(setup, Stage::Prefill), decode: precision(setup, Stage::Decode) },
        max_waiting: setup.max_waiting,
        incarnation: Incarnation { epoch, boot: epoch * 7 + 1 },
        port,
        model: "tiny".into(),
        wire: setup.wire(),
    };
    let spec = StageSpec {
        pools: vec![pool_spec(setup, 0, stage, loaded)],
        lanes: vec![lane],
        tenants: vec![TenantShare { weight: 1, tier: 1 }],
        schedule: Arc::new(ScheduleSlot::new(policy, PolicyInfo::native("test"), BreakerSettings::default())),
        clock: Arc::new(TestClock(Instant::now())),
        boot_nonce: u16::try_from(epoch).unwrap(),
        sinks: Box::new(move |seq, _| Box::new(Hearing { seq, heard: heard.clone() })),
    };
    millrace_engine::start_stage(spec).unwrap()
}

impl Setup {
    /// The narrower of the two formats: conversion before the wire halves its bytes.
    fn wire(&self) -> KvFormat {
        self.kv[1]
    }
}

impl Pair {
    pub(crate) fn start(setup: Setup) -> Self {
        Self::of(setup, setup.checkpoint)
    }

    /// Decode has another checkpoint.
    pub(crate) fn of(setup: Setup, decode_checkpoint: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let endpoint = Endpoint::new(Secret::new([3; 32])).unwrap();
        let heard = Heard::default();
        let (peer, at) = watch::channel(None);
        let (port, wire) = Port::new();
        runtime.spawn(dial(endpoint.clone(), "lane only".into(), at, wire));
        let prefill = engine(&setup, Stage::Prefill, &load(setup.checkpoint, &setup), (1, port), &heard);
        let (port, wire) = Port::new();
        let decode = engine(&setup, Stage::Decode, &load(decode_checkpoint, &setup), (2, port), &heard);
        let (epoch, next) = (AtomicU64::new(2), AtomicU64::new(1));
        let pair = Self { setup, runtime, endpoint, prefill, decode, heard, peer, epoch, next };
        pair.listen(wire);
        pair
    }

    fn listen(&self, wire: Wire) {
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (channels, incoming) = mpsc::channel(1);
        self.runtime.spawn(answer(incoming, wire));
        let endpoint = self.endpoint.clone();
        self.runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok((channel, purpose)) = endpoint.accept(stream).await {
                    assert_eq!(purpose, "lane only");
                    if channels.send(channel).await.is_err() {
                        return;
                    }
                }
            }
        });
        self.peer.send_replace(Some(address));
    }

    /// The decode engine ends with all it has, and another life of it comes.
    pub(crate) fn replace_decode(&mut self) {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        self.decode.stop();
        self.peer.send_replace(None);
        self.prefill.peer_dead(LaneId(0), Incarnation { epoch, boot: epoch * 7 + 1 });
        let (port, wire) = Port::new();
        self.decode =
            engine(&self.setup, Stage::Decode, &load(self.setup.checkpoint, &self.setup), (epoch + 1, port), &self.heard);
        self.listen(wire);
    }

    /// Breaks the connection; it comes back by itself.
    pub(crate) fn disconnect(&self) {
        let address = self.cut();
        self.peer.send_replace(address);
    }

    /// Breaks the connection, and waits until the prefill engine knows; it does not come back before [`Self::join`].
    pub(crate) fn cut(&self) -> Option<SocketAddr> {
        let address = self.peer.send_replace(None);
        self.wait_until("the connection is cut", || !self.sends().connected);
        address
    }

    pub(crate) fn join(&self, address: Option<SocketAddr>) {
        self.peer.send_replace(address);
        self.wait_until("the connection is back", || self.sends().connected);
    }

    /// The prefill engine's end.
    pub(crate) fn sends(&self) -> LinkFacts {
        self.prefill.snapshot().links[0].clone()
    }

    pub(crate) fn wait_until(&self, what: &str, so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so() {
            assert!(Instant::now() < deadline, "did not come true: {what}; {:?}", self.sends());
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    pub(crate) fn submit(&self, prompt: &[u32], output: u32) -> (SeqId, Receiver<Told>) {
        let seq = SeqId(self.next.fetch_add(1, Ordering::Relaxed));
        (seq, self.submit_as(seq, prompt, output))
    }

    pub(crate) fn submit_as(&self, seq: SeqId, prompt: &[u32], output: u32) -> Receiver<Told> {
        let (job, events) = job(seq, prompt, output);
        self.prefill.submit(job).unwrap();
        events
    }

    /// What the node does with a sequence that decode has preempted.
    pub(crate) fn resume(&self, seq: SeqId, (prompt, output): (&[u32], u32), again: Replay) -> Receiver<Told> {
        let (job, events) = job(seq, prompt, output);
        self.prefill.resume(job, again).unwrap();
        events
    }

    /// What decode told last of a sequence that it preempted, once it did so more often than `seen`.
    pub(crate) fn preempted(&self, seq: SeqId, seen: usize) -> Option<Replay> {
        let heard = self.heard.lock().unwrap();
        let again = heard.get(&seq)?.iter().filter_map(|told| match told {
            Told::Preempted(again) => Some(again.clone()),
            _ => None,
        });
        again.skip(seen).last()
    }

    pub(crate) fn has_ended(&self, seq: SeqId) -> bool {
        let heard = self.heard.lock().unwrap();
        let last = heard.get(&seq).and_then(|told| told.last());
        matches!(last, Some(Told::Event(Event::Finished(_) | Event::Failed(_))))
    }

    /// What decode told of a sequence, once it has ended there.
    pub(crate) fn end_in_decode(&self, seq: SeqId) -> Vec<u32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(told) = self.heard.lock().unwrap().get(&seq)
                && matches!(told.last(), Some(Told::Event(Event::Finished(_) | Event::Failed(_))))
            {
                let token = |told: &Told| match told {
                    Told::Event(Event::Token(token)) => Some(*token),
                    _ => None,
                };
                return told.iter().filter_map(token).collect();
            }
            assert!(Instant::now() < deadline, "sequence {seq} does not end: {:?}", self.heard.lock().unwrap().get(&seq));
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    /// Waits until every page of both pools is free.
    pub(crate) fn wait_until_empty(&self) {
        let deadline = Instant::now() + PATIENCE;
        for engine in [&self.prefill, &self.decode] {
            while engine.snapshot().pools.iter().any(|pool| pool.free_pages != pool.total_pages) {
                assert!(Instant::now() < deadline, "pages are still held: {:?}", engine.snapshot().pools);
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            engine.check_invariants().unwrap();
        }
    }
}

fn job(seq: SeqId, prompt: &[u32], output: u32) -> (Job, Receiver<Told>) {
    let (sender, events) = channel();
    let sampling = SamplingParams::greedy(output, Vec::new());
    let job = Job {
        seq,
        request: RequestId(seq.0),
        lane: LaneId(0),
        tenant: TenantId(0),
        priority: 0,
        deadline_us: None,
        prompt: prompt.into(),
        scope: None,
        sampling,
        events: Box::new(Teller(sender)),
    };
    (job, events)
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.prefill.stop();
        self.decode.stop();
    }
}
