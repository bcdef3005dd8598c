//! Breaking things on purpose, for tests (feature `fault-injection`, never in a release build).

use millrace_core::SeqId;

use crate::driver::Driver;
use crate::pool::Scheduler;

impl Driver {
    /// Hands a page of a decoding sequence out again while the sequence still uses it, as a bug in the pool would.
    pub(crate) fn steal_page(&mut self, victim: SeqId) -> Result<(), String> {
        for pool in &mut self.pools {
            if let Scheduler::Decode(scheduler) = &mut pool.scheduler
                && scheduler.steal_page(victim, 0).is_some()
            {
                return Ok(());
            }
        }
        Err(format!("sequence {victim} holds no page in a decode pool"))
    }
}
