//! Every engine of the node as one: the driver in this process, and the processes beside it. Where there are none beside it, nothing
//! stands between a request and the driver.

use std::sync::Arc;

use millrace_core::{LaneId, PoolId, SeqId};
use millrace_engine::{EngineHandle, EngineSnapshot, Hold, Job, LaneFacts, LaneSpeed, ReadmitError, SubmitError};
use millrace_kv::PrefixScope;

use crate::control::add_counters;
use crate::error::NotTaken;
use crate::fleet::{Fleet, ProcessFacts};

/// Cheap to clone.
#[derive(Clone)]
pub struct Engines {
    local: EngineHandle,
    fleet: Option<Arc<Fleet>>,
    /// By lane of the configuration: its number in this process's engine.
    homes: Arc<[Option<LaneId>]>,
    /// By pool of the configuration: its number in this process's engine.
    pools: Arc<[Option<PoolId>]>,
}

impl Engines {
    pub(crate) fn new(
        local: EngineHandle,
        fleet: Option<Arc<Fleet>>,
        homes: Vec<Option<LaneId>>,
        pools: Vec<Option<PoolId>>,
    ) -> Self {
        Self { local, fleet, homes: homes.into(), pools: pools.into() }
    }

    pub(crate) fn submit(&self, job: Job) -> Result<(), NotTaken> {
        match &self.fleet {
            Some(fleet) if fleet.has_lane(job.lane) => fleet.submit(job),
            Some(_) => {
                let home = self.homes.get(job.lane.0 as usize).copied().flatten();
                let lane = home.ok_or(SubmitError::UnknownLane(job.lane))?;
                Ok(self.local.submit(Job { lane, ..job })?)
            }
            None => Ok(self.local.submit(job)?),
        }
    }

    /// Tokens at the beginning of a prompt that the lane's prefill pool keeps within this scope; none where it keeps no prompts. Of a
    /// process of its own: as it said last, since it is not asked for every request.
    pub(crate) fn prefix_hit_tokens(&self, row: LaneId, scope: PrefixScope, prompt: &[u32]) -> Option<u32> {
        match &self.fleet {
            None => self.local.prefix_hit_tokens(row, scope, prompt),
            Some(fleet) if fleet.has_lane(row) => fleet.prefix_hit_tokens(row, scope, prompt),
            Some(_) => self.local.prefix_hit_tokens(self.homes.get(row.0 as usize).copied().flatten()?, scope, prompt),
        }
    }

    pub(crate) fn abort(&self, seq: SeqId) {
        self.local.abort(seq);
        if let Some(fleet) = &self.fleet {
            fleet.abort(seq);
        }
    }

    /// Whether the engine within this process has come to its end.
    pub(crate) fn has_ended(&self) -> bool {
        self.local.has_ended()
    }

    pub(crate) fn drain(&self) {
        self.local.drain();
    }

    pub(crate) fn stop(&self) {
        self.local.stop();
        if let Some(fleet) = &self.fleet {
            fleet.stop();
        }
    }

    /// # Errors
    /// Where there is no such pool or the engine does not answer. `None`: a process was told, and says in the log how many.
    pub(crate) fn readmit(&self, row: PoolId, name: &str) -> Result<Option<u32>, ReadmitError> {
        match &self.fleet {
            None => self.local.readmit(row).map(Some),
            Some(fleet) => match self.pools.get(row.0 as usize).copied().flatten() {
                Some(local) => self.local.readmit(local).map(Some),
                None if fleet.readmit(name) => Ok(None),
                None => Err(ReadmitError::UnknownPool(row)),
            },
        }
    }

    /// # Errors
    /// Where the sequence holds no page in a decode pool of this process.
    #[cfg(feature = "fault-injection")]
    pub fn steal_page(&self, victim: SeqId) -> Result<(), String> {
        self.local.steal_page(victim)
    }

    /// Keeps a pool of this process from beginning steps, or lets it; processes of their own are not held.
    pub fn hold(&self, row: PoolId, hold: Hold) {
        let local = if self.fleet.is_some() { self.pools.get(row.0 as usize).copied().flatten() } else { Some(row) };
        local.into_iter().for_each(|local| self.local.hold(local, hold));
    }

    /// The engine processes, if there are any.
    pub fn processes(&self) -> Vec<ProcessFacts> {
        self.fleet.as_ref().map(|fleet| fleet.processes()).unwrap_or_default()
    }

    /// State of all engines, lanes and pools in the order of the configuration.
    pub fn snapshot(&self) -> Arc<EngineSnapshot> {
        let local = self.local.snapshot();
        match &self.fleet {
            None => local,
            Some(fleet) => Arc::new(self.merged(&local, fleet)),
        }
    }

    fn merged(&self, local: &EngineSnapshot, fleet: &Fleet) -> EngineSnapshot {
        let mut all = local.clone();
        all.lanes = (0..).zip(self.homes.iter()).filter_map(|(row, home)| self.lane(local, fleet, row, *home)).collect();
        all.pools = Vec::with_capacity(self.pools.len());
        for (row, home) in (0..).map(PoolId).zip(self.pools.iter()) {
            if let Some(home) = home {
                all.pools.extend(local.pools.get(home.0 as usize).cloned());
                continue;
            }
            let Some((facts, up)) = fleet.facts(row) else { continue };
            add_counters(&mut all.counters, &facts.counters);
            all.step_tokens = all.step_tokens.plus(&facts.step_tokens);
            all.links.extend(facts.links);
            for (own, tenant) in all.tenants.iter_mut().zip(&facts.tenants) {
                own.waiting = own.waiting.saturating_add(tenant.waiting);
                own.running = own.running.saturating_add(tenant.running);
                own.tokens_served = own.tokens_served.saturating_add(tenant.tokens_served);
                own.cached_pages = own.cached_pages.saturating_add(tenant.cached_pages);
                own.page_quota = own.page_quota.saturating_add(tenant.page_quota);
            }
            all.pools.extend(facts.pools.into_iter().map(|mut pool| {
                pool.healthy &= up;
                pool
            }));
        }
        all
    }

    /// A lane's waiting sequences and time to a first token are prefill's; pages and gaps between tokens decode's.
    fn lane(&self, local: &EngineSnapshot, fleet: &Fleet, row: usize, home: Option<LaneId>) -> Option<LaneFacts> {
        let lane = LaneId(u32::try_from(row).ok()?);
        if let Some(home) = home {
            return local.lanes.get(home.0 as usize).cloned().map(|facts| LaneFacts { lane, ..facts });
        }
        let (prefill, decode) = fleet.ends(row)?;
        let (prefill, prefill_up) = fleet.facts(prefill)?;
        let (decode, decode_up) = fleet.facts(decode)?;
        let decode_lane = |name: &str| decode.lanes.iter().find(|lane| lane.name == name);
        let name = fleet.lane_name(row)?;
        let from = prefill.lanes.iter().find(|lane| lane.name == name)?;
        let to = decode_lane(&name)?;
        Some(LaneFacts {
            lane,
            name,
            precision: fleet.precision(row)?,
            waiting: from.waiting,
            running: from.running.saturating_add(to.running),
            kv_used_per_mille: to.kv_used_per_mille,
            free_pages: to.free_pages,
            total_pages: to.total_pages,
            ttft_us: from.ttft_us,
            itl_us: to.itl_us,
            speed: LaneSpeed { prefill_tokens_per_s: from.speed.prefill_tokens_per_s, ..to.speed },
            healthy: prefill_up && decode_up && from.healthy && to.healthy,
        })
    }
}
