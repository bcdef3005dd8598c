//! What the runs of one test come to: medians and extremes, as a line or as JSON. Knows no engine.

use std::time::Duration;

use millrace_core::KvFormat;
use serde_json::{Value, json};

use super::Run;
use crate::bench::spread::Spread;

/// Heads of [`Figures::line`].
pub(super) const HEADER: &str =
    "transport   kv    tokens    TTFT ms [min..max]           1st to 2nd ms [min..max]     bytes/token   MB/s [min..max]";

pub(super) struct Figures {
    transport: &'static str,
    kv: KvFormat,
    tokens: usize,
    first_ms: Spread,
    second_ms: Spread,
    transfer: Option<TransferFigures>,
}

struct TransferFigures {
    bytes_per_token: Spread,
    /// Millions of bytes a second.
    mb_per_second: Spread,
}

fn spread(runs: &[Run], of: impl Fn(&Run) -> Option<f64>) -> Spread {
    Spread::new(runs.iter().filter_map(of).collect())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Figures {
    pub(super) fn new(transport: &'static str, kv: KvFormat, tokens: usize, runs: &[Run]) -> Self {
        let rate = |run: &Run| run.transfer.map(|transfer| transfer.bytes as f64 / transfer.took.as_secs_f64().max(1e-9) / 1e6);
        let share = |run: &Run| run.transfer.map(|transfer| transfer.bytes as f64 / tokens as f64);
        let transfer = runs.iter().any(|run| run.transfer.is_some());
        Self {
            transport,
            kv,
            tokens,
            first_ms: spread(runs, |run| Some(milliseconds(run.first))),
            second_ms: spread(runs, |run| Some(milliseconds(run.second))),
            transfer: transfer
                .then(|| TransferFigures { bytes_per_token: spread(runs, share), mb_per_second: spread(runs, rate) }),
        }
    }

    pub(super) fn line(&self) -> String {
        let times = |spread: &Spread| format!("{:.2} [{:.2}..{:.2}]", spread.median(), spread.min(), spread.max());
        let (bytes, rate) = match &self.transfer {
            Some(transfer) => {
                let rate = &transfer.mb_per_second;
                let rate = format!("{:.0} [{:.0}..{:.0}]", rate.median(), rate.min(), rate.max());
                (format!("{:.0}", transfer.bytes_per_token.median()), rate)
            }
            None => ("-".to_owned(), "-".to_owned()),
        };
        let (first, second) = (times(&self.first_ms), times(&self.second_ms));
        let kv = self.kv.to_string();
        format!("{:<11} {kv:<5} {:>6}    {first:<28} {second:<28} {bytes:>11}   {rate}", self.transport, self.tokens)
    }

    pub(super) fn json(&self) -> Value {
        let transfer = self.transfer.as_ref();
        json!({
            "transport": self.transport, "kv": self.kv.to_string(), "tokens": self.tokens,
            "ttft_ms": self.first_ms.json(), "first_to_second_ms": self.second_ms.json(),
            "bytes_per_token": transfer.map(|transfer| transfer.bytes_per_token.json()),
            "mb_per_second": transfer.map(|transfer| transfer.mb_per_second.json()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Transfer;
    use super::*;

    #[test]
    fn bytes_are_per_token_and_rates_in_millions_a_second() {
        let run = |bytes, ms| Run {
            first: Duration::from_millis(7),
            second: Duration::from_millis(ms),
            transfer: Some(Transfer { bytes, took: Duration::from_millis(ms) }),
        };
        let figures = Figures::new("tcp", KvFormat::Fp8, 100, &[run(3_000_000, 10), run(3_000_000, 30), run(3_000_000, 20)]);
        let json = figures.json();
        assert_eq!(json["ttft_ms"], json!({"median": 7.0, "min": 7.0, "max": 7.0}));
        assert_eq!(json["first_to_second_ms"]["max"], json!(30.0));
        assert_eq!(json["bytes_per_token"]["median"], json!(30_000.0));
        assert_eq!(json["mb_per_second"], json!({"median": 150.0, "min": 100.0, "max": 300.0}));
        assert!(figures.line().contains("30000   150 [100..300]"), "{}", figures.line());
        let within = Run { transfer: None, ..run(0, 1) };
        assert_eq!(Figures::new("in process", KvFormat::Bf16, 100, &[within]).json()["mb_per_second"], Value::Null);
    }
}
