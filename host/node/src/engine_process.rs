//! One pool's engine as a process of its own, under a node: `millrace engine`. It listens for its node and for the engines at the
//! other ends of its lanes, loads its pool, and does what the node orders. When the node goes, it goes.
//!
//! ```text
//!   node ──stdin: secret, epoch── held open as long as the node lives
//!        ──control: orders, reports──► this process ◄──lane NAME: hand-offs── another engine
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use millrace_config::{Config, Pool};
use millrace_core::{Clock, LaneId, PoolId, SeqId, Stage};
use millrace_engine::{EngineHandle, Event, EventSink, Job, JobError, Replay, StageLane, StageSpec};
use millrace_transfer::Incarnation;
use millrace_transfer::tcp::{Channel, Doors, Endpoint, Port, Secret, Wire, answer, dial, listen};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::checkpoints::Checkpoints;
use crate::control::{Order, Ready, Report, SequenceEvent, Submission};
use crate::error::StartError;
use crate::ids::{MonotonicClock, random_u64};
use crate::policies::schedule_alone;
use crate::start;

/// What a connection to an engine process can be for.
pub(crate) const CONTROL: &str = "control";
pub(crate) const LANE: &str = "lane ";

/// Reports that may wait for the node, tokens for the most part. A node that does not take so many is no node.
const REPORTS_AHEAD: usize = 1 << 16;
/// How often the node hears how the engine is.
const FACTS_EVERY: Duration = Duration::from_millis(50);
/// How long the node may take to come after the process has begun to listen.
const NODE_PATIENCE: Duration = Duration::from_secs(60);

/// What the node gives a process that it starts.
pub struct Birth {
    pub secret: Secret,
    /// Counted by the node: later lives have higher ones.
    pub epoch: u64,
}

impl Birth {
    /// As the node writes it to the process's standard input.
    pub(crate) fn line(&self) -> String {
        format!("{} {}\n", self.secret.to_hex(), self.epoch)
    }

    /// # Errors
    /// It is no such line; says so without showing it.
    pub fn parse(line: &str) -> Result<Self, String> {
        let (secret, epoch) = line.trim().split_once(' ').ok_or("standard input gives no secret and epoch")?;
        let epoch = epoch.parse().map_err(|_| "standard input gives no epoch")?;
        Ok(Self { secret: Secret::from_hex(secret)?, epoch })
    }
}

/// A listening engine process, whose pool is not loaded yet.
pub struct EngineProcess {
    config: Config,
    /// Row of the configuration's pools.
    row: usize,
    incarnation: Incarnation,
    endpoint: Endpoint,
    listener: TcpListener,
}

/// The ends of lanes, in the order of the configuration.
struct LaneEnd {
    name: String,
    /// Prefill: where the decode engine is.
    peer: watch::Sender<Option<SocketAddr>>,
}

impl EngineProcess {
    /// Listens on a port of this machine.
    ///
    /// # Errors
    /// Where the configuration has no such pool, or nothing can be listened on.
    pub async fn listen(mut config: Config, pool: &str, stage: Stage, birth: Birth) -> Result<Self, StartError> {
        let row = config.pools.iter().position(|known| known.name == pool && known.stage == stage);
        let row = row.ok_or_else(|| StartError::NoSuchPool { pool: pool.to_owned(), stage })?;
        let boot = random_u64().map_err(StartError::Random)?;
        // The server and each engine record on their own: files have one writer.
        if let Some(record) = &mut config.policies.record {
            record.directory.push(pool);
        }
        let failed = |why: String| StartError::Process { pool: pool.to_owned(), why };
        let endpoint = Endpoint::new(birth.secret).map_err(|error| failed(error.to_string()))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(|error| failed(error.to_string()))?;
        Ok(Self { config, row, incarnation: Incarnation { epoch: birth.epoch, boot }, endpoint, listener })
    }

    /// # Errors
    /// The operating system's.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Loads the pool and serves the node until it goes.
    ///
    /// # Errors
    /// What could not be loaded; a node that does not come.
    pub async fn run(self) -> Result<(), StartError> {
        let name = self.pool().name.clone();
        let failed = |why: &str| StartError::Process { pool: name.clone(), why: why.to_owned() };
        let (mut lanes, mut doors, mut ends) = (Vec::new(), Doors::new(), Vec::new());
        for lane in self.lane_rows() {
            let (port, wire) = Port::new();
            let (peer, at) = watch::channel(None);
            let lane_name = self.config.lanes[lane].name.clone();
            self.connect(&lane_name, wire, at, &mut doors);
            lanes.push(self.stage_lane(lane, port));
            ends.push(LaneEnd { name: lane_name, peer });
        }
        let (to_control, mut control) = mpsc::channel(1);
        doors.insert(CONTROL.to_owned(), to_control);
        tokio::spawn(listen(self.listener, self.endpoint.clone(), doors));
        let channel =
            timeout(NODE_PATIENCE, control.recv()).await.ok().flatten().ok_or_else(|| failed("the node does not come"))?;
        let (reports, outbox) = mpsc::channel(REPORTS_AHEAD);
        let (config, row, incarnation, to_node) = (self.config, self.row, self.incarnation, reports.clone());
        let loading = tokio::task::spawn_blocking(move || load(&config, row, incarnation, lanes, to_node));
        let loading = async move { loading.await.map_err(|error| failed(&error.to_string()))? };
        serve(channel, (reports, outbox), ends, loading).await
    }

