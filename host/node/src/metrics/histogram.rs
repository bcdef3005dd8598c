//! Values sorted into fixed buckets. Lock-free; a scrape may see one of two values that were recorded at the same moment.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts per bucket and the sum of all values.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Upper bounds, ascending; the bucket past the last has none.
    bounds: &'static [f64],
    buckets: Box<[AtomicU64]>,
    /// In millionths, so that an integer holds it.
    sum: AtomicU64,
}

/// A histogram as of one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HistogramFacts {
    /// Bound and how many values were at most that.
    pub(crate) cumulative: Vec<(f64, u64)>,
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }

    /// Negative and non-finite values are no measurement and are dropped.
    pub(crate) fn record(&self, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
            self.sum.fetch_add((value * 1e6).round() as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn facts(&self) -> HistogramFacts {
        let mut count = 0_u64;
        let mut cumulative = Vec::with_capacity(self.bounds.len());
        for (i, bucket) in self.buckets.iter().enumerate() {
            count = count.saturating_add(bucket.load(Ordering::Relaxed));
            if let Some(bound) = self.bounds.get(i) {
                cumulative.push((*bound, count));
            }
        }
        HistogramFacts { cumulative, count, sum: self.sum.load(Ordering::Relaxed) as f64 / 1e6 }
    }
}
