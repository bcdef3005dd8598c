//! Builds an engine from its spec, and starts the driver thread where it is to have one. Checks that every lane's hand-off is possible
//! before anything runs.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use millrace_core::{Clock, PoolId, Stage};
use millrace_kv::{PagePool, PoolOptions};
use millrace_ops::{Backend, Wake};
use millrace_policy::ScheduleSlot;
use millrace_scheduler::{DecodeScheduler, PrefillScheduler, TenantLedger, TenantShare};

use crate::devices::Devices;
use crate::driver::{Driver, Ends, Lane};
use crate::handle::{Hold, Inbox, LaneGate, Shared};
use crate::handoff::{HandOff, Link, Terms};
use crate::jobs::JobTable;
use crate::pool::{Pool, Scheduler};
use crate::rate::Rate;
use crate::returning::Returning;
use crate::runner::StageRunner;
use crate::spec::SinkOf;
use crate::step_times::StepTimes;
use crate::{Counters, EngineError, EngineHandle, EngineSnapshot, EngineSpec, LaneSpec, PhaseTimes, PoolSpec, TokenHistogram};

/// Room for the host side of a policy call: wasmtime needs its guest stack and ours on the driver thread.
const DRIVER_STACK_BYTES: usize = 8 << 20;

/// After so long, service counts half: a tenant that was busy yesterday is not punished today.
const SERVICE_HALF_LIFE_US: u64 = 60_000_000;

/// Starts an engine; it runs until [`EngineHandle::stop`].
///
/// # Errors
/// Where a pool cannot be allocated, or a lane's pools cannot hand off to each other.
pub fn start(spec: EngineSpec) -> Result<EngineHandle, EngineError> {
    spawn(build(spec)?)
}

/// Gives a driver its thread.
pub(crate) fn spawn(driver: Driver) -> Result<EngineHandle, EngineError> {
    let shared = driver.shared.clone();
    let ends = Ending(shared.clone());
    std::thread::Builder::new()
        .name("engine".into())
        .stack_size(DRIVER_STACK_BYTES)
        .spawn(move || {
            // Dropped last, however the driver ends.
            let _ends = ends;
            driver.run();
        })
        .map_err(EngineError::Thread)?;
    Ok(EngineHandle { shared })
}

/// Notes that a driver's thread has come to its end, unwinding as well.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

/// Everything but the thread.
pub(crate) fn build(spec: EngineSpec) -> Result<Driver, EngineError> {
    let gates = spec.lanes.iter().map(|lane| gate(lane, &spec.pools)).collect::<Result<Vec<_>, _>>()?;
    let EngineSpec { pools: specs, lanes, tenants, schedule, clock, boot_nonce } = spec;
    let parts = Parts { gates, tenants, schedule, clock, boot_nonce, sinks: None };
    parts.build(&specs, |pools, _| lanes.into_iter().map(|lane| build_lane(lane, &specs, pools, boot_nonce)).collect())
}

/// What an engine has beside pools and lanes.
pub(crate) struct Parts {
    pub(crate) gates: Vec<LaneGate>,
    pub(crate) tenants: Vec<TenantShare>,
    pub(crate) schedule: Arc<ScheduleSlot>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) boot_nonce: u16,
    pub(crate) sinks: Option<Box<SinkOf>>,
}

impl Parts {
    /// Builds pools, then lanes out of them.
    pub(crate) fn build(
        self,
        specs: &[PoolSpec],
        build_lanes: impl FnOnce(&[Pool], &Arc<Shared>) -> Result<Vec<Lane>, EngineError>,
    ) -> Result<Driver, EngineError> {
        let shared = Arc::new(Shared {
            inbox: Inbox::default(),
            gates: self.gates,
            draining: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            snapshot: Mutex::new(Arc::new(EngineSnapshot::default())),
            prefixes: OnceLock::new(),
            clock: self.clock,
        });
        let backends: Vec<Arc<dyn Backend>> = specs.iter().map(|pool| pool.backend.clone()).collect();
        let (devices, device_rows) = Devices::of(&backends);
        let pools = specs
            .iter()
            .zip(device_rows)
            .map(|(pool, device)| build_pool(pool, device, self.boot_nonce, &shared))
            .collect::<Result<Vec<_>, _>>()?;
        let lanes = build_lanes(&pools, &shared)?;
        let directory = |lane: &Lane| pools.get(lane.ends.prefill?).and_then(|pool| pool.pages().prefix_directory());
        let _first = shared.prefixes.set(lanes.iter().map(directory).collect());
        let mut driver = Driver {
            shared: shared.clone(),
            pools,
            lanes,
            jobs: JobTable::default(),
            returning: Returning::default(),
            tenants: self.tenants.len(),
            ledger: TenantLedger::new(&self.tenants, SERVICE_HALF_LIFE_US),
            schedule_generation: self.schedule.generation(),
            schedule: self.schedule,
            counters: Counters::default(),
            step_tokens: TokenHistogram::default(),
            devices,
            sinks: self.sinks,
        };
        driver.publish_snapshot();
        Ok(driver)
    }
}

