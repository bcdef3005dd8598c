//! Rope: rotary position embedding with the halves of a head as pairs. Knows no model: frequencies are given.
//! The angle is `position as f32 * frequency` in f32, as the reference implementations compute it; its sine and cosine are
//! then accurate to f32.

use millrace_ops::{BackendError, Rope};

use crate::memory::Region;
use crate::task::{Arguments, Task, Worker, product};

pub(crate) struct RopeTask {
    x: Region,
    stride: usize,
    offset: usize,
    heads: usize,
    head_dim: usize,
    frequencies: Region,
    half: usize,
    positions: Region,
    rows: usize,
}

impl RopeTask {
    pub(crate) fn new(arguments: Arguments, op: Rope) -> Result<Self, BackendError> {
        let Rope { x, stride, offset, heads, head_dim, frequencies, rotary, positions, rows } = op;
        let columns = product(&[heads, head_dim]).saturating_add(offset);
        arguments.require(columns <= stride, || format!("heads end at column {columns} of rows of {stride}"))?;
        arguments.require(rotary.is_multiple_of(2) && rotary <= head_dim, || {
            format!("{rotary} rotary channels do not fit heads of {head_dim} in pairs")
        })?;
        let x = arguments.region("x", x, product(&[rows, stride, 4]))?;
        let frequencies = arguments.region("frequencies", frequencies, product(&[rotary / 2, 4]))?;
        let positions = arguments.region("positions", positions, product(&[rows, 4]))?;
        arguments.distinct(&frequencies, &x)?;
        arguments.distinct(&positions, &x)?;
        Ok(Self { x, stride, offset, heads, head_dim, frequencies, half: rotary / 2, positions, rows })
    }
}

impl Task for RopeTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        // SAFETY: other buffers than `x`; nobody writes them in this phase.
        let (frequencies, positions) =
            unsafe { (self.frequencies.items::<f32>(0, self.half), self.positions.items::<u32>(0, self.rows)) };
        let chunk = worker.chunk(self.rows);
        let isa = worker.isa;
        while let Some(range) = worker.take(chunk, self.rows) {
            let (sines, cosines) = worker.scratch.floats(self.half * 2)?.split_at_mut(self.half);
            for row in range {
                crate::simd::rotation(isa, positions[row], frequencies, sines, cosines);
                let columns = self.heads * self.head_dim;
                // SAFETY: this row belongs to the worker that took it.
                let x = unsafe { self.x.items_mut::<f32>(row * self.stride + self.offset, columns) };
                for head in x.chunks_exact_mut(self.head_dim) {
                    let (low, high) = head.split_at_mut(self.half);
                    crate::simd::rotate(isa, low, &mut high[..self.half], sines, cosines);
                }
            }
        }
        Ok(())
    }
}
