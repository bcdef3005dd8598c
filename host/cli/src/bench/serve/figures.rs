//! What a round of requests comes to: rates, percentiles, and how much of it was good enough. Pure; prints nothing.

use serde_json::{Value, json};

use super::super::spread::Spread;
use super::answer::Sample;
use super::load::Round;

/// Nearest rank: the smallest value that at least this share of all values does not exceed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
}

impl Percentiles {
    /// `None` of no values.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let at = |percent| values.get(rank(percent, values.len())).copied();
        Some(Self { p50: at(50)?, p95: at(95)?, p99: at(99)? })
    }
}

/// Index of a percentile among `count` sorted values.
fn rank(percent: usize, count: usize) -> usize {
    (percent * count).div_ceil(100).saturating_sub(1)
}

/// What an answer must keep to be good, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Goals {
    /// Time to the first text.
    pub(super) ttft_ms: Option<f64>,
    /// The 95th percentile of the answer's own gaps.
    pub(super) itl_ms: Option<f64>,
}

impl Goals {
    pub(super) fn any(&self) -> bool {
        self.ttft_ms.is_some() || self.itl_ms.is_some()
    }

    /// An answer that was not streamed meets no goal.
    fn are_met(&self, sample: &Sample) -> bool {
        let Some(ttft_us) = sample.ttft_us else { return !self.any() };
        let gaps = Percentiles::of(sample.gaps_us.iter().copied().map(ms).collect());
        let is_prompt = self.ttft_ms.is_none_or(|most| ms(ttft_us) <= most);
        let is_steady = self.itl_ms.is_none_or(|most| gaps.is_none_or(|gaps| gaps.p95 <= most));
        is_prompt && is_steady
    }
}

fn ms(us: u32) -> f64 {
    f64::from(us) / 1e3
}

/// The figures of one round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figures {
    pub(super) requests_per_second: f64,
    pub(super) output_tokens_per_second: f64,
    pub(super) ttft_ms: Option<Percentiles>,
    pub(super) itl_ms: Option<Percentiles>,
    pub(super) e2e_ms: Option<Percentiles>,
    pub(super) tpot_ms: Option<Percentiles>,
    /// Good answers.
    pub(super) good_per_second: f64,
    /// Of all requests, failed ones included.
    pub(super) good_share: f64,
    pub(super) wall_seconds: f64,
    pub(super) client_cpu_seconds: f64,
}

impl Figures {
    pub(super) fn of(round: &Round, goals: &Goals) -> Self {
        let samples = &round.samples;
        let wall_seconds = round.wall.as_secs_f64().max(1e-9);
        let tokens: u64 = samples.iter().map(|sample| u64::from(sample.output_tokens())).sum();
        let good = samples.iter().filter(|sample| goals.are_met(sample)).count() as f64;
        let all = samples.len() as f64 + round.failures.total() as f64;
        let gaps = samples.iter().flat_map(|sample| &sample.gaps_us);
        Self {
            requests_per_second: samples.len() as f64 / wall_seconds,
            output_tokens_per_second: tokens as f64 / wall_seconds,
            ttft_ms: Percentiles::of(samples.iter().filter_map(|sample| sample.ttft_us).map(ms).collect()),
            itl_ms: Percentiles::of(gaps.copied().map(ms).collect()),
            e2e_ms: Percentiles::of(samples.iter().map(|sample| ms(sample.e2e_us)).collect()),
            tpot_ms: Percentiles::of(samples.iter().filter_map(Sample::tpot_us).map(|us| us / 1e3).collect()),
            good_per_second: good / wall_seconds,
            good_share: good / all.max(1.0),
            wall_seconds,
            client_cpu_seconds: round.client_cpu.as_secs_f64(),
        }
    }
}

/// One figure over the rounds that have it; `None` where none has.
pub(super) fn spread(rounds: &[Figures], figure: impl Fn(&Figures) -> Option<f64>) -> Option<Spread> {
    let values: Vec<f64> = rounds.iter().filter_map(figure).collect();
    (!values.is_empty()).then(|| Spread::new(values))
}

/// One kind of latency over the rounds.
pub(super) struct Latency {
    pub(super) p50: Spread,
    pub(super) p95: Spread,
    pub(super) p99: Spread,
}

