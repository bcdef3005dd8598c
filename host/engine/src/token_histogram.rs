//! How many tokens the steps had, in fixed buckets. Plain data; knows no metric names.

/// Counts of steps by their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenHistogram {
    counts: [u64; TokenHistogram::BOUNDS.len() + 1],
    sum: u64,
}

impl TokenHistogram {
    /// Upper bounds of the buckets; the last bucket has none. Those of vLLM's `vllm:iteration_tokens_total`, so that dashboards
    /// can add servers up.
    pub const BOUNDS: [u32; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

    pub(crate) fn record(&mut self, tokens: u32) {
        let bucket = Self::BOUNDS.partition_point(|&bound| bound < tokens);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        self.sum = self.sum.saturating_add(u64::from(tokens));
    }

    /// What another process counted; buckets that are missing are empty.
    #[must_use]
    pub fn of(counts: &[u64], sum: u64) -> Self {
        let mut histogram = Self { sum, ..Self::default() };
        histogram.counts.iter_mut().zip(counts).for_each(|(own, &count)| *own = count);
        histogram
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.counts.iter_mut().zip(other.counts).for_each(|(own, count)| *own = own.saturating_add(count));
        self.sum = self.sum.saturating_add(other.sum);
        self
    }

    /// Per bucket, those of smaller buckets not included.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Tokens of all steps.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::TokenHistogram;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut histogram = TokenHistogram::default();
        [1, 2, 8, 9, 16_384, 16_385, u32::MAX].into_iter().for_each(|tokens| histogram.record(tokens));
        assert_eq!(histogram.counts(), [1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(histogram.sum(), 1 + 2 + 8 + 9 + 16_384 + 16_385 + u64::from(u32::MAX));
    }
}
