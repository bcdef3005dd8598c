//! How fast a pool is: tokens a second of its recent steps. Knows no stage and no clock.

/// Weighs tokens and time alike, so that long steps count for what they are; each step takes an eighth off what was before it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rate {
    /// Thousandths.
    tokens: u64,
    /// Nanoseconds.
    time: u64,
}

impl Rate {
    /// A step of so many tokens had the device for `device_us`.
    pub(crate) fn observe(&mut self, tokens: u32, device_us: u64) {
        self.tokens = (self.tokens - self.tokens / 8).saturating_add(u64::from(tokens) * 1_000);
        self.time = (self.time - self.time / 8).saturating_add(device_us.saturating_mul(1_000));
    }

    /// 0 before the first step.
    pub(crate) fn tokens_per_s(self) -> u32 {
        let rate = (u128::from(self.tokens) * 1_000_000).checked_div(u128::from(self.time)).unwrap_or(0);
        u32::try_from(rate).unwrap_or(u32::MAX - 1).min(u32::MAX - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_speed_of_steps_that_are_alike_and_follows_when_they_change() {
        let mut rate = Rate::default();
        assert_eq!(rate.tokens_per_s(), 0);
        rate.observe(32, 8_000);
        assert_eq!(rate.tokens_per_s(), 4_000, "the first step counts whole");
        (0..3).for_each(|_| rate.observe(64, 16_000));
        assert_eq!(rate.tokens_per_s(), 4_000, "by time, not by step");
        (0..60).for_each(|_| rate.observe(8, 8_000));
        assert!((990..=1_010).contains(&rate.tokens_per_s()), "{}", rate.tokens_per_s());
    }

    #[test]
    fn no_step_is_too_short_or_too_long() {
        let mut rate = Rate::default();
        rate.observe(u32::MAX, 0);
        assert_eq!(rate.tokens_per_s(), 0, "a clock that stood still tells no speed");
        rate.observe(1, u64::MAX);
        (0..9).for_each(|_| rate.observe(u32::MAX, 1));
        assert!(rate.tokens_per_s() < u32::MAX);
    }
}
