//! How long a device's operations take, by kind: what a profile of a step is made of. Knows no clock.

use std::fmt;

use crate::Op;

/// Operations that are counted together: of one kind, and of weights of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationKind {
    /// [`Op::name`] of the operation before it that a device did together with it.
    pub with: Option<&'static str>,
    /// [`Op::name`].
    pub name: &'static str,
    /// Rows and columns of the weight, for products.
    pub weight: Option<(usize, usize)>,
}

/// What all operations of a kind took together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationTime {
    pub kind: OperationKind,
    pub calls: u64,
    pub time_ns: u64,
}

impl OperationKind {
    pub fn of(op: &Op) -> Self {
        let weight = match op {
            Op::Linear(op) => Some(&op.weight),
            Op::LinearHeads(op) => op.weights.first(),
            Op::LinearExperts(op) => op.weights.first(),
            _ => None,
        };
        Self { with: None, name: op.name(), weight: weight.map(|weight| (weight.rows(), weight.cols())) }
    }

    /// Done together with the operation before it.
    #[must_use]
    pub fn behind(self, before: &Op) -> Self {
        Self { with: Some(before.name()), ..self }
    }
}

impl fmt::Display for OperationKind {
    /// `silu_mul, linear 576x1536`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(before) = self.with {
            write!(f, "{before}, ")?;
        }
        match self.weight {
            Some((rows, cols)) => write!(f, "{} {rows}x{cols}", self.name),
            None => f.write_str(self.name),
        }
    }
}
