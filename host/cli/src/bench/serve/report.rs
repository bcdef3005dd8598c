//! A level's results, as text and as JSON. Sends and measures nothing.

use serde_json::{Value, json};

use super::super::spread::Spread;
use super::answer::Sample;
use super::failure::Tally;
use super::figures::{Figures, Goals, Latency, Percentiles, spread};
use super::load::Round;

/// Width of `median [min..max]` in a table.
const COLUMN: usize = 28;

/// One concurrency, measured.
pub(super) struct Level {
    pub(super) concurrency: usize,
    pub(super) requests_per_repeat: u32,
    pub(super) max_tokens: u32,
    pub(super) goals: Goals,
    pub(super) warm_up_failures: Tally,
    failures: Tally,
    rounds: Vec<Figures>,
    counts: Counts,
}

/// Over all rounds.
#[derive(Debug, Default)]
struct Counts {
    /// Requests that ended well.
    answers: u64,
    output_tokens: u64,
    /// Answers whose tokens the server counted.
    counted: u64,
    /// Answers that were not streamed.
    whole: u64,
    /// Answers with fewer tokens than asked for.
    short: u64,
    prompt_tokens: Vec<f64>,
    cached_tokens: u64,
}

impl Counts {
    fn add(&mut self, sample: &Sample, max_tokens: u32) {
        self.answers += 1;
        self.output_tokens += u64::from(sample.output_tokens());
        self.counted += u64::from(sample.counted_tokens().is_some());
        self.whole += u64::from(sample.ttft_us.is_none());
        self.short += u64::from(sample.counted_tokens().is_some_and(|tokens| tokens < max_tokens));
        self.prompt_tokens.extend(sample.usage.and_then(|usage| usage.prompt_tokens).map(f64::from));
        self.cached_tokens += sample.usage.and_then(|usage| usage.cached_tokens()).map_or(0, u64::from);
    }

    fn output_tokens_from(&self) -> &'static str {
        match self.counted {
            0 => "chunks",
            counted if counted == self.answers => "usage",
            _ => "mixed",
        }
    }
}

impl Level {
    pub(super) fn new(concurrency: usize, requests_per_repeat: u32, max_tokens: u32, goals: Goals) -> Self {
        let (warm_up_failures, failures) = Default::default();
        let (rounds, counts) = Default::default();
        Self { concurrency, requests_per_repeat, max_tokens, goals, warm_up_failures, failures, rounds, counts }
    }

    pub(super) fn add(&mut self, round: Round) {
        self.rounds.push(Figures::of(&round, &self.goals));
        for sample in &round.samples {
            self.counts.add(sample, self.max_tokens);
        }
        self.failures.merge(round.failures);
    }

    /// Requests, those of the warm-up included.
    pub(super) fn failed(&self) -> u64 {
        self.failures.total() + self.warm_up_failures.total()
    }

    fn requests(&self) -> u64 {
        self.counts.answers + self.failures.total()
    }

    fn prompt_tokens(&self) -> Option<f64> {
        Percentiles::of(self.counts.prompt_tokens.clone()).map(|tokens| tokens.p50)
    }

    fn spread(&self, figure: impl Fn(&Figures) -> f64) -> Option<Spread> {
        spread(&self.rounds, |figures| Some(figure(figures)))
    }

