//! What policy slots and the policies in them count: since the start, and of the generation in force. Labels are bounded: three
//! kinds, one generation each, and as many names of its own as a policy may register.

use millrace_policy::{Counters, FaultKind, GuestValue, Latency, SlotStatus};
use millrace_policy_wasm::RecordCounts;

use super::exposition::Exposition;
use super::histogram::HistogramFacts;
use crate::shadow::ShadowReport;

/// A policy slot with the word for its decision.
pub(crate) struct SlotLabels {
    pub(crate) kind: &'static str,
    pub(crate) status: SlotStatus,
    /// Of the trial beside it.
    pub(crate) shadow: Option<ShadowReport>,
    /// Where it is recorded.
    pub(crate) record: Option<RecordCounts>,
}

/// Reads one number of a slot; none: the slot has none.
type NumberOf = fn(&SlotLabels) -> Option<u64>;

/// Name, kind, help and value of the families with one number a slot.
const NUMBERS: [(&str, &str, &str, NumberOf); 14] = [
    ("millrace_policy_generation", "gauge", "Counts the policies that were in force.", |s| Some(s.status.generation)),
    ("millrace_policy_calls_total", "counter", "Decisions asked for.", |s| Some(s.status.total.calls)),
    ("millrace_policy_fallbacks_total", "counter", "Decisions of the native fallback.", |s| Some(s.status.total.fallbacks)),
    ("millrace_policy_swaps_total", "counter", "Policies put in force.", |s| Some(s.status.swaps)),
    ("millrace_policy_rollbacks_total", "counter", "Returns to an earlier policy.", |s| Some(s.status.rollbacks)),
    ("millrace_policy_memory_bytes", "gauge", "Linear memory of the instance in use.", |s| Some(s.status.report.memory_bytes)),
    ("millrace_policy_log_lines_total", "counter", "Lines that the policy logged.", |s| Some(s.status.report.log_lines)),
    ("millrace_policy_log_lines_dropped_total", "counter", "Lines beyond the policy's rate.", |s| {
        Some(s.status.report.log_lines_dropped)
    }),
    ("millrace_policy_records_total", "counter", "Events that were recorded.", |s| Some(s.record?.written)),
    ("millrace_policy_records_dropped_total", "counter", "Events that the disk was too slow for, or failed.", |s| {
        Some(s.record?.dropped)
    }),
    ("millrace_policy_shadow_compared_total", "counter", "Decisions that the policy on trial made too.", |s| {
        Some(s.shadow.as_ref()?.compared)
    }),
    ("millrace_policy_shadow_disagreements_total", "counter", "Of those, the ones that it made otherwise.", |s| {
        Some(s.shadow.as_ref()?.disagreed)
    }),
    ("millrace_policy_shadow_faults_total", "counter", "Answers of the policy on trial that could not be used.", |s| {
        Some(s.shadow.as_ref()?.faults)
    }),
    ("millrace_policy_shadow_skipped_total", "counter", "Decisions that were not compared.", |s| {
        Some(s.shadow.as_ref()?.skipped)
    }),
];

pub(super) fn policies(out: &mut Exposition, slots: &[SlotLabels], outcomes_dropped: u64) {
    out.family("millrace_policy_info", "gauge", "1; the labels tell the policy in force.");
    for SlotLabels { kind, status, .. } in slots {
        let info = &status.info;
        let generation = status.generation.to_string();
        let labels = [
            ("kind", *kind),
            ("name", &*info.name),
            ("version", &*info.version),
            ("sha256", &*info.sha256),
            ("generation", &*generation),
        ];
        out.sample("millrace_policy_info", &labels, 1.0);
    }
    for (name, type_name, help, value) in NUMBERS {
        out.family(name, type_name, help);
        for (slot, number) in slots.iter().filter_map(|slot| Some((slot, value(slot)?))) {
            out.sample(name, &[("kind", slot.kind)], number as f64);
        }
    }
    faults(out, slots);
    beside(out, slots);
    out.counter(
        "millrace_policy_outcomes_dropped_total",
        "Ends of requests that no policy was told of, because too many waited.",
        &[],
        outcomes_dropped,
    );
    generations(out, slots);
    own(out, slots);
    for slot in slots {
        let name = format!("millrace_{}_policy_seconds", slot.kind);
        out.histogram(&name, "Time in the policy per decision.", &[], &latency(&slot.status.total.latency));
        let (name, generation) =
            (format!("millrace_{}_policy_generation_seconds", slot.kind), slot.status.generation.to_string());
        let help = "Time in the policy per decision, of the generation in force.";
        out.histogram(&name, help, &[("generation", &generation)], &latency(&slot.status.current.latency));
    }
}

