//! One pool's engine as a process of its own, under a node: `millrace engine`. It listens for its node and for the engines at the
//! other ends of its lanes, loads its pool, and does what the node orders. When the node goes, it goes.
//!
//! ```text
//!   node ──stdin: secret, epoch── held open as long as the node lives
//!        ──control: orders, reports──► this process ◄──lane NAME: hand-offs── another engine
//! ```

mod prefixes;
mod pulse;
mod reports;
mod schedule;
mod serving;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use millrace_config::{Config, Pool};
use millrace_core::{Clock, PoolId, Stage};
use millrace_engine::{EngineHandle, StageLane, StageSpec};
use millrace_transfer::Incarnation;
use millrace_transfer::tcp::{Doors, Endpoint, Port, Secret, Wire, answer, dial, listen};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::checkpoints::Checkpoints;
use crate::control::{Layout, Ready};
use crate::deployed;
use crate::error::StartError;
use crate::ids::{MonotonicClock, random_u64};
use crate::policies::{ScheduleAlone, schedule_alone};
use crate::start;

pub(crate) use self::pulse::HEARTBEAT_GRACE_US;
use self::reports::{Reporter, Reports};

/// What a connection to an engine process can be for.
pub(crate) const CONTROL: &str = "control";
pub(crate) const LANE: &str = "lane ";

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

/// What serves once everything is loaded.
struct Loaded {
    engine: EngineHandle,
    ready: Ready,
    schedule: ScheduleAlone,
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
        let (reports, outbox) = Reports::new();
        let (config, row, incarnation, to_node) = (self.config, self.row, self.incarnation, reports.clone());
        let loading = tokio::task::spawn_blocking(move || load(&config, row, incarnation, lanes, to_node));
        let loading = async move { loading.await.map_err(|error| failed(&error.to_string()))? };
        serving::serve(channel, (reports, outbox), ends, loading).await
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
    reports: Reports,
) -> Result<Loaded, StartError> {
    let clock: Arc<dyn Clock> = Arc::new(MonotonicClock::new());
    let model = config.models.first().ok_or(StartError::NoModel)?;
    let checkpoints = Checkpoints::open(config, model)?;
    let schedule = schedule_alone(config, clock.clone())?;
    let slot = schedule.slot.clone();
    let mut pools = start::load_pools(config, &checkpoints, &[row])?;
    for pool in &mut pools {
        let own = u32::try_from(pool.model.max_tokens()).unwrap_or(u32::MAX);
        pool.limits.max_context = own.min(model.max_model_tokens.unwrap_or(u32::MAX));
    }
    let pool = pools.first().ok_or(StartError::NoModel)?;
    let ready = Ready {
        incarnation,
        deployed: deployed::digest(config, row),
        pages: pool.pages,
        page_tokens: pool.page_tokens,
        max_tokens: u32::try_from(pool.model.max_tokens()).unwrap_or(u32::MAX),
        weight_bytes: pool.model.weight_bytes() as u64,
        weights_digest: pool.weights_digest.clone(),
        layout: Layout(pool.model.kv_layout(pool.kv, pool.page_tokens as usize).id()),
        loading_us: clock.now_us(),
    };
    let spec = StageSpec {
        pools,
        lanes,
        tenants: start::shares(config),
        schedule: slot,
        clock,
        boot_nonce: start::boot_nonce()?,
        sinks: Box::new(move |seq, replay| Box::new(Reporter::of_decode(seq, replay.len(), reports.clone()))),
    };
    Ok(Loaded { engine: millrace_engine::start_stage(spec)?, ready, schedule })
}
