//! Repeats of one measurement: their median and extremes. Knows no unit.

use serde_json::{Value, json};

/// Values of one figure over the repeats of one test.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spread(Vec<f64>);

impl Spread {
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    pub(crate) fn median(&self) -> f64 {
        let (n, values) = (self.0.len(), &self.0);
        match n {
            0 => 0.0,
            _ if n % 2 == 1 => values[n / 2],
            _ => f64::midpoint(values[n / 2 - 1], values[n / 2]),
        }
    }

    pub(crate) fn min(&self) -> f64 {
        self.0.first().copied().unwrap_or(0.0)
    }

    pub(crate) fn max(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }

    pub(crate) fn json(&self) -> Value {
        json!({"median": self.median(), "min": self.min(), "max": self.max()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_both() {
        assert_eq!(Spread::new(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Spread::new(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(Spread::new(vec![]).median(), 0.0);
        assert_eq!(Spread::new(vec![2.0, 1.0]).json(), json!({"median": 1.5, "min": 1.0, "max": 2.0}));
    }
}
