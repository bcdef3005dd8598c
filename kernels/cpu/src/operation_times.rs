//! Measures operations: the first worker looks at the clock after each one. Off until asked for; then it costs two looks at the
//! clock an operation. Knows neither queues nor what operations do.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use millrace_ops::{OperationKind, OperationTime};

use crate::queue::lock;

/// Sums over all submissions of a pool.
#[derive(Default)]
pub(crate) struct OperationTimes {
    wanted: AtomicBool,
    /// Calls and nanoseconds. Bounded: one entry for each kind and shape in the models of the device.
    sums: Mutex<BTreeMap<OperationKind, (u64, u64)>>,
}

/// One submission's operations, measured one after the other.
pub(crate) struct Stopwatch<'a> {
    times: &'a OperationTimes,
    last: Instant,
}

impl OperationTimes {
    pub(crate) fn begin(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// For the first worker and one submission; `None` while nobody wants to know.
    pub(crate) fn stopwatch(&self) -> Option<Stopwatch<'_>> {
        self.wanted.load(Ordering::Relaxed).then(|| Stopwatch { times: self, last: Instant::now() })
    }

    pub(crate) fn read(&self) -> Vec<OperationTime> {
        let entry = |(&kind, &(calls, time_ns)): (&OperationKind, &(u64, u64))| OperationTime { kind, calls, time_ns };
        lock(&self.sums).iter().map(entry).collect()
    }
}

impl Stopwatch<'_> {
    /// An operation has ended, and the next one begins.
    pub(crate) fn lap(&mut self, kind: OperationKind) {
        let now = Instant::now();
        let took_ns = u64::try_from(now.duration_since(self.last).as_nanos()).unwrap_or(u64::MAX);
        let mut sums = lock(&self.times.sums);
        let (calls, time_ns) = sums.entry(kind).or_default();
        (*calls, *time_ns) = (calls.saturating_add(1), time_ns.saturating_add(took_ns));
        self.last = now;
    }
}
