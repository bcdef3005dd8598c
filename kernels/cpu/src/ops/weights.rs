//! Prepared weights as operations see them: this backend's own, alone or in sets of one shape. Knows no layout and no product.

use std::sync::Arc;

use millrace_ops::{BackendError, Weight, WeightMemory};

use crate::linear::{ActivationForm, PackedWeight, StepRows};
use crate::task::Arguments;

/// A prepared weight of this backend.
pub(crate) struct Prepared(Weight);

impl Prepared {
    pub(crate) fn new(arguments: Arguments, weight: Weight) -> Result<Self, BackendError> {
        packed(arguments, &weight)?;
        Ok(Self(weight))
    }

    pub(crate) fn packed(&self, arguments: Arguments) -> Result<&PackedWeight, BackendError> {
        packed(arguments, &self.0)
    }
}

/// Weights of one shape and format, one per head or expert; at least one.
pub(crate) struct PreparedSet {
    weights: Arc<[Weight]>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Of each weight.
    pub(crate) panels: usize,
    /// The form that products want activations in.
    pub(crate) form: ActivationForm,
}

impl PreparedSet {
    pub(crate) fn new(arguments: Arguments, weights: Arc<[Weight]>, rows: StepRows) -> Result<Self, BackendError> {
        let Some(first) = weights.first() else { return Err(arguments.invalid("there are no weights")) };
        let packed_first = packed(arguments, first)?;
        let (panels, form) = (packed_first.panel_count(), packed_first.form(rows));
        for (i, weight) in weights.iter().enumerate() {
            let other = packed(arguments, weight)?;
            let alike = other.rows() == packed_first.rows()
                && other.cols() == packed_first.cols()
                && other.format() == packed_first.format()
                && other.form(rows) == form;
            arguments.require(alike, || {
                format!("weight {i} is {weight:?} and weight 0 {first:?}; all must have one shape and format")
            })?;
        }
        let (rows, cols) = (packed_first.rows(), packed_first.cols());
        Ok(Self { weights, rows, cols, panels, form })
    }

    pub(crate) fn count(&self) -> usize {
        self.weights.len()
    }

    /// The weight of a head or expert below [`Self::count`].
    pub(crate) fn packed(&self, arguments: Arguments, index: usize) -> Result<&PackedWeight, BackendError> {
        packed(arguments, &self.weights[index])
    }
}

fn packed(arguments: Arguments, weight: &Weight) -> Result<&PackedWeight, BackendError> {
    weight.memory().downcast_ref().ok_or_else(|| arguments.invalid("the weight is another backend's"))
}
