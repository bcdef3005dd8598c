//! Prepared weights by what they were made from, so that two stages that want the same tensors in the same format share one
//! copy. Knows no device.

use std::collections::BTreeMap;

use millrace_ops::{Activations, Weight, WeightFormat};

/// What a weight was made from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WeightKey {
    /// Digest of the checkpoint.
    pub(crate) checkpoint: String,
    /// Tensors stacked along their rows.
    pub(crate) tensors: Vec<String>,
    /// The format's name; the format itself has no order.
    pub(crate) format: String,
    /// Whether products take their activations finely.
    pub(crate) fine: bool,
}

impl WeightKey {
    pub(crate) fn new(checkpoint: &str, tensors: &[String], (format, activations): (WeightFormat, Activations)) -> Self {
        let (checkpoint, format) = (checkpoint.to_owned(), format.to_string());
        Self { checkpoint, tensors: tensors.to_vec(), format, fine: activations == Activations::Fine }
    }
}

/// Weights of one backend. Use another cache for another backend: a weight belongs to the backend that prepared it.
#[derive(Debug, Default)]
pub struct WeightCache {
    weights: BTreeMap<WeightKey, Weight>,
}

impl WeightCache {
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes on the device, each copy counted once.
    pub fn bytes(&self) -> usize {
        self.weights.values().map(Weight::bytes).fold(0, usize::saturating_add)
    }

    pub(crate) fn get(&self, key: &WeightKey) -> Option<Weight> {
        self.weights.get(key).cloned()
    }

    pub(crate) fn put(&mut self, key: WeightKey, weight: Weight) {
        self.weights.insert(key, weight);
    }
}
