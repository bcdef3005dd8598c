//! Faults of policies in the host's log: each kind named at once, and no flood where a policy fails in every step. It does not know what
//! a fault leads to.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_policy::{FaultKind, PolicyFault};
use millrace_policy_wasm::PolicyKind;

/// Between two lines about one kind of fault.
const PAUSE: Duration = Duration::from_secs(10);

/// Of one slot.
#[derive(Debug)]
pub(crate) struct FaultLog {
    kind: PolicyKind,
    lines: Mutex<[Line; FaultKind::ALL.len()]>,
}

/// Of one kind of fault: the last line, and what came since.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// Generation and time.
    last: Option<(u64, Instant)>,
    untold: u64,
}

impl FaultLog {
    pub(crate) fn new(kind: PolicyKind) -> Self {
        Self { kind, lines: Mutex::default() }
    }

    /// Writes a line, or counts what the next one tells.
    pub(crate) fn fault(&self, generation: u64, fault: &PolicyFault) {
        // Too little time was left of a step: told by metrics, and no fault of the policy.
        if fault.kind == FaultKind::Late {
            return;
        }
        if let Some(untold) = self.due(generation, fault.kind, Instant::now()) {
            let kind = self.kind;
            tracing::warn!(
                target: "millrace::policy",
                %kind, generation, reason = %fault.kind, untold, "{fault}; the native fallback serves where it was to decide"
            );
        }
    }

    /// How many were not told, where a line is due.
    fn due(&self, generation: u64, kind: FaultKind, now: Instant) -> Option<u64> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.get_mut(kind.index())?;
        if line.last.is_some_and(|(of, at)| of == generation && now.saturating_duration_since(at) < PAUSE) {
            line.untold = line.untold.saturating_add(1);
            return None;
        }
        line.last = Some((generation, now));
        Some(std::mem::take(&mut line.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_at_once_then_now_and_then_with_what_was_not() {
        let (log, now) = (FaultLog::new(PolicyKind::Schedule), Instant::now());
        let due = |generation, kind, seconds| log.due(generation, kind, now + Duration::from_secs(seconds));
        assert_eq!(due(1, FaultKind::Trap, 0), Some(0));
        assert_eq!((due(1, FaultKind::Trap, 1), due(1, FaultKind::Trap, 9)), (None, None));
        assert_eq!(due(1, FaultKind::Timeout, 1), Some(0), "another kind");
        assert_eq!(due(1, FaultKind::Trap, 10), Some(2));
        assert_eq!(due(2, FaultKind::Trap, 10), Some(0), "another policy");
    }
}
