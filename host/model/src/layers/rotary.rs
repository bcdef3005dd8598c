//! Rotary embedding of a model: its frequencies on the device. Knows columns of rows.

use millrace_ops::{Buffer, Op, Queue, Rope, RopePairs};

use crate::architecture::StepShape;
use crate::spec::RopeSpec;
use crate::weights::WeightLoader;
use crate::{CheckpointError, ModelError};

/// GGUF's form of Llama 3 rope scaling: divisors of the frequencies.
const DIVISORS: &str = "rope_freqs.weight";

pub(super) struct Rotary {
    /// f32 `[rotary / 2]`.
    frequencies: Buffer,
    spec: RopeSpec,
}

/// Heads that are rotated, in rows of `stride` columns.
#[derive(Clone, Copy)]
pub(super) struct HeadColumns {
    pub(super) stride: usize,
    /// First rotary channel of the first head.
    pub(super) offset: usize,
    pub(super) heads: usize,
    /// Columns from one head to the next.
    pub(super) step: usize,
}

impl Rotary {
    pub(super) fn load(loader: &mut WeightLoader<'_>, spec: RopeSpec) -> Result<Self, ModelError> {
        let mut frequencies = spec.frequencies();
        let checkpoint = loader.checkpoint();
        if checkpoint.has_tensor(DIVISORS) {
            let divisors = checkpoint.vector(DIVISORS, frequencies.len())?;
            if !divisors.iter().all(|d| d.is_normal() && *d > 0.0) {
                let why = "holds something else than numbers above 0";
                return Err(CheckpointError::tensor(checkpoint.path(), DIVISORS, why).into());
            }
            frequencies.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= divisor);
        }
        Ok(Self { frequencies: loader.upload(&frequencies)?, spec })
    }

    pub(super) fn enqueue(&self, queue: &mut dyn Queue, step: &StepShape<'_>, x: &Buffer, columns: HeadColumns) {
        self.enqueue_pairs(queue, step, x, (columns, self.spec.pairs));
    }

    /// With pairs of the caller's choice.
    pub(super) fn enqueue_pairs(
        &self,
        queue: &mut dyn Queue,
        step: &StepShape<'_>,
        x: &Buffer,
        (columns, pairs): (HeadColumns, RopePairs),
    ) {
        queue.enqueue(Op::Rope(Rope {
            x: x.clone(),
            stride: columns.stride,
            offset: columns.offset,
            heads: columns.heads,
            head_dim: columns.step,
            frequencies: self.frequencies.clone(),
            rotary: self.spec.rotary,
            pairs,
            amplitude: self.spec.amplitude(),
            positions: step.buffers.positions.clone(),
            rows: step.rows,
        }));
    }
}
