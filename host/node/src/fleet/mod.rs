//! The engine processes of a deployment as the node uses them: sequences go out, events come back, facts are at hand. Each process
//! is supervised by a task of its own; what a sequence goes through is in `jobs`.

mod jobs;
mod supervisor;

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_config::Config;
use millrace_core::{Clock, LaneId, PoolId, Precision, SeqId, Stage};
use millrace_engine::{Counters, EngineSnapshot, Job, JobError, Replay, SubmitError, TokenHistogram};
use millrace_transfer::Incarnation;
use millrace_transfer::tcp::{Endpoint, Secret};
use tokio::sync::{mpsc, watch};

use crate::control::{Order, Ready, Submission, add_counters};
use crate::error::StartError;
use crate::ids::random_u64;

use self::jobs::{Errand, Jobs, Route};

/// Orders that may wait for one process.
const ORDERS_AHEAD: usize = 1 << 12;
/// How long all processes may take to load at start.
const START_PATIENCE: Duration = Duration::from_secs(3600);

/// One process, whether it lives or not.
pub(crate) struct Member {
    pub(crate) pool: PoolId,
    pub(crate) name: String,
    pub(crate) stage: Stage,
    state: Mutex<State>,
    /// The process's facts once it is loaded; the first error before.
    first: watch::Sender<Option<Result<Ready, String>>>,
}

#[derive(Default)]
struct State {
    /// While the process is up.
    orders: Option<mpsc::Sender<Order>>,
    incarnation: Option<Incarnation>,
    address: Option<SocketAddr>,
    facts: Option<EngineSnapshot>,
    /// What earlier lives counted.
    past: Counters,
    past_steps: TokenHistogram,
    starts: u64,
    pid: Option<u32>,
    /// What was not sent because the process was down.
    later: Vec<Errand>,
}

impl State {
    /// A life is over: what it counted stays counted.
    fn count_life(&mut self) {
        let Some(facts) = &mut self.facts else { return };
        add_counters(&mut self.past, &std::mem::take(&mut facts.counters));
        self.past_steps = self.past_steps.plus(&std::mem::take(&mut facts.step_tokens));
        facts.links.clear();
    }
}

/// A lane whose pools are processes.
struct RemoteLane {
    name: String,
    prefill: PoolId,
    decode: PoolId,
    max_waiting: usize,
    max_tokens: usize,
    precision: Option<Precision>,
}

/// See the module.
pub(crate) struct Fleet {
    members: Vec<Member>,
    /// By row of the configuration; `None`: a lane within this process.
    lanes: Vec<Option<RemoteLane>>,
    jobs: Mutex<Jobs>,
    clock: Arc<dyn Clock>,
    endpoint: Endpoint,
    secret: Secret,
    epoch: AtomicU64,
    config_file: String,
    stopping: watch::Sender<bool>,
}