    fn pool(&self) -> &Pool {
        &self.config.pools[self.row]
    }

    /// Lanes of this pool.
    fn lane_rows(&self) -> Vec<usize> {
        let own = PoolId(u32::try_from(self.row).unwrap_or(u32::MAX));
        let lanes = self.config.lanes.iter().enumerate();
        lanes.filter(|(_, lane)| lane.prefill == own || lane.decode == own).map(|(row, _)| row).collect()
    }

    /// Prefill connects to decode.
    fn connect(&self, lane: &str, wire: Wire, at: watch::Receiver<Option<SocketAddr>>, doors: &mut Doors) {
        let purpose = format!("{LANE}{lane}");
        match self.pool().stage {
            Stage::Prefill => {
                tokio::spawn(dial(self.endpoint.clone(), purpose, at, wire));
            }
            Stage::Decode => {
                let (door, channels) = mpsc::channel(1);
                tokio::spawn(answer(channels, wire));
                doors.insert(purpose, door);
            }
        }
    }

    fn stage_lane(&self, row: usize, port: Port) -> StageLane {
        let lane = &self.config.lanes[row];
        let own = self.pool();
        let decode = self.config.pools.get(lane.decode.0 as usize).unwrap_or(own);
        let stage = millrace_core::StagePrecision { recipe: own.recipe, kv: own.kv };
        let whole = millrace_core::Precision { prefill: stage, decode: stage };
        StageLane {
            name: lane.name.clone(),
            pool: PoolId(0),
            precision: self.config.precision(lane).unwrap_or(whole),
            max_waiting: lane.max_waiting as usize,
            incarnation: self.incarnation,
            port,
            model: self.config.models.first().map(|model| model.name.clone()).unwrap_or_default(),
            // Converted before it is sent: a narrower format takes less of the wire.
            wire: decode.kv,
        }
    }
}

/// Everything that takes time: weights, buffers, the engine.
fn load(
    config: &Config,
    row: usize,
    incarnation: Incarnation,
    lanes: Vec<StageLane>,
    reports: mpsc::Sender<Report>,
) -> Result<(EngineHandle, Ready), StartError> {
    let clock: Arc<dyn Clock> = Arc::new(MonotonicClock::new());
    let model = config.models.first().ok_or(StartError::NoModel)?;
    let checkpoints = Checkpoints::open(config, model)?;
    let schedule = schedule_alone(config, clock.clone())?;
    let mut pools = start::load_pools(config, &checkpoints, &[row])?;
    for pool in &mut pools {
        let own = u32::try_from(pool.model.max_tokens()).unwrap_or(u32::MAX);
        pool.limits.max_context = own.min(model.max_model_tokens.unwrap_or(u32::MAX));
    }
    let pool = pools.first().ok_or(StartError::NoModel)?;
    let ready = Ready {
        incarnation,
        pages: pool.pages,
        page_tokens: pool.page_tokens,
        max_tokens: u32::try_from(pool.model.max_tokens()).unwrap_or(u32::MAX),
        weight_bytes: pool.model.weight_bytes() as u64,
        weights_digest: pool.weights_digest.clone(),
        layout: pool.model.kv_layout(pool.kv, pool.page_tokens as usize).id(),
        loading_us: clock.now_us(),
    };
    let spec = StageSpec {
        pools,
        lanes,
        tenants: start::shares(config),
        schedule,
        clock,
        boot_nonce: start::boot_nonce()?,
        sinks: Box::new(move |seq, replay| Box::new(Reporter::new(seq, replay.len(), reports.clone()))),
    };
    Ok((millrace_engine::start_stage(spec)?, ready))
}

/// Tells the node of one sequence.
struct Reporter {
    seq: SeqId,
    /// Output tokens so far.
    tokens: u32,
    reports: mpsc::Sender<Report>,
}

impl Reporter {
    fn new(seq: SeqId, tokens: usize, reports: mpsc::Sender<Report>) -> Self {
        Self { seq, tokens: u32::try_from(tokens).unwrap_or(u32::MAX), reports }
    }

    fn tell(&self, event: SequenceEvent) {
        // Where there is no room the node has stopped reading, and is given up as soon as that is seen.
        let _ = self.reports.try_send(Report::Sequence(self.seq, event));
    }
}

