//! A circuit breaker: after too many faults in a row a policy rests, then is tried with a single call.
//!
//! ```text
//!            K faults in a row                backoff over
//!   closed -------------------> open(until) ---------------> half open
//!     ^                           ^                             | |
//!     |            fault: backoff x 2, up to the bound          | |
//!     |                           +-----------------------------+ |
//!     +-----------------------------------------------------------+
//!                                  good answer
//! ```
//! Pure: time is handed in. It does not know what a policy is.

/// When to open and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Faults in a row that open the breaker; `u32::MAX` holds it closed.
    pub faults_to_open: u32,
    /// First rest.
    pub backoff_us: u64,
    /// Longest rest; each fault in the half-open state doubles the rest up to this.
    pub max_backoff_us: u64,
    /// Openings, without a good answer in between, after which an earlier generation takes over; `u32::MAX`: never.
    pub opens_to_roll_back: u32,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { faults_to_open: 3, backoff_us: 1_000_000, max_backoff_us: 300_000_000, opens_to_roll_back: 3 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    Open {
        /// On the clock of the `now_us` arguments.
        until_us: u64,
    },
    /// The next call is a trial.
    HalfOpen,
}

/// See the module's drawing.
#[derive(Debug, Clone)]
pub struct Breaker {
    settings: BreakerSettings,
    state: BreakerState,
    faults_in_a_row: u32,
    opens_in_a_row: u32,
    backoff_us: u64,
}

impl Breaker {
    #[must_use]
    pub fn new(settings: BreakerSettings) -> Self {
        Self { settings, state: BreakerState::Closed, faults_in_a_row: 0, opens_in_a_row: 0, backoff_us: settings.backoff_us }
    }

    /// Whether the policy may be called now.
    pub fn admits(&mut self, now_us: u64) -> bool {
        if let BreakerState::Open { until_us } = self.state {
            if now_us < until_us {
                return false;
            }
            self.state = BreakerState::HalfOpen;
        }
        true
    }

    pub fn succeeded(&mut self) {
        *self = Self::new(self.settings);
    }

    /// Counts a fault; true if it opened the breaker.
    pub fn failed(&mut self, now_us: u64) -> bool {
        self.faults_in_a_row = self.faults_in_a_row.saturating_add(1);
        let trial = self.state == BreakerState::HalfOpen;
        if !trial && (self.settings.faults_to_open == u32::MAX || self.faults_in_a_row < self.settings.faults_to_open) {
            return false;
        }
        if trial {
            self.backoff_us = self.backoff_us.saturating_mul(2).min(self.settings.max_backoff_us);
        }
        self.opens_in_a_row = self.opens_in_a_row.saturating_add(1);
        self.state = BreakerState::Open { until_us: now_us.saturating_add(self.backoff_us) };
        true
    }

    /// Whether the generation failed so often that an earlier one should take over.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.settings.opens_to_roll_back != u32::MAX && self.opens_in_a_row >= self.settings.opens_to_roll_back
    }

    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: BreakerSettings =
        BreakerSettings { faults_to_open: 3, backoff_us: 100, max_backoff_us: 250, opens_to_roll_back: 3 };

    #[test]
    fn opens_after_faults_in_a_row_only() {
        let mut breaker = Breaker::new(SETTINGS);
        for _ in 0..10 {
            assert!(!breaker.failed(0));
            assert!(!breaker.failed(0));
            breaker.succeeded();
        }
        assert!(!breaker.failed(0));
        assert!(!breaker.failed(0));
        assert!(breaker.failed(7));
        assert_eq!(breaker.state(), BreakerState::Open { until_us: 107 });
        assert!(!breaker.admits(106));
        assert!(breaker.admits(107));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }

    #[test]
    fn rests_longer_after_each_failed_trial_up_to_the_bound() {
        let mut breaker = Breaker::new(SETTINGS);
        for _ in 0..3 {
            breaker.failed(0);
        }
        assert!(breaker.admits(100));
        assert!(breaker.failed(100));
        assert_eq!(breaker.state(), BreakerState::Open { until_us: 300 });
        assert!(!breaker.is_hopeless());
        assert!(breaker.admits(300));
        assert!(breaker.failed(300));
        assert_eq!(breaker.state(), BreakerState::Open { until_us: 550 });
        assert!(breaker.is_hopeless());
        assert!(breaker.admits(550));
        breaker.succeeded();
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(!breaker.is_hopeless());
    }

    #[test]
    fn can_be_held_closed() {
        let mut breaker = Breaker::new(BreakerSettings { faults_to_open: u32::MAX, ..SETTINGS });
        for now in 0..1_000 {
            assert!(!breaker.failed(now));
            assert!(breaker.admits(now));
        }
    }
}
