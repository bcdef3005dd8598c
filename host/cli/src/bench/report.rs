//! Results of a benchmark: as one JSON object or as a table. Knows no engine.

use millrace_core::Stage;
use serde_json::{Value, json};

use super::profile::Profile;
use super::spread::Spread;

/// One row of the report.
pub(crate) struct TestResult {
    pub(crate) stage: Stage,
    pub(crate) tokens: usize,
    pub(crate) batch: usize,
    /// Tokens in each sequence's cache before the measured ones.
    pub(crate) depth: usize,
    /// Tokens per second.
    pub(crate) rates: Spread,
    /// Of the last run, where it was asked for.
    pub(super) profile: Option<Profile>,
    pub(crate) peak_rss_bytes: u64,
}

impl TestResult {
    pub(crate) fn json(&self, threads: usize) -> Value {
        json!({
            "test": self.stage.to_string(), "tokens": self.tokens, "batch": self.batch, "depth": self.depth, "threads": threads,
            "tokens_per_second": self.rates.json(),
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
