//! The gated feed-forward layer: `normed -> [gate|up] -> silu(gate) * up -> down + out`. gate and up are one weight, stacked
//! along their rows.

use millrace_ops::{Activations, Buffer, LinearMode, Op, Queue, SiluMul};

use super::projection::{Bias, Projection};
use crate::ModelError;
use crate::weights::WeightLoader;

pub(super) struct GatedMlp {
    gate_up: Projection,
    down: Projection,
    intermediate: usize,
}

/// Working memory.
#[derive(Debug, Clone)]
pub(crate) struct GatedMlpWork {
    /// `[max_rows, 2 * intermediate]`.
    pub(super) gate_up: Buffer,
    /// `[max_rows, intermediate]`.
    pub(super) gated: Buffer,
}

impl GatedMlp {
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        module: &str,
        (hidden, intermediate): (usize, usize),
        bias: Bias,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{module}.{part}");
        let gate_up = [(name("gate_proj"), intermediate), (name("up_proj"), intermediate)];
        Ok(Self {
            gate_up: Projection::load(loader, &gate_up, hidden, (bias, Activations::Coarse))?,
            down: Projection::load(loader, &[(name("down_proj"), hidden)], intermediate, (bias, Activations::Coarse))?,
            intermediate,
        })
    }

    /// Adds to `out`.
    pub(super) fn enqueue(&self, queue: &mut dyn Queue, work: &GatedMlpWork, (normed, out): (&Buffer, &Buffer), rows: usize) {
        self.gate_up.enqueue(queue, normed, &work.gate_up, rows, LinearMode::Store);
        let (x, gated) = (work.gate_up.clone(), work.gated.clone());
        queue.enqueue(Op::SiluMul(SiluMul { x, out: gated, rows, width: self.intermediate }));
        self.down.enqueue(queue, &work.gated, out, rows, LinearMode::Add);
    }
}
