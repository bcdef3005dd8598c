//! Two engines of one stage each with a loopback connection between them: dialled, listened for, encrypted and proved as between engine
//! processes. Knows no node and no other process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use millrace_core::{LaneId, PoolId, RequestId, SeqId, Stage, StagePrecision, TenantId};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
use millrace_engine::{EngineHandle, Event, EventSink, Job, StageLane, StageSpec, TagChecks};
use millrace_model::{Architecture, Checkpoint, WeightCache};
use millrace_ops::Backend;
use millrace_scheduler::TenantShare;
use millrace_transfer::Incarnation;
use millrace_transfer::tcp::{Doors, Endpoint, Port, Secret, Wire, answer, dial, listen};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use super::{OUTPUT, PATIENCE, Run, Transfer};
use crate::Failure;
use crate::bench::lane::{BenchClock, Ids, LaneOptions, Parts, greedy, native_schedule};

const PURPOSE: &str = "lane bench";
/// How often to look whether a figure is there.
const LOOK: Duration = Duration::from_micros(200);

/// What one of the engines tells.
#[derive(Debug)]
enum Said {
    Event(Stage, Event),
    HandedOver,
}

struct Stamp(Stage, Sender<(Instant, Said)>);

impl EventSink for Stamp {
    fn emit(&mut self, event: Event) {
        // A lane that is going hears nothing any more.
        let _ = self.1.send((Instant::now(), Said::Event(self.0, event)));
    }

    fn handed_over(&mut self, _to: Incarnation) {
        let _ = self.1.send((Instant::now(), Said::HandedOver));
    }
}

pub(super) struct TcpLane {
    prefill: EngineHandle,
    decode: EngineHandle,
    said: Receiver<(Instant, Said)>,
    teller: Sender<(Instant, Said)>,
    ids: Ids,
    next_seq: AtomicU64,
    /// Where prefill finds decode; the connection ends with it.
    _peer: watch::Sender<Option<SocketAddr>>,
    _runtime: Runtime,
}

