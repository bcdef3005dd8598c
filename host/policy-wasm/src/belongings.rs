//! What belongs to a policy's name rather than to an instance: its small state and its log budget. Both outlive rebuilds
//! and swaps. It does not know guests; time is handed in.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::PolicyLimits;

const MAX_KEY_BYTES: usize = 128;

/// State and log budget of one policy name.
#[derive(Debug)]
pub(crate) struct Belongings {
    state: Mutex<BTreeMap<String, Vec<u8>>>,
    log: Mutex<LogBudget>,
}

/// A token bucket over log lines.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogBudget {
    /// Lines that may pass now, times a million.
    micro_lines: u64,
    refilled_us: Option<u64>,
    /// Dropped since the last line that passed.
    dropped_now: u64,
    pub(crate) passed: u64,
    pub(crate) dropped: u64,
}

impl Belongings {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(BTreeMap::new()), log: Mutex::new(LogBudget::default()) }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        lock(&self.state).get(key).cloned()
    }

    /// Sets or, with an empty value, removes.
    ///
    /// # Errors
    /// Which bound was hit; nothing is changed then.
    pub(crate) fn set(&self, key: String, value: Vec<u8>, limits: &PolicyLimits) -> Result<(), String> {
        if key.len() > MAX_KEY_BYTES {
            return Err(format!("the key has {} bytes, at most {MAX_KEY_BYTES}", key.len()));
        }
        let mut state = lock(&self.state);
        if value.is_empty() {
            state.remove(&key);
            return Ok(());
        }
        if !state.contains_key(&key) && state.len() >= limits.state_keys {
            return Err(format!("there are {} keys already, the limit", state.len()));
        }
        let others: usize = state.iter().filter(|(k, _)| **k != key).map(|(k, v)| k.len() + v.len()).sum();
        let total = others.saturating_add(key.len()).saturating_add(value.len());
        if total > limits.state_bytes {
            return Err(format!("the state would have {total} bytes, at most {}", limits.state_bytes));
        }
        state.insert(key, value);
        Ok(())
    }

    /// Whether a line passes at this time; if so, how many were dropped since the last that did.
    pub(crate) fn pass_line(&self, now_us: u64, lines_per_second: u32) -> Option<u64> {
        lock(&self.log).pass(now_us, lines_per_second)
    }

    pub(crate) fn log_budget(&self) -> LogBudget {
        *lock(&self.log)
    }
}

impl LogBudget {
    fn pass(&mut self, now_us: u64, lines_per_second: u32) -> Option<u64> {
        const LINE: u64 = 1_000_000;
        let full = u64::from(lines_per_second).saturating_mul(LINE);
        let earned = match self.refilled_us {
            None => full,
            Some(then) => now_us.saturating_sub(then).saturating_mul(u64::from(lines_per_second)),
        };
        self.micro_lines = self.micro_lines.saturating_add(earned).min(full);
        self.refilled_us = Some(now_us);
        if self.micro_lines < LINE {
            self.dropped = self.dropped.saturating_add(1);
            self.dropped_now = self.dropped_now.saturating_add(1);
            return None;
        }
        self.micro_lines -= LINE;
        self.passed = self.passed.saturating_add(1);
        Some(std::mem::take(&mut self.dropped_now))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PolicyKind;

    #[test]
    fn lines_pass_at_the_rate_and_drops_are_told_once() {
        let mut log = LogBudget::default();
        let passed = |log: &mut LogBudget, now: u64| (0..100).filter(|_| log.pass(now, 5).is_some()).count();
        assert_eq!(passed(&mut log, 0), 5);
        assert_eq!(log.dropped, 95);
        assert_eq!(log.pass(200_000, 5), Some(95));
        assert_eq!(log.pass(399_999, 5), None);
        assert_eq!(log.pass(400_000, 5), Some(1));
        assert_eq!(passed(&mut log, 1_000_000_000), 5);
        assert_eq!(passed(&mut LogBudget::default(), 7), 5);
        assert_eq!(LogBudget::default().pass(0, 0), None);
    }

    #[test]
    fn state_is_bounded_in_keys_and_bytes() {
        let limits = PolicyLimits { state_keys: 2, state_bytes: 10, ..PolicyLimits::of(PolicyKind::Route) };
        let belongings = Belongings::new();
        let set = |key: &str, value: &[u8]| belongings.set(key.into(), value.to_vec(), &limits);
        assert_eq!(set("a", b"1234"), Ok(()));
        assert_eq!(set("b", b"1234"), Ok(()));
        assert!(set("c", b"1").is_err_and(|e| e.contains("2 keys")));
        assert!(set("a", b"12345").is_err_and(|e| e.contains("11 bytes")));
        assert_eq!(belongings.get("a"), Some(b"1234".to_vec()));
        assert_eq!(set("b", b""), Ok(()));
        assert_eq!(set("a", b"123456789"), Ok(()));
        assert!(set(&"k".repeat(129), b"1").is_err_and(|e| e.contains("129 bytes")));
        assert_eq!(belongings.get("b"), None);
    }
}
