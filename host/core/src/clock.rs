//! Time as a value that is handed in, so that everything below the node replays exactly.

/// A monotonic clock in microseconds since an arbitrary start.
pub trait Clock: Send + Sync {
    fn now_us(&self) -> u64;
}