impl TcpLane {
    /// # Errors
    /// Usage where a test exceeds the model's context.
    pub(super) fn start(path: &Path, options: &LaneOptions) -> Result<Self, Failure> {
        let checkpoint = Checkpoint::open(path)?;
        let room = options.wanted.room(millrace_model::spec_of(checkpoint.config())?.max_tokens).map_err(Failure::Usage)?;
        let threads = if options.threads == 0 { millrace_cpu::available_threads() } else { options.threads };
        let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions { threads, compute: CpuCompute::Fast, isa: None })?);
        let mut cache = WeightCache::default();
        let mut model = |stage: StagePrecision| -> Result<Arc<dyn Architecture>> {
            Ok(millrace_model::load(&checkpoint, backend.as_ref(), stage.recipe, &mut cache)?.into())
        };
        let models = [model(options.precision.prefill)?, model(options.precision.decode)?];
        let parts = Parts { options, room, backend: &backend, digest: checkpoint.digest(), models: &models };
        let (teller, said) = channel();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("hand-off")
            .enable_all()
            .build()
            .context("cannot start the threads of the connection")?;
        let (dials, from) = Port::new();
        let (answers, to) = Port::new();
        let prefill = engine(&parts, Stage::Prefill, dials, &teller)?;
        let decode = engine(&parts, Stage::Decode, answers, &teller)?;
        let peer = runtime.block_on(connect(from, to))?;
        let lane = Self {
            prefill,
            decode,
            said,
            teller,
            ids: Ids(models[0].vocab()),
            next_seq: AtomicU64::new(1),
            _peer: peer,
            _runtime: runtime,
        };
        lane.wait_until("the two engines are connected", |lane| lane.facts().0)?;
        Ok(lane)
    }

    /// One prompt through both engines.
    pub(super) fn run(&self, tokens: usize) -> Result<Run> {
        let (_, bytes, hand_offs) = self.facts();
        let began = Instant::now();
        self.submit(tokens)?;
        let (mut prefilled, mut handed_over, mut decoded, mut ended) = (None, None, Vec::with_capacity(OUTPUT), false);
        while handed_over.is_none() || !ended {
            let (at, said) = self.said.recv_timeout(PATIENCE).context("the engines went silent")?;
            match said {
                Said::Event(_, Event::Failed(error)) => bail!("the sequence failed: {error}"),
                Said::Event(Stage::Prefill, Event::Token(_)) => prefilled = Some(at),
                // The first of these is prefill's, told once more.
                Said::Event(Stage::Decode, Event::Token(_)) => decoded.push(at),
                Said::Event(_, Event::Finished(_)) => ended = true,
                Said::Event(_, Event::Prefilled { .. }) => {}
                Said::HandedOver => handed_over = Some(at),
            }
        }
        self.wait_until("the hand-off is counted", |lane| lane.facts().2 > hand_offs)?;
        let (Some(first), Some(handed_over), Some(&second)) = (prefilled, handed_over, decoded.get(1)) else {
            bail!("the sequence ended before its second token")
        };
        let transfer = Transfer { bytes: self.facts().1 - bytes, took: handed_over.duration_since(first) };
        Ok(Run { first: first.duration_since(began), second: second.duration_since(first), transfer: Some(transfer) })
    }

    fn submit(&self, tokens: usize) -> Result<()> {
        let seq = self.next_seq.fetch_add(1, Ordering::Relaxed);
        self.prefill.submit(Job {
            seq: SeqId(seq),
            request: RequestId(seq),
            lane: LaneId(0),
            tenant: TenantId(0),
            priority: 0,
            deadline_us: None,
            prompt: self.ids.text(seq, tokens),
            scope: None,
            sampling: greedy(OUTPUT),
            events: Box::new(Stamp(Stage::Prefill, self.teller.clone())),
        })?;
        Ok(())
    }

    /// Of prefill's end: whether it is connected, the bytes that it has written, the hand-offs that were acknowledged.
    fn facts(&self) -> (bool, u64, u64) {
        let snapshot = self.prefill.snapshot();
        let link = snapshot.links.first();
        let (connected, bytes) = link.map_or((false, 0), |link| (link.connected, link.sent_bytes));
        (connected, bytes, snapshot.counters.hand_offs)
    }

    fn wait_until(&self, what: &str, so: impl Fn(&Self) -> bool) -> Result<()> {
        let began = Instant::now();
        while !so(self) {
            ensure!(began.elapsed() < PATIENCE, "it does not come true that {what}");
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for TcpLane {
    fn drop(&mut self) {
        self.prefill.stop();
        self.decode.stop();
    }
}

/// Both ends as in two processes: one listens, the other dials.
async fn connect(dials: Wire, answers: Wire) -> Result<watch::Sender<Option<SocketAddr>>> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| anyhow!("cannot draw a secret: {error}"))?;
    let endpoint = Endpoint::new(Secret::new(secret))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on loopback")?;
    let (peer, at) = watch::channel(Some(listener.local_addr().context("the listener has no address")?));
    let (door, channels) = mpsc::channel(1);
    tokio::spawn(listen(listener, endpoint.clone(), Doors::from([(PURPOSE.to_owned(), door)])));
    tokio::spawn(answer(channels, answers));
    tokio::spawn(dial(endpoint, PURPOSE.to_owned(), at, dials));
    Ok(peer)
}

fn engine(parts: &Parts<'_>, stage: Stage, port: Port, teller: &Sender<(Instant, Said)>) -> Result<EngineHandle> {
    let epoch = 1 + u64::from(stage == Stage::Decode);
    let precision = parts.options.precision;
    let lane = StageLane {
        name: "bench".to_owned(),
        pool: PoolId(0),
        precision,
        max_waiting: parts.room.streams as usize + 1,
        incarnation: Incarnation { epoch, boot: epoch },
        port,
        model: "bench".to_owned(),
        // Converted before it is sent, as between engine processes.
        wire: precision.decode.kv,
    };
    let teller = teller.clone();
    let spec = StageSpec {
        pools: vec![parts.pool(stage, TagChecks::On)],
        lanes: vec![lane],
        tenants: vec![TenantShare { weight: 1, tier: 1 }],
        schedule: Arc::new(native_schedule()),
        clock: Arc::new(BenchClock(Instant::now())),
        boot_nonce: u16::try_from(epoch).unwrap_or(1),
        sinks: Box::new(move |_, _| Box::new(Stamp(Stage::Decode, teller.clone()))),
    };
    millrace_engine::start_stage(spec).context("cannot start an engine")
}
