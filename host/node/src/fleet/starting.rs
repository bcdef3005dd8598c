//! The start of a fleet: a secret, a task for each process, and patience until all are loaded. What was started ends again where the
//! node's start comes to nothing after all.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_config::{Config, Lane, Pool, PoolSize};
use millrace_core::{Clock, PoolId};
use millrace_transfer::tcp::{Endpoint, Secret};
use tokio::sync::watch;
use tokio::time::timeout;

use super::member::Member;
use super::schedule::Schedules;
use super::{Fleet, RemoteLane, supervisor};
use crate::deployed;
use crate::error::StartError;
use crate::ids::random_u64;

/// How long all processes together may take to load at start.
const START_PATIENCE: Duration = Duration::from_secs(3600);

/// A fleet whose node is not there yet; `None` within: the configuration names no process. Dropped, it ends its processes.
pub(crate) struct Starting(Option<Arc<Fleet>>);

impl Starting {
    /// Starts every process that the configuration names and waits until all are loaded. Not for a runtime's threads, but within
    /// one.
    ///
    /// # Errors
    /// Why one does not come up.
    pub(crate) fn all(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        let Some(fleet) = Fleet::new(config, clock)? else { return Ok(Self(None)) };
        let fleet = Arc::new(fleet);
        let runtime = tokio::runtime::Handle::try_current().map_err(|error| {
            let pool = fleet.members.first().map(|member| member.name.clone()).unwrap_or_default();
            StartError::Process { pool, why: error.to_string() }
        })?;
        let starting = Self(Some(fleet.clone()));
        for row in 0..fleet.members.len() {
            runtime.spawn(supervisor::supervise(fleet.clone(), row));
        }
        runtime.block_on(all_ready(&fleet.members, START_PATIENCE))?;
        Ok(starting)
    }

    pub(crate) fn fleet(&self) -> Option<&Fleet> {
        self.0.as_deref()
    }

    /// The node is there: the processes run as long as it.
    pub(crate) fn keep(mut self) -> Option<Arc<Fleet>> {
        self.0.take()
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.iter().for_each(|fleet| fleet.stop());
    }
}

impl Fleet {
    /// Of the processes that the configuration names; none is started yet. `None`: it names none.
    ///
    /// # Errors
    /// Where the operating system gives no random bytes, or no certificate can be made.
    pub(super) fn new(config: &Config, clock: Arc<dyn Clock>) -> Result<Option<Self>, StartError> {
        let pools = (0..).map(PoolId).zip(&config.pools).filter(|(_, pool)| pool.process);
        let member =
            |(id, pool): (PoolId, &Pool)| Member::new(id, pool.name.clone(), pool.stage, deployed::digest(config, id.0 as usize));
        let members: Vec<Member> = pools.map(member).collect();
        let Some(first) = members.first() else { return Ok(None) };
        let mut secret = [0; 32];
        for part in secret.chunks_exact_mut(8) {
            part.copy_from_slice(&random_u64().map_err(StartError::Random)?.to_le_bytes());
        }
        let secret = Secret::new(secret);
        let failed = |why: String| StartError::Process { pool: first.name.clone(), why };
        let endpoint = Endpoint::new(secret.clone()).map_err(|error| failed(error.to_string()))?;
        Ok(Some(Self {
            lanes: config.lanes.iter().map(|lane| remote_lane(config, lane)).collect(),
            jobs: Mutex::default(),
            schedules: Schedules::default(),
            clock,
            endpoint,
            secret,
            epoch: AtomicU64::new(1),
            config_file: config.source.clone(),
            stopping: watch::channel(false).0,
            members,
        }))
    }
}

fn remote_lane(config: &Config, lane: &Lane) -> Option<RemoteLane> {
    let pool = |id: PoolId| config.pools.get(id.0 as usize);
    if !pool(lane.prefill).is_some_and(|pool| pool.process) {
        return None;
    }
    // Where a pool's size is said in pages, it is known what it can hold; where it is said in memory, its process knows and refuses.
    let held = [lane.prefill, lane.decode].into_iter().filter_map(|id| match pool(id)?.size {
        PoolSize::Pages(pages) => Some((pages as usize).saturating_mul(pool(id)?.page_tokens as usize)),
        PoolSize::MemoryMib(_) => None,
    });
    Some(RemoteLane {
        name: lane.name.clone(),
        prefill: lane.prefill,
        decode: lane.decode,
        max_waiting: lane.max_waiting as usize,
        max_tokens: held.min().unwrap_or(usize::MAX),
        precision: config.precision(lane),
    })
}

/// Waits for all, so long in total.
async fn all_ready(members: &[Member], patience: Duration) -> Result<(), StartError> {
    let deadline = tokio::time::Instant::now() + patience;
    for member in members {
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        let late = || format!("it is not loaded {} s after the start", patience.as_secs());
        let told = timeout(left, member.first_told()).await.unwrap_or_else(|_| Err(late()));
        told.map_err(|why| StartError::Process { pool: member.name.clone(), why })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn patience_is_for_all_processes_together() {
        let members =
            ["a", "b", "c"].map(|name| Member::new(PoolId(0), name.into(), millrace_core::Stage::Decode, String::new()));
        // Each would answer within its own patience, and none within what is left of the common one.
        let began = tokio::time::Instant::now();
        let telling = async {
            for member in &members {
                tokio::time::sleep(Duration::from_millis(1_000)).await;
                member.tell_first(Ok(crate::control::samples::ready()));
            }
        };
        let (told, ()) = tokio::join!(all_ready(&members, Duration::from_millis(1_500)), telling);
        assert!(told.is_err_and(|error| error.to_string().contains("pool `b`")), "after {:?}", began.elapsed());
    }

    #[test]
    fn a_start_that_comes_to_nothing_ends_its_processes() {
        let fleet = |stops: bool| {
            let config = millrace_config::parse(crate::deployed::tests::TEXT, "deploy.toml").unwrap();
            let fleet = Arc::new(Fleet::new(&config, Arc::new(crate::ids::MonotonicClock::new())).unwrap().unwrap());
            let starting = Starting(Some(fleet.clone()));
            if stops {
                drop(starting)
            } else {
                assert!(starting.keep().is_some())
            }
            *fleet.stopping.borrow()
        };
        assert!(fleet(true));
        assert!(!fleet(false));
    }
}