    fn latencies(&self) -> [(&'static str, Option<Latency>); 4] {
        let of = |which: fn(&Figures) -> Option<Percentiles>| Latency::of(&self.rounds, which);
        [
            ("ttft_ms", of(|figures| figures.ttft_ms)),
            ("itl_ms", of(|figures| figures.itl_ms)),
            ("tpot_ms", of(|figures| figures.tpot_ms)),
            ("e2e_ms", of(|figures| figures.e2e_ms)),
        ]
    }

    pub(super) fn json(&self) -> Value {
        let over = |figure: fn(&Figures) -> f64| self.spread(figure).as_ref().map(Spread::json);
        let goals = json!({
            "ttft_ms": self.goals.ttft_ms, "itl_ms": self.goals.itl_ms,
            "requests_per_second": over(|figures| figures.good_per_second), "share": over(|figures| figures.good_share),
        });
        let mut value = json!({
            "concurrency": self.concurrency, "requests": self.requests(), "requests_per_repeat": self.requests_per_repeat,
            "failures": self.failures.json(), "warm_up_failures": self.warm_up_failures.json(),
            "requests_per_second": over(|figures| figures.requests_per_second),
            "output_tokens_per_second": over(|figures| figures.output_tokens_per_second),
            "output_tokens": self.counts.output_tokens, "output_tokens_from": self.counts.output_tokens_from(),
            "short_answers": self.counts.short, "whole_answers": self.counts.whole,
            "prompt_tokens": self.prompt_tokens(), "cached_tokens": self.counts.cached_tokens,
            "goodput": self.goals.any().then_some(goals),
            "wall_seconds": over(|figures| figures.wall_seconds),
            "client_cpu_seconds": over(|figures| figures.client_cpu_seconds),
        });
        for (name, latency) in self.latencies() {
            value[name] = latency.as_ref().map(Latency::json).into();
        }
        value
    }

    /// Several lines, the last without its end.
    pub(super) fn text(&self) -> String {
        let prompt = self.prompt_tokens().map_or_else(String::new, |tokens| format!(", prompts of {tokens:.0} tokens"));
        let (clients, requests) = (counted(self.concurrency, "client"), counted(self.requests_per_repeat as usize, "request"));
        let repeats = self.rounds.len();
        let mut lines = vec![format!("\n{clients}: {repeats} x {requests}, {} failed{prompt}", self.failures.total())];
        let over = |figure: fn(&Figures) -> f64| self.spread(figure).as_ref().map(cell).unwrap_or_default();
        lines.push(format!("  requests/s       {}", over(|figures| figures.requests_per_second)));
        lines.push(format!("  output tokens/s  {}", over(|figures| figures.output_tokens_per_second)));
        if self.goals.any() {
            lines.push(format!("  good requests/s  {}", over(|figures| figures.good_per_second)));
        }
        lines.push(format!("  {:<15}  {:<COLUMN$}{:<COLUMN$}p99", "milliseconds", "p50", "p95"));
        for ((_, latency), label) in self.latencies().iter().zip(["TTFT", "ITL", "TPOT", "end to end"]) {
            lines.extend(latency.as_ref().map(|latency| row(label, latency)));
        }
        let share = |figures: &Figures| 100.0 * figures.client_cpu_seconds / figures.wall_seconds;
        let share = self.spread(share).map_or(0.0, |share| share.median());
        lines.push(format!("  client CPU       {} s, {share:.1} % of the time", over(|figures| figures.client_cpu_seconds)));
        lines.extend(self.notes().into_iter().map(|note| format!("  {note}")));
        lines.join("\n")
    }

    /// What makes the figures mean something else, and every kind of failure.
    fn notes(&self) -> Vec<String> {
        let counts = &self.counts;
        let mut notes = Vec::new();
        if counts.counted < counts.answers {
            let uncounted = counts.answers - counts.counted;
            notes.push(format!("note: {uncounted} answers came without usage; their chunks are counted as tokens"));
        }
        if counts.short > 0 {
            notes.push(format!("note: {} answers are shorter than the {} tokens asked for", counts.short, self.max_tokens));
        }
        if counts.whole > 0 {
            notes.push(format!("note: {} answers were not streamed; they have no TTFT and ITL", counts.whole));
        }
        notes.extend(self.failures.lines().map(|line| format!("failed: {line}")));
        notes.extend(self.warm_up_failures.lines().map(|line| format!("failed in warm-up: {line}")));
        notes
    }
}

fn row(label: &str, latency: &Latency) -> String {
    let [p50, p95, p99] = [&latency.p50, &latency.p95, &latency.p99].map(cell);
    format!("  {label:<15}  {p50:<COLUMN$}{p95:<COLUMN$}{p99}")
}

/// `median [min..max]`, with as many digits as are worth reading.
fn cell(spread: &Spread) -> String {
    let [median, min, max] = [spread.median(), spread.min(), spread.max()].map(digits);
    format!("{median} [{min}..{max}]")
}

fn digits(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
