//! Time that moves when it is told to. Knows nothing of who looks.

use std::sync::atomic::{AtomicU64, Ordering};

use millrace_core::Clock;

/// Starts at a second, so that nothing looks as if it had happened before time began.
#[derive(Debug)]
pub(crate) struct VirtualClock(AtomicU64);

impl Default for VirtualClock {
    fn default() -> Self {
        Self(AtomicU64::new(1_000_000))
    }
}

impl VirtualClock {
    pub(crate) fn advance(&self, us: u64) {
        self.0.fetch_add(us, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
