//! How long a pool's steps take the device, by their tokens: a straight line through the recent steps, so that a decode step of one
//! row and one of sixty, or a short chunk and a long one, are told apart. Knows no clock: durations are handed in.
//!
//! Least squares over exponentially weighted sums: a step counts 7/8 of the one after it, so about eight steps shape the line. Where
//! the steps were all of about one size, or noise makes the line fall, it goes through the origin instead.

use millrace_scheduler::StepCost;

/// Weight that the past keeps with each step.
const KEEP: f64 = 7.0 / 8.0;
/// Below this share of the mean square, the sizes differ too little to tell fixed time from time per token.
const LEAST_SPREAD: f64 = 0.01;

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepTimes {
    weight: f64,
    tokens: f64,
    us: f64,
    tokens_squared: f64,
    tokens_us: f64,
    /// Tokens of the largest step, which fades.
    largest: f64,
}

/// `fixed_us + us_per_token * tokens`, both at least 0.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    fixed_us: f64,
    us_per_token: f64,
}

impl StepTimes {
    /// A step of so many tokens had the device for so long. Steps without tokens or without a duration tell nothing.
    pub(crate) fn observe(&mut self, tokens: u32, took_us: u64) {
        if tokens == 0 || took_us == 0 {
            return;
        }
        let (tokens, us) = (f64::from(tokens), took_us as f64);
        let sums = [&mut self.weight, &mut self.tokens, &mut self.us, &mut self.tokens_squared, &mut self.tokens_us];
        for (sum, value) in sums.into_iter().zip([1.0, tokens, us, tokens * tokens, tokens * us]) {
            *sum = *sum * KEEP + value;
        }
        self.largest = tokens.max(self.largest * KEEP);
    }

    /// For the scheduler, which bounds steps in time by it; none before the first step.
    pub(crate) fn cost(&self) -> Option<StepCost> {
        let line = self.line()?;
        // Conversions from floats saturate.
        Some(StepCost {
            fixed_us: line.fixed_us.round() as u32,
            token_ns: (line.us_per_token * 1_000.0).round() as u32,
            largest_tokens: self.largest.round() as u32,
        })
    }

    /// What a step of so many tokens will take; none before the first step.
    pub(crate) fn expected_us(&self, tokens: u32) -> Option<u64> {
        let line = self.line()?;
        // Far below 2^53 for any step that ends.
        Some((line.fixed_us + line.us_per_token * f64::from(tokens)).round() as u64)
    }

    fn line(&self) -> Option<Line> {
        if self.weight == 0.0 {
            return None;
        }
        let through_origin = Line { fixed_us: 0.0, us_per_token: self.us / self.tokens };
        let spread = self.weight * self.tokens_squared - self.tokens * self.tokens;
        if spread <= LEAST_SPREAD * self.weight * self.tokens_squared {
            return Some(through_origin);
        }
        let us_per_token = (self.weight * self.tokens_us - self.tokens * self.us) / spread;
        let fixed_us = (self.us - us_per_token * self.tokens) / self.weight;
        let rises = us_per_token > 0.0 && fixed_us >= 0.0;
        Some(if rises { Line { fixed_us, us_per_token } } else { through_origin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(steps: &[(u32, u64)]) -> StepTimes {
        let mut times = StepTimes::default();
        steps.iter().for_each(|&(tokens, us)| times.observe(tokens, us));
        times
    }

    #[test]
    fn a_line_is_found_and_followed() {
        // 2,000 us + 50 us a token.
        let steps: Vec<(u32, u64)> = [1, 64, 8, 32, 16].into_iter().map(|n| (n, 2_000 + 50 * u64::from(n))).collect();
        let times = times(&steps);
        assert_eq!([1, 10, 100].map(|tokens| times.expected_us(tokens)), [Some(2_050), Some(2_500), Some(7_000)]);
        // The largest of 64 tokens was three steps ago: 64 (7/8)^3.
        assert_eq!(times.cost(), Some(StepCost { fixed_us: 2_000, token_ns: 50_000, largest_tokens: 43 }));
    }

    #[test]
    fn steps_of_one_size_give_a_rate() {
        let times = times(&[(100, 5_000); 20]);
        assert_eq!([100, 200].map(|tokens| times.expected_us(tokens)), [Some(5_000), Some(10_000)]);
    }

    /// A longer step that was quicker is noise: no step is expected to take less than none.
    #[test]
    fn noise_never_makes_the_line_fall() {
        let times = times(&[(10, 9_000), (100, 3_000), (12, 8_000), (90, 2_000)]);
        let expected = [1, 10, 100, 1_000].map(|tokens| times.expected_us(tokens).unwrap());
        assert!(expected.is_sorted(), "{expected:?}");
    }

    #[test]
    fn recent_steps_count_most() {
        let mut times = times(&[(1, 1_000); 50]);
        (0..24).for_each(|_| times.observe(1, 3_000));
        // (7/8)^24 of the old time is left: 4 %.
        assert!((2_900..=3_000).contains(&times.expected_us(1).unwrap()), "{times:?}");
    }

    #[test]
    fn what_tells_nothing_changes_nothing() {
        assert_eq!((times(&[]).expected_us(5), times(&[]).cost()), (None, None));
        assert_eq!(times(&[(0, 10), (10, 0)]).expected_us(5), None);
        let widest = times(&[(u32::MAX, 1 << 52), (1, 1)]);
        assert!(widest.expected_us(u32::MAX).is_some());
    }
}
