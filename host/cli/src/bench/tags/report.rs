//! What tags cost, as a table or as JSON. Knows figures only.

use serde_json::{Value, json};

use super::check::CheckCost;
use super::rounds::{Figures, Rounds};
use crate::bench::lane::Streams;
use crate::bench::paired::{Interval, rates_lost, times_added};
use crate::bench::spread::Spread;

/// One test.
pub(super) struct Row {
    pub(super) streams: Streams,
    pub(super) rounds: Rounds,
    pub(super) check: CheckCost,
}

/// What one way costs against another.
struct Cost {
    rate: Interval,
    itl: Interval,
}

impl Cost {
    fn of(base: &Figures, with: &Figures) -> Self {
        Self {
            rate: rates_lost(&base.tokens_per_second, &with.tokens_per_second),
            itl: times_added(&base.itl_p95_us, &with.itl_p95_us),
        }
    }

    fn json(&self) -> Value {
        json!({"throughput_overhead_percent": self.rate.json(), "itl_p95_overhead_percent": self.itl.json()})
    }
}

/// What stands above the rows.
pub(super) fn head(rounds: usize, with_baseline: bool) -> String {
    let note = if with_baseline { "" } else { "\nwithout --baseline nothing is known of tags compiled out" };
    format!(
        "medians of {rounds} rounds; differences within a round in per cent, positive where the first costs more: median [95 % confidence \
         interval]{note}\n\n\
         | streams | context | tok/s on / off / out | on : off | on : out | off : out | ITL p95 ms on / off / out | on : off | on : out | \
         off : out | check: µs | ns a page | two of a step |\n|{}",
        "---|".repeat(13)
    )
}

impl Row {
    /// (on against off, on against out, off against out).
    fn costs(&self) -> (Cost, Option<Cost>, Option<Cost>) {
        let Rounds { on, off, out } = &self.rounds;
        let out = out.as_ref();
        (Cost::of(off, on), out.map(|out| Cost::of(out, on)), out.map(|out| Cost::of(out, off)))
    }

    pub(super) fn line(&self) -> String {
        let Streams { batch, depth, .. } = self.streams;
        let (on_off, on_out, off_out) = self.costs();
        let ways = |pick: fn(&Figures) -> &Vec<f64>, scale: f64| {
            let median = |figures: &Figures| format!("{:.2}", Spread::new(pick(figures).clone()).median() * scale);
            let out = self.rounds.out.as_ref().map_or("-".to_owned(), median);
            format!("{} / {} / {out}", median(&self.rounds.on), median(&self.rounds.off))
        };
        let cell = |cost: &Option<Cost>, pick: fn(&Cost) -> &Interval| cost.as_ref().map_or("-".to_owned(), |c| pick(c).text());
        format!(
            "| {batch} | {depth} | {} | {} | {} | {} | {} | {} | {} | {} | {:.2} | {:.2} | {:.3} % |",
            ways(|figures| &figures.tokens_per_second, 1.0),
            on_off.rate.text(),
            cell(&on_out, |cost| &cost.rate),
            cell(&off_out, |cost| &cost.rate),
            ways(|figures| &figures.itl_p95_us, 1e-3),
            on_off.itl.text(),
            cell(&on_out, |cost| &cost.itl),
            cell(&off_out, |cost| &cost.itl),
            self.check.ns.median() / 1e3,
            self.check.ns_per_page(),
            self.check_share_percent(),
        )
    }

    pub(super) fn json(&self) -> Value {
        let Streams { batch, depth, output } = self.streams;
        let (on_off, on_out, off_out) = self.costs();
        let figures = |figures: &Figures| {
            json!({
                "tokens_per_second": Spread::new(figures.tokens_per_second.clone()).json(),
                "itl_p95_us": Spread::new(figures.itl_p95_us.clone()).json(),
            })
        };
        json!({
            "batch": batch, "context": depth, "output": output, "rounds": self.rounds.on.tokens_per_second.len(),
            "on": figures(&self.rounds.on), "off": figures(&self.rounds.off), "out": self.rounds.out.as_ref().map(figures),
            "throughput_overhead_percent": on_off.rate.json(), "itl_p95_overhead_percent": on_off.itl.json(),
            "on_against_out": on_out.as_ref().map(Cost::json), "off_against_out": off_out.as_ref().map(Cost::json),
            "pages": self.check.pages, "ns_per_check": self.check.ns.json(), "ns_per_page": self.check.ns_per_page(),
            "checks_share_percent": self.check_share_percent(),
        })
    }

    /// Both checks of a step, of the time that a step takes with tags off.
    fn check_share_percent(&self) -> f64 {
        let rate = Spread::new(self.rounds.off.tokens_per_second.clone()).median();
        let step_ns = 1e9 * self.streams.batch as f64 / rate.max(1e-9);
        100.0 * 2.0 * self.check.ns.median() / step_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(out: Option<Figures>) -> Row {
        let figures = |rate: f64, itl: f64| Figures { tokens_per_second: vec![rate; 3], itl_p95_us: vec![itl; 3] };
        Row {
            streams: Streams { batch: 8, depth: 128, output: 16 },
            rounds: Rounds { on: figures(99.0, 10_100.0), off: figures(100.0, 10_000.0), out },
            check: CheckCost { pages: 40, ns: Spread::new(vec![4_000.0]) },
        }
    }

    #[test]
    fn a_row_says_what_each_way_costs_and_what_is_not_known() {
        assert_eq!(
            row(None).line(),
            "| 8 | 128 | 99.00 / 100.00 / - | 1.00 [1.00..1.00] | - | - | 10.10 / 10.00 / - | 1.00 [1.00..1.00] | - | - | 4.00 | 100.00 \
             | 0.010 % |"
        );
        let out = Figures { tokens_per_second: vec![110.0; 3], itl_p95_us: vec![10_000.0; 3] };
        let line = row(Some(out)).line();
        assert!(
            line.contains("| 99.00 / 100.00 / 110.00 | 1.00 [1.00..1.00] | 10.00 [10.00..10.00] | 9.09 [9.09..9.09] |"),
            "{line}"
        );
        assert_eq!(head(3, true).lines().last().map(|line| line.matches('|').count()), Some(line.matches('|').count()));
    }

    #[test]
    fn the_object_has_the_fields_that_readers_know() {
        let value = row(None).json();
        assert_eq!((value["batch"].as_u64(), value["context"].as_u64()), (Some(8), Some(128)));
        assert_eq!(value["throughput_overhead_percent"], json!({"median": 1.0, "low": 1.0, "high": 1.0}));
        assert_eq!((value["ns_per_page"].as_f64(), &value["on_against_out"]), (Some(100.0), &Value::Null));
        assert_eq!(value["on"]["tokens_per_second"]["median"].as_f64(), Some(99.0));
    }
}
