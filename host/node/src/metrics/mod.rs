//! Counts and times of the node, and their text in Prometheus' format.
//!
//! Metrics are fields, not entries of a table, so their names and labels are bounded when the program is built; what the engine and
//! the policies count is read when somebody scrapes. The names are listed in `METRICS.md`; a test keeps it in step.
//! It does not know HTTP.

mod exposition;
mod histogram;
mod policies;
mod prefixes;
mod processes;
mod render;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

use millrace_core::FinishReason;

pub use exposition::CONTENT_TYPE;
pub(crate) use histogram::Histogram;
pub(crate) use policies::SlotLabels;
pub(crate) use render::{LaneLabels, Scrape};

/// Only goes up.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a request ended, as far as metrics tell ends apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Stop,
    Length,
    /// The client went away.
    Abort,
    Error,
}

impl Outcome {
    pub(crate) const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

impl From<FinishReason> for Outcome {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
        }
    }
}

/// Answers by class of status.
#[derive(Debug, Default)]
pub struct StatusClasses([Counter; 5]);

impl StatusClasses {
    /// `status` as in HTTP: 200 counts as 2xx.
    pub fn count(&self, status: u16) {
        if let Some(counter) = usize::from(status / 100).checked_sub(1).and_then(|class| self.0.get(class)) {
            counter.add(1);
        }
    }

    pub(crate) fn classes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(&self.0).map(|(name, counter)| (name, counter.get()))
    }
}

const SECONDS_TO_FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
    2560.0,
];
const SECONDS_BETWEEN: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0,
];
const SECONDS_OF_REQUEST: &[f64] = &[
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
];
const TOKENS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5];

/// What the node counts itself. Times are in seconds.
#[derive(Debug)]
pub struct Metrics {
    pub(crate) outcomes: [Counter; 4],
    pub(crate) prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    /// Refused before an engine saw them.
    pub(crate) refused: Counter,
    pub(crate) stop_strings: Counter,
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token: Histogram,
    pub(crate) per_output_token: Histogram,
    pub(crate) end_to_end: Histogram,
    pub(crate) queue: Histogram,
    pub(crate) prefill: Histogram,
    pub(crate) decode: Histogram,
    pub(crate) request_prompt_tokens: Histogram,
    pub(crate) request_generation_tokens: Histogram,
    /// Counted by whoever speaks HTTP.
    pub http_responses: StatusClasses,
    pub http_connections: Counter,
    /// Of these, the ones beyond a listener's bound.
    pub http_spare_connections: Counter,
    pub auth_failures: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            outcomes: Default::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            refused: Counter::default(),
            stop_strings: Counter::default(),
            time_to_first_token: Histogram::new(SECONDS_TO_FIRST),
            inter_token: Histogram::new(SECONDS_BETWEEN),
            per_output_token: Histogram::new(SECONDS_BETWEEN),
            end_to_end: Histogram::new(SECONDS_OF_REQUEST),
            queue: Histogram::new(SECONDS_OF_REQUEST),
            prefill: Histogram::new(SECONDS_OF_REQUEST),
            decode: Histogram::new(SECONDS_OF_REQUEST),
            request_prompt_tokens: Histogram::new(TOKENS),
            request_generation_tokens: Histogram::new(TOKENS),
            http_responses: StatusClasses::default(),
            http_connections: Counter::default(),
            http_spare_connections: Counter::default(),
            auth_failures: Counter::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn ended(&self, outcome: Outcome) {
        for (counter, of) in self.outcomes.iter().zip(Outcome::ALL) {
            if of == outcome {
                counter.add(1);
            }
        }
    }
}
