//! Starts one stage's engine, whose lanes end in other processes. What is checked between the two pools of a lane is checked when
//! they connect, before a byte of a page moves.

use millrace_core::{LaneId, Stage};
use millrace_ops::KvLayout;

use crate::driver::{Driver, Ends, Lane};
use crate::handle::LaneGate;
use crate::handoff::{Link, LinkSpec, Receiving, Sending, terms};
use crate::pool::Pool;
use crate::start::{Parts, spawn, wake_of};
use crate::{EngineError, EngineHandle, PoolSpec, StageLane, StageSpec};

/// Starts an engine of one stage; it runs until [`EngineHandle::stop`].
///
/// # Errors
/// Where a pool cannot be allocated, or pools or lanes are not of one stage.
pub fn start_stage(spec: StageSpec) -> Result<EngineHandle, EngineError> {
    spawn(build_stage(spec)?)
}

/// Everything but the thread.
pub(crate) fn build_stage(spec: StageSpec) -> Result<Driver, EngineError> {
    let StageSpec { pools, lanes, tenants, schedule, clock, boot_nonce, sinks } = spec;
    let gates = lanes.iter().map(|lane| gate(lane, &pools)).collect::<Result<Vec<_>, _>>()?;
    let parts = Parts { gates, tenants, schedule, clock, boot_nonce, sinks: Some(sinks) };
    parts.build(&pools, |built, shared| {
        let rows = (0..).map(LaneId).zip(lanes);
        rows.map(|(id, lane)| {
            lane.port.bell().hang(wake_of(shared));
            build_lane(id, lane, &pools, built)
        })
        .collect()
    })
}

fn pool_of<'a>(lane: &StageLane, pools: &'a [PoolSpec]) -> Result<&'a PoolSpec, EngineError> {
    let why = || EngineError::Lane { lane: lane.name.clone(), why: format!("there is no pool {}", lane.pool) };
    pools.get(lane.pool.0 as usize).ok_or_else(why)
}

fn gate(lane: &StageLane, pools: &[PoolSpec]) -> Result<LaneGate, EngineError> {
    let pool = pool_of(lane, pools)?;
    let max_tokens = (pool.pages as usize).saturating_mul(pool.page_tokens as usize).min(pool.model.max_tokens());
    Ok(LaneGate { name: lane.name.clone(), max_waiting: lane.max_waiting, max_tokens, waiting: Default::default() })
}

fn build_lane(id: LaneId, lane: StageLane, specs: &[PoolSpec], pools: &[Pool]) -> Result<Lane, EngineError> {
    let spec = pool_of(&lane, specs)?;
    let row = lane.pool.0 as usize;
    let own: KvLayout = pools
        .get(row)
        .map(|pool| pool.runner.layout().clone())
        .unwrap_or_else(|| spec.model.kv_layout(spec.kv, spec.page_tokens as usize));
    let wire = match spec.stage {
        Stage::Prefill => lane.wire,
        Stage::Decode => own.format,
    };
    if !own.format.becomes(wire) {
        let why = format!("its prefill pool has {} pages, which cannot be sent as {wire}", own.format);
        return Err(EngineError::Lane { lane: lane.name, why });
    }
    let terms = terms(&lane.name, &lane.model, &spec.weights_digest, &own, wire);
    let link = LinkSpec { incarnation: lane.incarnation, port: lane.port, terms };
    let backend = spec.backend.as_ref();
    let (link, ends) = match spec.stage {
        Stage::Prefill => {
            let sending = Sending::new(link, &own, &own.in_format(wire), backend)?;
            (Link::Sending(Box::new(sending)), Ends { prefill: Some(row), decode: None })
        }
        Stage::Decode => {
            let receiving = Receiving::new(link, id, spec.model.vocab(), &own, backend)?;
            (Link::Receiving(Box::new(receiving)), Ends { prefill: None, decode: Some(row) })
        }
    };
    Ok(Lane { name: lane.name, precision: lane.precision, ends, link, ttft_us: 0, itl_us: 0 })
}
