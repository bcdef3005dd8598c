//! NormHeads: norms of runs of columns, in place. Knows rows of floats.

use millrace_ops::{BackendError, NormHeads, NormKind};

use crate::memory::Region;
use crate::task::{Arguments, Task, Worker, product};

pub(crate) struct NormHeadsTask {
    x: Region,
    stride: usize,
    offset: usize,
    heads: usize,
    width: usize,
    kind: NormKind,
    weight: Region,
    bias: Option<Region>,
    eps: f32,
    rows: usize,
}

impl NormHeadsTask {
    pub(crate) fn new(arguments: Arguments, op: NormHeads) -> Result<Self, BackendError> {
        let NormHeads { x, stride, offset, heads, width, kind, weight, bias, eps, rows } = op;
        arguments.require(width > 0, || "heads of width 0".into())?;
        let end = product(&[heads, width]).saturating_add(offset);
        arguments.require(end <= stride, || format!("heads end at column {end} of rows of {stride}"))?;
        let x = arguments.region("x", x, product(&[rows, stride, 4]))?;
        let weight = arguments.region("weight", weight, product(&[width, 4]))?;
        arguments.distinct(&weight, &x)?;
        let bias = bias.map(|bias| arguments.region("bias", bias, product(&[width, 4]))).transpose()?;
        if let Some(bias) = &bias {
            arguments.distinct(bias, &x)?;
        }
        Ok(Self { x, stride, offset, heads, width, kind, weight, bias, eps, rows })
    }
}

impl Task for NormHeadsTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let isa = worker.isa;
        // SAFETY: other buffers than `x`; nobody writes them in this phase.
        let weight = unsafe { self.weight.items::<f32>(0, self.width) };
        // SAFETY: as above.
        let bias = self.bias.as_ref().map(|bias| unsafe { bias.items::<f32>(0, self.width) });
        let total = self.rows * self.heads;
        let chunk = worker.chunk(total);
        while let Some(range) = worker.take(chunk, total) {
            for item in range {
                let (row, head) = (item / self.heads, item % self.heads);
                let first = row * self.stride + self.offset + head * self.width;
                // SAFETY: this head of this row belongs to the worker that took the item; heads end within the row.
                let run = unsafe { self.x.items_mut::<f32>(first, self.width) };
                match self.kind {
                    NormKind::Rms => crate::simd::rms_norm(isa, run, weight, self.eps),
                    NormKind::Layer => crate::simd::layer_norm(isa, run, weight, self.eps),
                }
                if let Some(bias) = bias {
                    crate::simd::add_each(isa, run, bias);
                }
            }
        }
        Ok(())
    }
}
