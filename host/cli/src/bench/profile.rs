//! What a step is made of: the engine's phases and the device's operations, from one run of a test. Knows no engine, only what one
//! counted.

use std::fmt::Write as _;

use millrace_core::Stage;
use millrace_engine::PhaseTimes;
use millrace_ops::OperationTime;
use serde_json::{Value, json};

/// Operations below this share are added up at the end.
const LEAST_SHARE: f64 = 0.005;

/// Counts at one moment; the difference of two is a run's.
#[derive(Debug, Clone, Default)]
pub(super) struct Profile {
    pub(super) steps: u64,
    pub(super) phases: PhaseTimes,
    pub(super) operations: Vec<OperationTime>,
}

impl Profile {
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let before = |kind| earlier.operations.iter().find(|entry| entry.kind == kind).map_or((0, 0), |e| (e.calls, e.time_ns));
        let mut operations: Vec<OperationTime> = self
            .operations
            .iter()
            .map(|entry| {
                let (calls, time_ns) = before(entry.kind);
                OperationTime {
                    kind: entry.kind,
                    calls: entry.calls.saturating_sub(calls),
                    time_ns: entry.time_ns.saturating_sub(time_ns),
                }
            })
            .filter(|entry| entry.calls > 0)
            .collect();
        operations.sort_by_key(|entry| std::cmp::Reverse(entry.time_ns));
        Self { steps: self.steps.saturating_sub(earlier.steps), phases: self.phases.since(&earlier.phases), operations }
    }

    /// Microseconds of a step.
    fn per_step(&self, us: f64) -> f64 {
        us / self.steps.max(1) as f64
    }

    fn operations_us(&self) -> f64 {
        self.operations.iter().map(|entry| entry.time_ns as f64 / 1e3).sum()
    }

    pub(super) fn json(&self) -> Value {
        let phases: serde_json::Map<String, Value> =
            self.phases.named().into_iter().map(|(name, us)| (name.to_owned(), json!(self.per_step(us as f64)))).collect();
        let operation = |entry: &OperationTime| {
            let calls = entry.calls as f64 / self.steps.max(1) as f64;
            json!({"operation": entry.kind.to_string(), "calls_per_step": calls, "us_per_step": self.per_step(entry.time_ns as f64 / 1e3)})
        };
        let operations: Vec<Value> = self.operations.iter().map(operation).collect();
        json!({"steps": self.steps, "phase_us_per_step": phases, "operations": operations})
    }

    /// Some lines, indented.
    pub(super) fn text(&self, stage: Stage) -> String {
        let mut text = String::new();
        let phases: Vec<String> =
            self.phases.named().into_iter().map(|(name, us)| format!("{name} {:.0}", self.per_step(us as f64))).collect();
        let _ = writeln!(text, "  {stage}, {} steps, us per step: {}", self.steps, phases.join(", "));
        let whole = self.operations_us();
        let mut rest = 0.0;
        for entry in &self.operations {
            let us = entry.time_ns as f64 / 1e3;
            if us < whole * LEAST_SHARE {
                rest += us;
                continue;
            }
            let (each, share) = (us / entry.calls.max(1) as f64, 100.0 * us / whole);
            let kind = entry.kind.to_string();
            let _ = writeln!(text, "    {kind:<26} {:>9.1} us  {share:>5.1} %   {each:>8.2} us a call", self.per_step(us));
        }
        let _ = writeln!(text, "    {:<26} {:>9.1} us  {:>5.1} %", "others", self.per_step(rest), 100.0 * rest / whole.max(1e-9));
        text
    }
}

#[cfg(test)]
mod tests {
    use millrace_ops::OperationKind;

    use super::*;

    fn entry(name: &'static str, calls: u64, time_ns: u64) -> OperationTime {
        OperationTime { kind: OperationKind { with: None, name, weight: None }, calls, time_ns }
    }

    #[test]
    fn a_run_is_the_difference_of_two_counts() {
        let before = Profile { steps: 3, operations: vec![entry("a", 3, 3_000), entry("c", 1, 5)], ..Profile::default() };
        let phases = PhaseTimes { device_us: 80, ..PhaseTimes::default() };
        let after =
            Profile { steps: 5, phases, operations: vec![entry("a", 7, 9_000), entry("b", 2, 8_000_000), entry("c", 1, 5)] };
        let run = after.since(&before);
        assert_eq!((run.steps, run.operations.as_slice()), (2, [entry("b", 2, 8_000_000), entry("a", 4, 6_000)].as_slice()));
        assert_eq!(run.json()["phase_us_per_step"]["device"], 40.0);
        assert_eq!(run.json()["operations"][1]["calls_per_step"], 2.0);
        let text = run.text(Stage::Decode);
        assert!(text.contains("2 steps") && text.contains("4000.0 us") && text.contains("others"), "{text}");
    }
}
