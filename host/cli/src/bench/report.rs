//! Results of a benchmark: medians with their spread, as one JSON object or as a table. Knows no engine.

use millrace_core::Stage;
use serde_json::{Value, json};

use super::profile::Profile;

/// Tokens per second over the repeats of one test.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rates(Vec<f64>);

impl Rates {
    pub(crate) fn new(mut rates: Vec<f64>) -> Self {
        rates.sort_by(f64::total_cmp);
        Self(rates)
    }

    pub(crate) fn median(&self) -> f64 {
        let (n, rates) = (self.0.len(), &self.0);
        match n {
            0 => 0.0,
            _ if n % 2 == 1 => rates[n / 2],
            _ => f64::midpoint(rates[n / 2 - 1], rates[n / 2]),
        }
    }

    pub(crate) fn min(&self) -> f64 {
        self.0.first().copied().unwrap_or(0.0)
    }

    pub(crate) fn max(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }
}

/// One row of the report.
pub(crate) struct TestResult {
    pub(crate) stage: Stage,
    pub(crate) tokens: usize,
    pub(crate) batch: usize,
    /// Tokens in each sequence's cache before the measured ones.
    pub(crate) depth: usize,
    pub(crate) rates: Rates,
    /// Of the last run, where it was asked for.
    pub(super) profile: Option<Profile>,
    pub(crate) peak_rss_bytes: u64,
}

impl TestResult {
    pub(crate) fn json(&self, threads: usize) -> Value {
        json!({
            "test": self.stage.to_string(), "tokens": self.tokens, "batch": self.batch, "depth": self.depth, "threads": threads,
            "tokens_per_second": {"median": self.rates.median(), "min": self.rates.min(), "max": self.rates.max()},
            "peak_rss_bytes": self.peak_rss_bytes,
            "profile": self.profile.as_ref().map(Profile::json),
        })
    }

    pub(crate) fn line(&self) -> String {
        format!(
            "{:<8} {:>7} {:>6} {:>6}   {:>9.1}  [{:.1}..{:.1}]   {:>6} MiB",
            self.stage.to_string(),
            self.tokens,
            self.batch,
            self.depth,
            self.rates.median(),
            self.rates.min(),
            self.rates.max(),
            self.peak_rss_bytes >> 20
        )
    }
}

/// Heads of [`TestResult::line`].
pub(crate) const HEADER: &str = "test      tokens  batch  depth   tok/s median  [min..max]   peak RSS";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_both() {
        assert_eq!(Rates::new(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Rates::new(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(Rates::new(vec![]).median(), 0.0);
    }
}