impl Latency {
    pub(super) fn of(rounds: &[Figures], which: impl Fn(&Figures) -> Option<Percentiles>) -> Option<Self> {
        let over = |percentile: fn(Percentiles) -> f64| spread(rounds, |figures| which(figures).map(percentile));
        Some(Self { p50: over(|all| all.p50)?, p95: over(|all| all.p95)?, p99: over(|all| all.p99)? })
    }

    pub(super) fn json(&self) -> Value {
        json!({"p50": self.p50.json(), "p95": self.p95.json(), "p99": self.p99.json()})
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::failure::{Failed, Kind, Tally};
    use super::*;
    use crate::bench::drawn::Drawn;

    /// By the definition, without ranks.
    fn naive(percent: usize, values: &[f64]) -> f64 {
        let covers = |&&value: &&f64| values.iter().filter(|&&other| other <= value).count() * 100 >= percent * values.len();
        values.iter().filter(covers).copied().fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn percentiles_are_those_of_the_definition() {
        let mut random = Drawn::new(3);
        for count in (1..130).chain([200, 1_000]) {
            let values: Vec<f64> = (0..count).map(|_| random.below(50) as f64).collect();
            let found = Percentiles::of(values.clone()).unwrap();
            assert_eq!([found.p50, found.p95, found.p99], [50, 95, 99].map(|percent| naive(percent, &values)), "{count}");
        }
        assert_eq!(Percentiles::of(vec![]), None);
    }

    fn sample(ttft_us: u32, gaps_us: &[u32]) -> Sample {
        let chunks = 1 + gaps_us.len() as u32;
        Sample {
            ttft_us: Some(ttft_us),
            gaps_us: gaps_us.to_vec(),
            e2e_us: ttft_us + gaps_us.iter().sum::<u32>(),
            chunks,
            usage: None,
        }
    }

    fn round() -> Round {
        let whole = Sample { e2e_us: 9_000, chunks: 1, ..Sample::default() };
        let samples = vec![sample(2_000, &[1_000, 3_000]), sample(4_000, &[2_000, 50_000]), whole];
        let mut failures = Tally::default();
        failures.add(&Failed::new(Kind::Cut, "x"));
        Round { wall: Duration::from_secs(2), client_cpu: Duration::from_millis(20), samples, failures }
    }

    #[test]
    fn a_round_comes_to_its_rates_and_latencies() {
        let figures = Figures::of(&round(), &Goals::default());
        assert_eq!((figures.requests_per_second, figures.output_tokens_per_second), (1.5, 3.5));
        assert_eq!(figures.ttft_ms, Some(Percentiles { p50: 2.0, p95: 4.0, p99: 4.0 }));
        assert_eq!(figures.itl_ms, Some(Percentiles { p50: 2.0, p95: 50.0, p99: 50.0 }));
        assert_eq!(figures.e2e_ms, Some(Percentiles { p50: 9.0, p95: 56.0, p99: 56.0 }));
        assert_eq!(figures.tpot_ms, Some(Percentiles { p50: 2.0, p95: 26.0, p99: 26.0 }));
        assert_eq!((figures.wall_seconds, figures.client_cpu_seconds), (2.0, 0.02));
    }

    #[test]
    fn good_is_what_meets_all_goals() {
        let share = |ttft_ms, itl_ms| Figures::of(&round(), &Goals { ttft_ms, itl_ms }).good_share;
        assert_eq!(share(None, None), 0.75, "a failed request is never good");
        assert_eq!(share(Some(4.0), None), 0.5);
        assert_eq!(share(Some(3.999), None), 0.25);
        assert_eq!(share(None, Some(3.0)), 0.25);
        assert_eq!(share(Some(1.0), Some(60.0)), 0.0);
        assert_eq!(Figures::of(&round(), &Goals { ttft_ms: Some(4.0), itl_ms: None }).good_per_second, 1.0);
    }

    #[test]
    fn rounds_without_a_figure_do_not_count_for_it() {
        let mut none = round();
        none.samples.clear();
        let rounds = [Figures::of(&none, &Goals::default()), Figures::of(&round(), &Goals::default())];
        assert_eq!(spread(&rounds, |figures| Some(figures.requests_per_second)).unwrap().min(), 0.0);
        let ttft = Latency::of(&rounds, |figures| figures.ttft_ms).unwrap();
        assert_eq!((ttft.p50.min(), ttft.p50.max(), ttft.p95.median()), (2.0, 2.0, 4.0));
        assert!(Latency::of(&rounds[..1], |figures| figures.ttft_ms).is_none());
    }
}
