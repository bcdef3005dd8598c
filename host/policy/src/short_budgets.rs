//! Which budgets proved too short for a policy. A policy that is merely slower than a short step is no faulty one: its breaker
//! stays as it is, but it is spared budgets in which it would only hold the step up, and tried again now and then.
//!
//! ```text
//!   late within B: calls with at most B are spared, 1 of them at first, twice as many after each further late answer
//!   longer budgets are always tried, and so is every call without one
//!   an answer within B: forgotten
//! ```
//! Pure. It does not know where budgets come from.

/// Calls spared in a row at most: among so many steps, one trial that comes to nothing costs less than a hundredth of the time.
const MAX_SPARED: u32 = 1_024;

/// See the module's drawing.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShortBudgets {
    /// The longest budget that was too short; 0: none.
    too_short_us: u32,
    /// How many calls the last late answer spared.
    spared: u32,
    left: u32,
}

impl ShortBudgets {
    /// Whether a call with this budget is not worth making. Each yes counts.
    pub(crate) fn spare(&mut self, within_us: Option<u32>) -> bool {
        let spare = self.left > 0 && within_us.is_some_and(|within| within <= self.too_short_us);
        self.left -= u32::from(spare);
        spare
    }

    /// The policy did not answer within this budget.
    pub(crate) fn late(&mut self, within_us: Option<u32>) {
        self.too_short_us = self.too_short_us.max(within_us.unwrap_or(0));
        self.spared = self.spared.saturating_mul(2).clamp(1, MAX_SPARED);
        self.left = self.spared;
    }

    /// The policy answered within this budget.
    pub(crate) fn answered(&mut self, within_us: Option<u32>) {
        if within_us.is_some_and(|within| within <= self.too_short_us) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls spared until the next one that is made.
    fn spared(budgets: &mut ShortBudgets, within_us: u32) -> u32 {
        (0..).take_while(|_| budgets.spare(Some(within_us))).count() as u32
    }

    #[test]
    fn short_budgets_are_tried_ever_more_rarely_up_to_the_bound() {
        let mut budgets = ShortBudgets::default();
        assert_eq!(spared(&mut budgets, 0), 0);
        let mut counts = Vec::new();
        for _ in 0..13 {
            budgets.late(Some(1_000));
            counts.push(spared(&mut budgets, 1_000));
        }
        assert_eq!(counts, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 1_024, 1_024]);
    }

    #[test]
    fn longer_budgets_and_none_are_always_tried() {
        let mut budgets = ShortBudgets::default();
        for _ in 0..5 {
            budgets.late(Some(1_000));
        }
        assert!(!budgets.spare(None) && !budgets.spare(Some(1_001)));
        assert!(budgets.spare(Some(999)));
        // What a longer budget brings says nothing about shorter ones.
        budgets.answered(Some(1_001));
        budgets.answered(None);
        assert!(budgets.spare(Some(1_000)));
        // That an even shorter one was too short too changes nothing for this one.
        budgets.late(Some(10));
        assert!(budgets.spare(Some(1_000)));
        budgets.answered(Some(900));
        assert_eq!(spared(&mut budgets, 1_000), 0);
    }
}