/// What a process has to say for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFacts {
    pub pool: String,
    pub stage: Stage,
    pub up: bool,
    pub starts: u64,
    pub pid: Option<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// Starts every process that the configuration names and waits until all are loaded. `None`: it names none. Not for a
    /// runtime's threads, but within one.
    ///
    /// # Errors
    /// Why one does not come up.
    pub(crate) fn start(config: &Config, clock: Arc<dyn Clock>) -> Result<Option<Arc<Self>>, StartError> {
        let pools = (0..).map(PoolId).zip(&config.pools).filter(|(_, pool)| pool.process);
        let member = |(pool, of): (PoolId, &millrace_config::Pool)| Member {
            pool,
            name: of.name.clone(),
            stage: of.stage,
            state: Mutex::default(),
            first: watch::channel(None).0,
        };
        let members: Vec<Member> = pools.map(member).collect();
        if members.is_empty() {
            return Ok(None);
        }
        let mut secret = [0; 32];
        for part in secret.chunks_exact_mut(8) {
            part.copy_from_slice(&random_u64().map_err(StartError::Random)?.to_le_bytes());
        }
        let secret = Secret::new(secret);
        let failed = |why: String| StartError::Process { pool: members[0].name.clone(), why };
        let endpoint = Endpoint::new(secret.clone()).map_err(|error| failed(error.to_string()))?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|error| failed(error.to_string()))?;
        let apart = |pool: PoolId| config.pools.get(pool.0 as usize).is_some_and(|pool| pool.process);
        let lane = |lane: &millrace_config::Lane| {
            apart(lane.prefill).then(|| RemoteLane {
                name: lane.name.clone(),
                prefill: lane.prefill,
                decode: lane.decode,
                max_waiting: lane.max_waiting as usize,
                max_tokens: usize::MAX,
                precision: config.precision(lane),
            })
        };
        let mut fleet = Self {
            lanes: config.lanes.iter().map(lane).collect(),
            jobs: Mutex::default(),
            clock,
            endpoint,
            secret,
            epoch: AtomicU64::new(1),
            config_file: config.source.clone(),
            stopping: watch::channel(false).0,
            members,
        };
        fleet.bound_lanes(config);
        let fleet = Arc::new(fleet);
        for row in 0..fleet.members.len() {
            runtime.spawn(supervisor::supervise(fleet.clone(), row));
        }
        match runtime.block_on(fleet.all_ready()) {
            Ok(()) => Ok(Some(fleet)),
            Err(error) => {
                fleet.stop();
                Err(error)
            }
        }
    }

    /// What the pools can hold, where their size is said in pages; where it is said in memory, the processes know and refuse.
    fn bound_lanes(&mut self, config: &Config) {
        for lane in self.lanes.iter_mut().flatten() {
            let held = [lane.prefill, lane.decode].into_iter().filter_map(|pool| {
                let pool = config.pools.get(pool.0 as usize)?;
                match pool.size {
                    millrace_config::PoolSize::Pages(pages) => Some((pages as usize).saturating_mul(pool.page_tokens as usize)),
                    millrace_config::PoolSize::MemoryMib(_) => None,
                }
            });
            lane.max_tokens = held.min().unwrap_or(usize::MAX);
        }
    }

    async fn all_ready(&self) -> Result<(), StartError> {
        for member in &self.members {
            let mut first = member.first.subscribe();
            let told = tokio::time::timeout(START_PATIENCE, first.wait_for(Option::is_some)).await;
            let why = match told.as_ref().map(|told| told.as_ref().map(|told| told.as_ref().map(|told| told.as_ref().err()))) {
                Ok(Ok(Some(None))) => continue,
                Ok(Ok(Some(Some(why)))) => why.to_string(),
                Ok(_) => "its supervisor is gone".to_owned(),
                Err(_) => format!("it did not load within {} s", START_PATIENCE.as_secs()),
            };
            return Err(StartError::Process { pool: member.name.clone(), why });
        }
        Ok(())
    }

    /// What a process said of its pool when it came up first.
    pub(crate) fn ready(&self, pool: PoolId) -> Option<Ready> {
        let member = self.members.iter().find(|member| member.pool == pool)?;
        member.first.borrow().as_ref().and_then(|told| told.as_ref().ok().cloned())
    }

    pub(crate) fn has_lane(&self, lane: LaneId) -> bool {
        self.lanes.get(lane.0 as usize).is_some_and(Option::is_some)
    }

    /// Hands a sequence to the prefill engine of its lane.
    ///
    /// # Errors
    /// Where the lane's queue is full, the sequence can never fit, or its processes are down.
    pub(crate) fn submit(&self, job: Job) -> Result<(), SubmitError> {
        let row = job.lane.0 as usize;
        let lane = self.lanes.get(row).and_then(Option::as_ref).ok_or(SubmitError::UnknownLane(job.lane))?;
        if *self.stopping.borrow() {
            return Err(SubmitError::ShuttingDown);
        }
        if job.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let needed = job.prompt.len().saturating_add(1);
        if needed > lane.max_tokens {
            return Err(SubmitError::TooLong { lane: lane.name.clone(), needed, limit: lane.max_tokens });
        }
        let full = |waiting| SubmitError::QueueFull { lane: lane.name.clone(), waiting, retry_after_ms: 1_000 };
        let Job { seq, request, tenant, priority, deadline_us, prompt, scope, sampling, events, .. } = job;
        let within_us = deadline_us.map(|at| at.saturating_sub(self.clock.now_us()));
        let replay = Replay { tokens: Vec::new(), preemptions: 0 };
        let submission =
            Submission { seq, request, lane: lane.name.clone(), tenant, priority, within_us, prompt, scope, sampling, replay };
        let mut jobs = lock(&self.jobs);
        let waiting = jobs.waiting(row);
        let orders = self.member(lane.prefill).and_then(|member| lock(&member.state).orders.clone());
        let room = orders.as_ref().and_then(|orders| orders.try_reserve().ok());
        let room = room.filter(|_| waiting < lane.max_waiting).ok_or_else(|| full(waiting))?;
        jobs.insert(Route { lane: row, prefill: lane.prefill, decode: lane.decode }, submission.clone(), events);
        // Under the lock, so that nothing is heard of it before it is known.
        room.send(Order::Submit(Box::new(submission)));
        Ok(())
    }

    pub(crate) fn abort(&self, seq: SeqId) {
        let errands = lock(&self.jobs).abort(seq);
        self.run(errands);
    }

    /// Ends all processes.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
        lock(&self.jobs).fail_all(&JobError::ShuttingDown);
    }

    /// Takes suspect pages of a pool back into use; the count comes with the log of its process. False: it is down, or no such.
    pub(crate) fn readmit(&self, pool: &str) -> bool {
        let member = self.members.iter().find(|member| member.name == pool);
        let orders = member.and_then(|member| lock(&member.state).orders.clone());
        orders.is_some_and(|orders| orders.try_send(Order::Readmit).is_ok())
    }

    pub(crate) fn processes(&self) -> Vec<ProcessFacts> {
        let facts = |member: &Member| {
            let state = lock(&member.state);
            let (pool, stage) = (member.name.clone(), member.stage);
            ProcessFacts { pool, stage, up: state.orders.is_some(), starts: state.starts, pid: state.pid }
        };
        self.members.iter().map(facts).collect()
    }

    /// What a process said of itself last, and whether it is up.
    pub(crate) fn facts(&self, pool: PoolId) -> Option<(EngineSnapshot, bool)> {
        let state = lock(&self.member(pool)?.state);
        let mut facts = state.facts.clone()?;
        add_counters(&mut facts.counters, &state.past);
        facts.step_tokens = facts.step_tokens.plus(&state.past_steps);
        Some((facts, state.orders.is_some()))
    }

    pub(crate) fn ends(&self, lane: usize) -> Option<(PoolId, PoolId)> {
        self.lanes.get(lane)?.as_ref().map(|lane| (lane.prefill, lane.decode))
    }

    pub(crate) fn lane_name(&self, lane: usize) -> Option<String> {
        self.lanes.get(lane)?.as_ref().map(|lane| lane.name.clone())
    }

    pub(crate) fn precision(&self, lane: usize) -> Option<Precision> {
        self.lanes.get(lane)?.as_ref()?.precision
    }

    fn member(&self, pool: PoolId) -> Option<&Member> {
        self.members.iter().find(|member| member.pool == pool)
    }

    /// Sends what is to be sent. To a process that is down, a sequence is sent when it is back; an abort has nothing to end there.
    fn run(&self, errands: Vec<Errand>) {
        for errand in errands {
            let (pool, order) = match &errand {
                Errand::Submit(pool, submission) => (*pool, Order::Submit(submission.clone())),
                Errand::Abort(pool, seq) => (*pool, Order::Abort(*seq)),
            };
            let Some(member) = self.member(pool) else { continue };
            let mut state = lock(&member.state);
            let sent = state.orders.as_ref().map(|orders| orders.try_send(order).is_ok());
            match (sent, errand) {
                (None, errand @ Errand::Submit(..)) => state.later.push(errand),
                // A process that takes no orders is found out by its supervisor, and loses everything then.
                (Some(false), _) => state.orders = None,
                _ => {}
            }
        }
    }
}
