//! Numbers for requests and sequences, and random numbers. Ids are counted, so none comes twice in a process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use millrace_core::{Clock, RequestId, SeqId};

#[derive(Debug, Default)]
pub(crate) struct Ids(AtomicU64);

impl Ids {
    /// One request has one sequence for now, so both have the same number.
    pub(crate) fn next(&self) -> (RequestId, SeqId) {
        let id = self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        (RequestId(id), SeqId(id))
    }
}

/// A random number.
///
/// # Errors
/// Where the operating system gives none.
pub(crate) fn random_u64() -> Result<u64, String> {
    getrandom::u64().map_err(|error| format!("the operating system gave no random bytes: {error}"))
}

/// A secret of this process.
///
/// # Errors
/// Where the operating system gives no random numbers.
pub(crate) fn secret() -> Result<[u8; 32], String> {
    let mut secret = [0; 32];
    for part in secret.chunks_exact_mut(8) {
        part.copy_from_slice(&random_u64()?.to_le_bytes());
    }
    Ok(secret)
}

/// The machine's monotonic clock, from 1 µs on when it is made.
#[derive(Debug)]
pub(crate) struct MonotonicClock(Instant);

impl MonotonicClock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for MonotonicClock {
    fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX).saturating_add(1)
    }
}
