//! What one way costs against another when both ran in the same rounds: the median of the rounds' differences in per cent, and an
//! interval that holds the true one with 95 % confidence. Pure: the same numbers give the same interval. Knows no unit.
//!
//! The interval is a percentile bootstrap: as many rounds are drawn with replacement as there are, 10,000 times, and the interval is
//! from the 2.5th to the 97.5th percentile (nearest rank) of the medians of what was drawn. It asks for no normal distribution, which
//! times on a shared machine have not, and a round that something else disturbed moves it little.

use serde_json::{Value, json};

use super::drawn::Drawn;
use super::spread::Spread;

const DRAWS: usize = 10_000;
const SEED: u64 = 1;
/// How intervals are made, in words for reports.
pub(super) const METHOD: &str = "differences within each round, in per cent; their median, and its 95 % confidence interval by a \
     percentile bootstrap of 10,000 draws with a fixed seed";

/// A median and its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Interval {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Interval {
    /// All 0 of no values.
    pub(super) fn of(values: &[f64]) -> Self {
        let median = Spread::new(values.to_vec()).median();
        if values.is_empty() {
            return Self { median, low: median, high: median };
        }
        let mut drawn = Drawn::new(SEED);
        let mut medians: Vec<f64> =
            (0..DRAWS).map(|_| Spread::new(values.iter().map(|_| one_of(&mut drawn, values)).collect()).median()).collect();
        medians.sort_by(f64::total_cmp);
        Self { median, low: medians[DRAWS / 40 - 1], high: medians[DRAWS - DRAWS / 40 - 1] }
    }

    pub(super) fn json(&self) -> Value {
        json!({"median": self.median, "low": self.low, "high": self.high})
    }

    /// `0.42 [0.10..0.71]`.
    pub(super) fn text(&self) -> String {
        // No "-0.00".
        let [median, low, high] = [self.median, self.low, self.high].map(|value| (value * 100.0).round() / 100.0 + 0.0);
        format!("{median:.2} [{low:.2}..{high:.2}]")
    }
}

/// How much lower a rate is than `base`, in per cent of `base`, round by round. Rounds with a base of 0 are left out.
pub(super) fn rates_lost(base: &[f64], with: &[f64]) -> Interval {
    Interval::of(&grown(base, with).map(|percent| -percent).collect::<Vec<_>>())
}

/// How much longer a time is than `base`, in per cent of `base`, round by round. Rounds with a base of 0 are left out.
pub(super) fn times_added(base: &[f64], with: &[f64]) -> Interval {
    Interval::of(&grown(base, with).collect::<Vec<_>>())
}

fn grown(base: &[f64], with: &[f64]) -> impl Iterator<Item = f64> {
    let rounds = base.iter().zip(with).filter(|(base, _)| **base != 0.0);
    rounds.map(|(base, with)| 100.0 * (with - base) / base)
}

/// One of `values`, each as likely as any other.
fn one_of(drawn: &mut Drawn, values: &[f64]) -> f64 {
    values[((u128::from(drawn.next()) * values.len() as u128) >> 64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(median: f64, low: f64, high: f64) -> Interval {
        Interval { median, low, high }
    }

    #[test]
    fn values_that_are_alike_leave_no_doubt() {
        assert_eq!(Interval::of(&[2.5; 7]), interval(2.5, 2.5, 2.5));
        assert_eq!(Interval::of(&[-1.0]), interval(-1.0, -1.0, -1.0));
        assert_eq!(Interval::of(&[]), interval(0.0, 0.0, 0.0));
    }

    /// The median of nine draws from 1..=9 is at most k with the probability that five or more of them are: 0.0013 for 1 and 0.0304
    /// for 2, so the 2.5th percentile is 2, and by symmetry the 97.5th is 8. Of three draws from 1..=3, two are 1 with 7/27.
    #[test]
    fn the_interval_is_that_of_the_binomial_distribution() {
        let nine: Vec<f64> = (1..=9).rev().map(f64::from).collect();
        assert_eq!(Interval::of(&nine), interval(5.0, 2.0, 8.0));
        assert_eq!(Interval::of(&[3.0, 1.0, 2.0]), interval(2.0, 1.0, 3.0));
    }

    /// For 101 values it is about the ranks 51 ± 0.98 * sqrt(101).
    #[test]
    fn more_rounds_narrow_the_interval_and_one_that_was_disturbed_does_not_move_it() {
        let mut many: Vec<f64> = (1..=101).map(f64::from).collect();
        let calm = Interval::of(&many);
        assert_eq!(calm.median, 51.0);
        assert!((40.0..=42.0).contains(&calm.low) && (60.0..=62.0).contains(&calm.high), "{calm:?}");
        many[100] = 1e9;
        assert_eq!(Interval::of(&many), calm);
    }

    #[test]
    fn a_cost_is_positive_for_rates_that_fall_and_times_that_grow() {
        assert_eq!(rates_lost(&[100.0, 200.0], &[99.0, 198.0]), interval(1.0, 1.0, 1.0));
        assert_eq!(times_added(&[100.0, 200.0], &[101.0, 202.0]), interval(1.0, 1.0, 1.0));
        assert_eq!(times_added(&[0.0, 100.0], &[5.0, 98.0]), interval(-2.0, -2.0, -2.0), "a base of 0 is no base");
    }

    #[test]
    fn an_interval_reads_as_one() {
        assert_eq!(interval(0.421, -0.001, 0.7).text(), "0.42 [0.00..0.70]");
        assert_eq!(interval(1.0, -2.0, 3.0).json(), json!({"median": 1.0, "low": -2.0, "high": 3.0}));
    }
}
