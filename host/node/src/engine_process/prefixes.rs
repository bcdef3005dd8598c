//! What this engine's pool keeps of prompts, told to the node now and then: digests, so that the node can say of a prompt how much of it
//! is here without asking. What it says may be old, which costs a good route and nothing else.

use std::time::{Duration, Instant};

use millrace_core::LaneId;
use millrace_engine::EngineHandle;

use super::reports::Reports;
use crate::control::{MAX_PREFIX_PAGES, Report};

/// At most so often, and only where pages came or went: a whole report is half a MiB.
const EVERY: Duration = Duration::from_secs(1);

/// When it was told, and which changes were in it.
#[derive(Default)]
pub(super) struct Prefixes {
    told: Option<(Instant, u64)>,
}

impl Prefixes {
    /// All lanes of an engine process have its one pool.
    pub(super) fn tell(&mut self, engine: &EngineHandle, reports: &Reports) {
        if let Some(directory) = engine.prefixes(LaneId(0))
            && self.is_due(directory.changes(), Instant::now())
        {
            reports.tell(Report::Prefixes(directory.digests(MAX_PREFIX_PAGES)));
        }
    }

    fn is_due(&mut self, changes: u64, now: Instant) -> bool {
        let is_due = self.told.is_none_or(|(at, of)| of != changes && now.duration_since(at) >= EVERY);
        if is_due {
            self.told = Some((now, changes));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_at_once_then_when_pages_came_or_went_and_not_too_often() {
        let (mut prefixes, began) = (Prefixes::default(), Instant::now());
        let mut due = |changes, tenths: u64| prefixes.is_due(changes, began + Duration::from_millis(100 * tenths));
        let told = [due(0, 0), due(0, 20), due(1, 21), due(2, 25), due(2, 30), due(2, 31), due(2, 99)];
        assert_eq!(told, [true, false, true, false, false, true, false]);
    }
}