fn faults(out: &mut Exposition, slots: &[SlotLabels]) {
    let name = "millrace_policy_faults_total";
    out.family(name, "counter", "Answers that could not be used, by why; `late` is no fault of the policy.");
    for slot in slots {
        for (fault, count) in slot.status.total.faults.iter() {
            out.sample(name, &[("kind", slot.kind), ("fault", &fault.to_string())], count as f64);
        }
    }
}

/// Calls beside decisions, by how they went.
fn beside(out: &mut Exposition, slots: &[SlotLabels]) {
    let name = "millrace_policy_beside_calls_total";
    out.family(name, "counter", "Calls beside decisions, by `call` (feedback, handover) and `result`: `ok` or what went wrong.");
    for SlotLabels { kind, status, .. } in slots {
        for (call, counters) in [("feedback", &status.feedback), ("handover", &status.handover)] {
            let mut sample = |result: &str, count: u64| {
                out.sample(name, &[("kind", kind), ("call", call), ("result", result)], count as f64);
            };
            sample("ok", counters.ok);
            for (fault, count) in counters.faults.iter().filter(|(fault, _)| *fault != FaultKind::Late) {
                sample(&fault.to_string(), count);
            }
        }
    }
    for slot in slots {
        let help = "Time in the policy of a call beside decisions.";
        for (call, counters) in [("feedback", &slot.status.feedback), ("handover", &slot.status.handover)] {
            let name = format!("millrace_{}_policy_{call}_seconds", slot.kind);
            out.histogram(&name, help, &[], &latency(&counters.latency));
        }
    }
}

/// Calls of the generation in force, by how they went.
fn generations(out: &mut Exposition, slots: &[SlotLabels]) {
    let name = "millrace_policy_generation_calls_total";
    out.family(name, "counter", "Decisions asked of the generation in force, by result: `ok` or why the fallback answered.");
    for SlotLabels { kind, status, .. } in slots {
        let generation = status.generation.to_string();
        let mut sample = |result: &str, count: u64| {
            out.sample(name, &[("kind", kind), ("generation", &generation), ("result", result)], count as f64);
        };
        let Counters { ok, faults, .. } = &status.current;
        sample("ok", *ok);
        for (fault, count) in faults.iter() {
            sample(&fault.to_string(), count);
        }
    }
    let name = "millrace_policy_generation_rebuilds_total";
    out.family(name, "counter", "Fresh instances of the generation in force.");
    for SlotLabels { kind, status, .. } in slots {
        let generation = status.generation.to_string();
        out.sample(name, &[("kind", kind), ("generation", &generation)], status.report.rebuilds as f64);
    }
}

/// Numbers that policies publish themselves; their names are bounded where they are registered.
fn own(out: &mut Exposition, slots: &[SlotLabels]) {
    let families = [
        ("millrace_policy_counter_total", "counter", "Counters of the policies' own, by `name`."),
        ("millrace_policy_gauge", "gauge", "Gauges of the policies' own, by `name`."),
    ];
    for (family, type_name, help) in families {
        out.family(family, type_name, help);
        for slot in slots {
            for metric in &slot.status.report.metrics {
                let value = match (metric.value, type_name) {
                    (GuestValue::Counter(value), "counter") => value as f64,
                    (GuestValue::Gauge(value), "gauge") => value,
                    _ => continue,
                };
                out.sample(family, &[("kind", slot.kind), ("policy", &slot.status.info.name), ("name", &metric.name)], value);
            }
        }
    }
}

fn latency(latency: &Latency) -> HistogramFacts {
    let mut sum = 0_u64;
    let mut cumulative = Vec::with_capacity(Latency::BUCKETS);
    for (bucket, count) in latency.buckets.iter().enumerate() {
        sum = sum.saturating_add(*count);
        if let Some(bound) = Latency::bound_ns(bucket) {
            cumulative.push((bound as f64 / 1e9, sum));
        }
    }
    HistogramFacts { cumulative, count: sum, sum: latency.sum_ns as f64 / 1e9 }
}
