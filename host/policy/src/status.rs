//! What a slot tells about itself: who is in force, and how its calls went. Plain data.

use crate::{BreakerState, FaultKind, PolicyReport};

/// Who a policy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyInfo {
    /// As the policy calls itself.
    pub name: String,
    pub version: String,
    /// Of the component's bytes, 64 hex digits; empty for native code.
    pub sha256: String,
    /// Where it came from: `built-in`, a path, `native`.
    pub origin: String,
}

impl PolicyInfo {
    /// Names native code.
    #[must_use]
    pub fn native(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sha256: String::new(),
            origin: "native".to_owned(),
        }
    }
}

/// A roll back that nobody asked for: the policy in force failed too often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolledBack {
    pub from: PolicyInfo,
    pub from_generation: u64,
    pub to: PolicyInfo,
    /// A number of its own, also where `to` was in force before.
    pub to_generation: u64,
    /// What went wrong last.
    pub last_fault: String,
}

/// How often each fault came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounts([u64; FaultKind::ALL.len()]);

impl FaultCounts {
    pub(crate) fn add(&mut self, kind: FaultKind) {
        if let Some(count) = self.0.get_mut(kind.index()) {
            *count = count.saturating_add(1);
        }
    }

    #[must_use]
    pub fn of(&self, kind: FaultKind) -> u64 {
        self.0.get(kind.index()).copied().unwrap_or(0)
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every kind with its count.
    pub fn iter(&self) -> impl Iterator<Item = (FaultKind, u64)> + '_ {
        FaultKind::ALL.iter().map(|&kind| (kind, self.of(kind)))
    }
}

/// Time in the policy, of the calls whose policy measures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    pub count: u64,
    pub sum_ns: u64,
    pub max_ns: u64,
    /// `buckets[i]` counts calls of at most `Latency::bound_ns(i)`, those of smaller buckets not included; the last has no bound.
    pub buckets: [u64; Latency::BUCKETS],
}

impl Latency {
    pub const BUCKETS: usize = 16;

    /// Upper bound of a bucket: 1,024 ns doubled `bucket` times.
    #[must_use]
    pub fn bound_ns(bucket: usize) -> Option<u64> {
        (bucket + 1 < Self::BUCKETS).then(|| 1_024u64 << bucket)
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.count = self.count.saturating_add(1);
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
        let bucket = (0..Self::BUCKETS).find(|&b| Self::bound_ns(b).is_none_or(|bound| ns <= bound));
        if let Some(count) = bucket.and_then(|b| self.buckets.get_mut(b)) {
            *count = count.saturating_add(1);
        }
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self { count: 0, sum_ns: 0, max_ns: 0, buckets: [0; Self::BUCKETS] }
    }
}

/// How calls went. `calls = ok + faults.total()`; beside decisions there is no fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    pub calls: u64,
    /// Answers of the policy that were used.
    pub ok: u64,
    pub faults: FaultCounts,
    /// Answers of the native fallback.
    pub fallbacks: u64,
    pub latency: Latency,
}

/// A slot at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotStatus {
    pub info: PolicyInfo,
    /// Counts the policies that were in force, the one in force included.
    pub generation: u64,
    /// It has answered [`crate::PROVEN_CALLS`] calls in a row without a fault.
    pub proven: bool,
    /// Since the slot was made.
    pub total: Counters,
    /// Of the generation in force.
    pub current: Counters,
    /// Calls that told policies what became of requests, since the slot was made.
    pub feedback: Counters,
    /// Calls that carried memory over swaps, `save` and `restore` each one, since the slot was made.
    pub handover: Counters,
    pub swaps: u64,
    /// Automatic ones and those that were asked for.
    pub rollbacks: u64,
    pub breaker: BreakerState,
    /// The last fault, with the generation in which it happened.
    pub last_error: Option<(u64, String)>,
    /// Who is returned to by one, two .. roll backs; the built-in comes last, and is not there while it is in force.
    pub way_back: Vec<PolicyInfo>,
    pub report: PolicyReport,
}

impl Counters {
    /// One call; what was not ready has no time.
    pub(crate) fn record(&mut self, fault: Option<FaultKind>, latency_ns: Option<u64>) {
        self.calls = self.calls.saturating_add(1);
        match fault {
            None => self.ok = self.ok.saturating_add(1),
            Some(kind) => self.faults.add(kind),
        }
        if let Some(ns) = latency_ns {
            self.latency.record(ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_buckets_cover_every_call_once() {
        let mut latency = Latency::default();
        for ns in [0, 1_024, 1_025, 2_048, 1 << 24, (1 << 24) + 1, u64::MAX] {
            latency.record(ns);
        }
        assert_eq!(latency.buckets[0], 2);
        assert_eq!(latency.buckets[1], 2);
        assert_eq!(latency.buckets[14], 1);
        assert_eq!(latency.buckets[15], 2);
        assert_eq!(latency.buckets.iter().sum::<u64>(), latency.count);
        assert_eq!(latency.sum_ns, u64::MAX);
    }
}
