//! Times of one request, recorded where they end. Uses the runtime's clock, so paused time in tests holds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::{Metrics, Outcome};
use crate::outcomes::{Ended, Outcomes, Told};
use crate::request::TokenUsage;

#[derive(Debug)]
pub(crate) struct Stopwatch {
    metrics: Arc<Metrics>,
    arrived: Instant,
    submitted: Instant,
    /// None before its first step has ended.
    queued: Option<Duration>,
    first: Option<Instant>,
    last: Option<Instant>,
    tokens: u32,
    over: bool,
    /// Who hears how it ended.
    outcomes: (Outcomes, Told),
}

impl Stopwatch {
    pub(crate) fn new(metrics: Arc<Metrics>, arrived: Instant, outcomes: (Outcomes, Told)) -> Self {
        let submitted = Instant::now();
        Self { metrics, arrived, submitted, queued: None, first: None, last: None, tokens: 0, over: false, outcomes }
    }

    pub(crate) fn prefilled(&mut self, queued_us: u64, prompt_tokens: u32) {
        let queued = Duration::from_micros(queued_us);
        self.queued = Some(queued);
        self.metrics.queue.record(queued.as_secs_f64());
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
                let queued = self.queued.unwrap_or_default();
                self.metrics.prefill.record((now - self.submitted).saturating_sub(queued).as_secs_f64());
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
        self.tell(outcome, usage);
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

    fn tell(&self, outcome: Outcome, usage: &TokenUsage) {
        let (outcomes, told) = &self.outcomes;
        outcomes.ended(Ended {
            told: *told,
            outcome,
            cached_tokens: usage.cached_tokens,
            output_tokens: usage.completion_tokens,
            queued: self.queued,
            first_token: self.first.map(|first| first - self.arrived),
            total: Instant::now() - self.arrived,
        });
    }
}