/// Wakes the driver.
pub(crate) fn wake_of(shared: &Arc<Shared>) -> Wake {
    let shared = Arc::downgrade(shared);
    Arc::new(move || shared.upgrade().into_iter().for_each(|shared| shared.inbox.ring()))
}

fn pool_of<'a>(pools: &'a [PoolSpec], id: PoolId, stage: Stage, lane: &LaneSpec) -> Result<&'a PoolSpec, EngineError> {
    let why = |why: String| EngineError::Lane { lane: lane.name.clone(), why };
    let pool = pools.get(id.0 as usize).ok_or_else(|| why(format!("there is no pool {id}")))?;
    if pool.stage != stage {
        return Err(why(format!("pool `{}` is a {} pool; a {stage} pool is needed", pool.name, pool.stage)));
    }
    Ok(pool)
}

fn gate(lane: &LaneSpec, pools: &[PoolSpec]) -> Result<LaneGate, EngineError> {
    let prefill = pool_of(pools, lane.prefill, Stage::Prefill, lane)?;
    let decode = pool_of(pools, lane.decode, Stage::Decode, lane)?;
    let holds = |pool: &PoolSpec| (pool.pages as usize).saturating_mul(pool.page_tokens as usize);
    let max_tokens = holds(prefill).min(holds(decode)).min(prefill.model.max_tokens());
    Ok(LaneGate { name: lane.name.clone(), max_waiting: lane.max_waiting, max_tokens, waiting: AtomicUsize::new(0) })
}

/// Notes when the device has ended something of a pool, and wakes the driver.
fn wake(shared: &Arc<Shared>, ended_us: &Arc<AtomicU64>) -> Wake {
    let (shared, ended_us) = (Arc::downgrade(shared), ended_us.clone());
    Arc::new(move || {
        if let Some(shared) = shared.upgrade() {
            ended_us.store(shared.clock.now_us(), Ordering::Release);
            shared.inbox.ring();
        }
    })
}

fn build_pool(spec: &PoolSpec, device: usize, boot_nonce: u16, shared: &Arc<Shared>) -> Result<Pool, EngineError> {
    let options = PoolOptions { pages: spec.pages, page_tokens: spec.page_tokens, boot_nonce, zero_freed: spec.zero_freed };
    let failed = |why: String| EngineError::Pool { pool: spec.name.clone(), why };
    let mut pages = PagePool::new(options).map_err(|e| failed(e.to_string()))?;
    let scheduler = match spec.stage {
        Stage::Prefill => {
            spec.prefixes.into_iter().for_each(|prefixes| pages.cache_prefixes(prefixes));
            Scheduler::Prefill(PrefillScheduler::new(spec.limits, pages))
        }
        Stage::Decode => Scheduler::Decode(DecodeScheduler::new(spec.limits, pages)),
    };
    let ended_us = Arc::new(AtomicU64::new(0));
    Ok(Pool {
        name: spec.name.clone(),
        scheduler,
        runner: StageRunner::new(spec, wake(shared, &ended_us))?,
        draft: None,
        draft_is_old: false,
        steps: 0,
        step_us: 0,
        rate: Rate::default(),
        phases: PhaseTimes::default(),
        times: StepTimes::default(),
        device,
        ended_us,
        last_rows: 0,
        failure: None,
        hold: Hold::Free,
    })
}

fn build_lane(lane: LaneSpec, specs: &[PoolSpec], pools: &[Pool], boot_nonce: u16) -> Result<Lane, EngineError> {
    let (prefill, decode) = (&specs[lane.prefill.0 as usize], &specs[lane.decode.0 as usize]);
    if !Arc::ptr_eq(&prefill.backend, &decode.backend) {
        let why =
            format!("pools `{}` and `{}` are on different devices; the in-process hand-off needs one", prefill.name, decode.name);
        return Err(EngineError::Lane { lane: lane.name, why });
    }
    let terms = |spec: &PoolSpec, pool: &Pool| Terms {
        weights_digest: spec.weights_digest.clone(),
        layout: pool.runner.layout().clone(),
        boot_nonce,
    };
    let (from, to) = (&pools[lane.prefill.0 as usize], &pools[lane.decode.0 as usize]);
    if let Err(refusal) = terms(prefill, from).check(&terms(decode, to)) {
        return Err(EngineError::HandOff { lane: lane.name, refusal });
    }
    let hand_off = HandOff::new(from.runner.layout(), decode.backend.as_ref())?;
    let ends = Ends { prefill: Some(lane.prefill.0 as usize), decode: Some(lane.decode.0 as usize) };
    let link = Link::InProcess(Box::new(hand_off));
    Ok(Lane { name: lane.name, precision: lane.precision, ends, link, ttft_us: 0, itl_us: 0 })
}