impl EventSink for Reporter {
    fn emit(&mut self, event: Event) {
        let index = self.tokens;
        self.tokens = self.tokens.saturating_add(u32::from(matches!(event, Event::Token(_))));
        self.tell(SequenceEvent::of(event, index));
    }

    fn handed_over(&mut self) {
        self.tell(SequenceEvent::HandedOver);
    }

    fn preempted(&mut self, again: Replay) {
        self.tell(SequenceEvent::Preempted(again));
    }
}

/// Orders in, reports out, until the node goes or loading fails.
async fn serve(
    channel: Channel,
    (reports, mut outbox): (mpsc::Sender<Report>, mpsc::Receiver<Report>),
    ends: Vec<LaneEnd>,
    loading: impl Future<Output = Result<(EngineHandle, Ready), StartError>>,
) -> Result<(), StartError> {
    let (mut reader, mut writer) = channel.split();
    let (orders, mut ordered) = mpsc::channel(256);
    let reading = async move {
        while let Ok(frame) = reader.next().await {
            if orders.send(frame).await.is_err() {
                return;
            }
        }
    };
    let writing = async move { writer.carry(&mut outbox, |report: Report, _| report.encode()).await };
    let working = async move {
        let (engine, ready) = loading.await?;
        tracing::info!(incarnation = %ready.incarnation, loading_ms = ready.loading_us / 1000, "the engine is ready");
        // First how it is: from `Ready` on the node may be asked.
        let _ = reports.send(Report::Facts(Box::new(engine.snapshot().as_ref().clone()))).await;
        let _ = reports.send(Report::Ready(Box::new(ready))).await;
        let mut facts = interval(FACTS_EVERY);
        facts.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                frame = ordered.recv() => {
                    let Some(frame) = frame else { return Ok(()) };
                    match Order::decode(&frame) {
                        Ok(order) => obey(&engine, &ends, order, &reports).await,
                        Err(error) => {
                            tracing::error!(%error, "the node's order cannot be read");
                            return Ok(());
                        }
                    }
                }
                _ = facts.tick() => {
                    let snapshot = engine.snapshot();
                    if snapshot.pools.iter().any(|pool| !pool.healthy) {
                        tracing::error!("the device of this engine failed; it ends, so that the node starts it again");
                        return Ok(());
                    }
                    let report = Report::Facts(Box::new(snapshot.as_ref().clone()));
                    if reports.try_send(report).is_err() {
                        tracing::error!("the node does not read what this engine reports");
                        return Ok(());
                    }
                }
            }
        }
    };
    tokio::select! {
        () = reading => Ok(()),
        _ = writing => Ok(()),
        ended = working => ended,
    }
}

async fn obey(engine: &EngineHandle, ends: &[LaneEnd], order: Order, reports: &mpsc::Sender<Report>) {
    let lane_of = |name: &str| (0..).map(LaneId).zip(ends).find(|(_, end)| end.name == name);
    match order {
        Order::Submit(submission) => {
            let seq = submission.seq;
            let Some((lane, _)) = lane_of(&submission.lane) else { return };
            if let Err(error) = submit(engine, lane, *submission, reports) {
                let failed = SequenceEvent::Failed(JobError::Device(error.to_string()));
                let _ = reports.send(Report::Sequence(seq, failed)).await;
            }
        }
        Order::Abort(seq) => engine.abort(seq),
        Order::Peer { lane, address } => {
            lane_of(&lane).into_iter().for_each(|(_, end)| {
                end.peer.send_replace(Some(address));
            });
        }
        Order::PeerDead { lane, peer } => {
            if let Some((lane, end)) = lane_of(&lane) {
                end.peer.send_replace(None);
                engine.peer_dead(lane, peer);
            }
        }
        Order::Readmit => {
            let (engine, reports) = (engine.clone(), reports.clone());
            tokio::task::spawn_blocking(move || {
                let pages = engine.readmit(PoolId(0)).unwrap_or(0);
                let _ = reports.blocking_send(Report::Readmitted(pages));
            });
        }
    }
}

fn submit(
    engine: &EngineHandle,
    lane: LaneId,
    submission: Submission,
    reports: &mpsc::Sender<Report>,
) -> Result<(), millrace_engine::SubmitError> {
    let Submission { seq, request, tenant, priority, within_us, prompt, scope, sampling, replay, .. } = submission;
    let events = Box::new(Reporter::new(seq, replay.tokens.len(), reports.clone()));
    let deadline_us = within_us.map(|within_us| engine.now_us().saturating_add(within_us));
    let job = Job { seq, request, lane, tenant, priority, deadline_us, prompt, scope, sampling, events };
    if replay.preemptions > 0 { engine.resume(job, replay) } else { engine.submit(job) }
}
