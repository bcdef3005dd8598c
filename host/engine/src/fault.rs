//! Breaking things on purpose, and looking whether all is whole, for tests and the simulator (feature `fault-injection`).

use millrace_core::{SeqId, Stage};

use crate::driver::Driver;
use crate::pool::{Pool, Scheduler};

impl Driver {
    /// Hands a page of a sequence out again while the sequence still uses it, as a bug in the pool would: in decode where it is there,
    /// otherwise in prefill.
    pub(crate) fn steal_page(&mut self, victim: SeqId) -> Result<(), String> {
        let stolen_in = |stage: Stage, pools: &mut [Pool]| {
            pools.iter_mut().filter(|pool| pool.stage() == stage).any(|pool| match &mut pool.scheduler {
                Scheduler::Prefill(scheduler) => scheduler.steal_page(victim, 0).is_some(),
                Scheduler::Decode(scheduler) => scheduler.steal_page(victim, 0).is_some(),
            })
        };
        if stolen_in(Stage::Decode, &mut self.pools) || stolen_in(Stage::Prefill, &mut self.pools) {
            return Ok(());
        }
        Err(format!("sequence {victim} holds no page"))
    }

    /// What must hold of every pool between two passes.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        for pool in &self.pools {
            let checked = match &pool.scheduler {
                Scheduler::Prefill(scheduler) => scheduler.check_invariants(),
                Scheduler::Decode(scheduler) => scheduler.check_invariants(),
            };
            checked.map_err(|why| format!("pool `{}`: {why}", pool.name))?;
        }
        Ok(())
    }

    /// The theft was noticed: whoever got the pages gives them back, so that they can be taken back into use.
    pub(crate) fn return_stolen(&mut self) {
        for pool in &mut self.pools {
            match &mut pool.scheduler {
                Scheduler::Prefill(scheduler) => scheduler.return_all_stolen(),
                Scheduler::Decode(scheduler) => scheduler.return_all_stolen(),
            }
        }
    }
}
