//! Times of one request, recorded where they end. Uses the runtime's clock, so paused time in tests holds.

use std::sync::Arc;

use tokio::time::Instant;

use crate::metrics::{Metrics, Outcome};
use crate::request::TokenUsage;

#[derive(Debug)]
pub(crate) struct Stopwatch {
    metrics: Arc<Metrics>,
    arrived: Instant,
    submitted: Instant,
    queued_s: f64,
    first: Option<Instant>,
    last: Option<Instant>,
    tokens: u32,
    over: bool,
}

impl Stopwatch {
    pub(crate) fn new(metrics: Arc<Metrics>, arrived: Instant) -> Self {
        let submitted = Instant::now();
        Self { metrics, arrived, submitted, queued_s: 0.0, first: None, last: None, tokens: 0, over: false }
    }

    pub(crate) fn prefilled(&mut self, queued_us: u64, prompt_tokens: u32) {
        self.queued_s = queued_us as f64 / 1e6;
        self.metrics.queue.record(self.queued_s);
        self.metrics.prompt_tokens.add(u64::from(prompt_tokens));
    }

    /// Whether it was the first.
    pub(crate) fn token(&mut self) -> bool {
        let now = Instant::now();
        self.metrics.generation_tokens.add(1);
        self.tokens = self.tokens.saturating_add(1);
        match self.last.replace(now) {
            Some(before) => {
                self.metrics.inter_token.record((now - before).as_secs_f64());
                false
            }
            None => {
                self.first = Some(now);
                self.metrics.time_to_first_token.record((now - self.arrived).as_secs_f64());
                self.metrics.prefill.record(((now - self.submitted).as_secs_f64() - self.queued_s).max(0.0));
                true
            }
        }
    }

    pub(crate) fn stop_string(&self) {
        self.metrics.stop_strings.add(1);
    }

    /// Counts the end, once.
    pub(crate) fn ended(&mut self, outcome: Outcome, usage: &TokenUsage) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.metrics.ended(outcome);
        self.metrics.end_to_end.record((Instant::now() - self.arrived).as_secs_f64());
        if let (Some(first), Some(last)) = (self.first, self.last) {
            let decode = (last - first).as_secs_f64();
            self.metrics.decode.record(decode);
            if let Some(gaps) = self.tokens.checked_sub(1).filter(|gaps| *gaps > 0) {
                self.metrics.per_output_token.record(decode / f64::from(gaps));
            }
        }
        if outcome == Outcome::Stop || outcome == Outcome::Length {
            self.metrics.request_prompt_tokens.record(f64::from(usage.prompt_tokens));
            self.metrics.request_generation_tokens.record(f64::from(usage.completion_tokens));
        }
    }
}
