//! `millrace:policy/metrics`: numbers that the host publishes. Values belong to the loaded component, so they outlive rebuilds.

use std::sync::{Mutex, PoisonError};

use millrace_policy::{GuestMetric, GuestValue};

use super::GuestContext;
use super::bindings::millrace::policy::metrics::Host;
use crate::trace::Import;

const MAX_NAME_BYTES: usize = 64;

/// Metrics of one loaded component; a handle is a place in it.
#[derive(Debug, Default)]
pub(crate) struct MetricTable(Mutex<Vec<GuestMetric>>);

impl MetricTable {
    pub(crate) fn snapshot(&self) -> Vec<GuestMetric> {
        self.with(|metrics| metrics.clone())
    }

    /// The handle of a name, new or had before.
    fn register(&self, name: String, zero: GuestValue, limit: usize) -> Result<u32, String> {
        if !is_name(&name) {
            return Err(format!(
                "`{}` is no metric name: a-z, 0-9 and _, beginning with a letter, at most {MAX_NAME_BYTES} bytes",
                name.chars().take(MAX_NAME_BYTES).collect::<String>()
            ));
        }
        self.with(|metrics| {
            let place = match metrics.iter().position(|m| m.name == name) {
                Some(place) if same_type(metrics.get(place), zero) => place,
                Some(_) => return Err(format!("`{name}` is a metric of the other type already")),
                None if metrics.len() >= limit => return Err(format!("there are {limit} metrics already, the limit")),
                None => {
                    metrics.push(GuestMetric { name, value: zero });
                    metrics.len() - 1
                }
            };
            u32::try_from(place).map_err(|_| "too many metrics".to_owned())
        })
    }

    fn add(&self, handle: u32, by: u64) {
        self.with(|metrics| {
            if let Some(GuestMetric { value: GuestValue::Counter(value), .. }) = metrics.get_mut(handle as usize) {
                *value = value.saturating_add(by);
            }
        });
    }

    fn set(&self, handle: u32, to: f64) {
        self.with(|metrics| {
            if let Some(GuestMetric { value: GuestValue::Gauge(value), .. }) = metrics.get_mut(handle as usize)
                && to.is_finite()
            {
                *value = to;
            }
        });
    }

    fn with<R>(&self, work: impl FnOnce(&mut Vec<GuestMetric>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl GuestContext {
    fn register(&mut self, name: String, zero: GuestValue) -> Result<u32, String> {
        if !self.is_initializing {
            return Err("metrics are registered in `init` only".to_owned());
        }
        let recorded = self.journal.replayed(|import| match import {
            Import::Metric { name: then, result } if *then == name => Some(result.clone()),
            _ => None,
        });
        let own = self.metrics.register(name.clone(), zero, self.limits.metric_names);
        let result = recorded.unwrap_or(own);
        self.journal.note(|| Import::Metric { name, result: result.clone() });
        result
    }
}

impl Host for GuestContext {
    fn counter(&mut self, name: String) -> Result<u32, String> {
        self.register(name, GuestValue::Counter(0))
    }

    fn gauge(&mut self, name: String) -> Result<u32, String> {
        self.register(name, GuestValue::Gauge(0.0))
    }

    fn add(&mut self, handle: u32, by: u64) {
        self.metrics.add(handle, by);
    }

    fn set(&mut self, handle: u32, value: f64) {
        self.metrics.set(handle, value);
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn same_type(metric: Option<&GuestMetric>, value: GuestValue) -> bool {
    metric.is_some_and(|m| std::mem::discriminant(&m.value) == std::mem::discriminant(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_bounded_and_keep_their_handles() {
        let table = MetricTable::default();
        let counter = |name: &str| table.register(name.into(), GuestValue::Counter(0), 2);
        assert_eq!(counter("held_2"), Ok(0));
        assert_eq!(counter("other"), Ok(1));
        assert_eq!(counter("held_2"), Ok(0));
        assert!(counter("third").is_err_and(|e| e.contains("limit")));
        assert!(table.register("other".into(), GuestValue::Gauge(0.0), 9).is_err_and(|e| e.contains("other type")));
        for bad in ["", "2x", "_x", "Up", "a-b", "a\nb", &"x".repeat(65)] {
            assert!(counter(bad).is_err_and(|e| e.contains("no metric name")), "{bad}");
        }
    }

    #[test]
    fn values_stay_sane() {
        let table = MetricTable::default();
        let counter = table.register("c".into(), GuestValue::Counter(0), 9).expect("counter");
        let gauge = table.register("g".into(), GuestValue::Gauge(0.0), 9).expect("gauge");
        table.add(counter, u64::MAX);
        table.add(counter, 2);
        table.set(gauge, 1.5);
        table.set(gauge, f64::NAN);
        table.set(gauge, f64::INFINITY);
        table.set(counter, 3.0);
        table.add(gauge, 3);
        table.add(99, 1);
        let values: Vec<GuestValue> = table.snapshot().into_iter().map(|m| m.value).collect();
        assert_eq!(values, [GuestValue::Counter(u64::MAX), GuestValue::Gauge(1.5)]);
    }
}
