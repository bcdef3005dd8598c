//! A matrix product with its bias, and norms. Knows rows of activations.

use millrace_ops::{Activations, Buffer, Linear, LinearMode, Op, Queue, RmsNorm, Weight};

use crate::ModelError;
use crate::weights::{Stack, WeightLoader};

/// A weight and its bias.
pub(super) struct Projection {
    weight: Weight,
    bias: Option<Buffer>,
}

/// Whether a projection has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    None,
    Loaded,
}

impl Bias {
    pub(super) fn when(loaded: bool) -> Self {
        if loaded { Self::Loaded } else { Self::None }
    }
}

impl Projection {
    /// Modules (name, rows) stacked along their rows, and their biases.
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        modules: &[(String, usize)],
        cols: usize,
        (bias, activations): (Bias, Activations),
    ) -> Result<Self, ModelError> {
        let part = |suffix: &str| modules.iter().map(|(name, rows)| (format!("{name}.{suffix}"), *rows)).collect::<Vec<_>>();
        let weight = loader.linear(&Stack { parts: part("weight"), cols, activations })?;
        let bias = match bias {
            Bias::None => None,
            Bias::Loaded => Some(loader.vectors(&part("bias"))?),
        };
        Ok(Self { weight, bias })
    }

    /// A table that is multiplied with: head, router.
    pub(super) fn table(loader: &mut WeightLoader<'_>, name: &str, rows: usize, cols: usize) -> Result<Self, ModelError> {
        Ok(Self { weight: loader.table(name, rows, cols)?, bias: None })
    }

    pub(super) fn of(weight: Weight) -> Self {
        Self { weight, bias: None }
    }

    pub(super) fn enqueue(&self, queue: &mut dyn Queue, x: &Buffer, out: &Buffer, rows: usize, mode: LinearMode) {
        queue.enqueue(Op::Linear(Linear {
            x: x.clone(),
            weight: self.weight.clone(),
            bias: self.bias.clone(),
            out: out.clone(),
            rows,
            mode,
        }));
    }
}

/// RMS norm of whole rows.
pub(super) struct Norm {
    weight: Buffer,
    width: usize,
    eps: f32,
}

impl Norm {
    pub(super) fn load(loader: &mut WeightLoader<'_>, module: &str, width: usize, eps: f32) -> Result<Self, ModelError> {
        let weight = loader.vectors(&[(format!("{module}.weight"), width)])?;
        Ok(Self { weight, width, eps })
    }

    /// `out` may be `x`.
    pub(super) fn enqueue(&self, queue: &mut dyn Queue, x: &Buffer, out: &Buffer, rows: usize) {
        queue.enqueue(Op::RmsNorm(RmsNorm {
            x: x.clone(),
            weight: self.weight.clone(),
            out: out.clone(),
            rows,
            width: self.width,
            eps: self.eps,
        }));
    }
}
