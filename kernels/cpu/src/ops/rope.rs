//! Rope: rotary position embedding of halves of a head or of neighbours. Knows no model: frequencies are given.
//! The angle is `position as f32 * frequency` in f32, as the reference implementations compute it; its sine and cosine are
//! then accurate to f32, and multiplied by the amplitude.

use millrace_ops::{BackendError, Rope, RopePairs};

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
    pairs: RopePairs,
    amplitude: f32,
    positions: Region,
    rows: usize,
}

impl RopeTask {
    pub(crate) fn new(arguments: Arguments, op: Rope) -> Result<Self, BackendError> {
        let Rope { x, stride, offset, heads, head_dim, frequencies, rotary, pairs, amplitude, positions, rows } = op;
        let end = product(&[heads.saturating_sub(1), head_dim]).saturating_add(offset).saturating_add(rotary);
        arguments.require(heads == 0 || end <= stride, || format!("heads end at column {end} of rows of {stride}"))?;
        arguments.require(rotary.is_multiple_of(2), || format!("{rotary} rotary channels are no pairs"))?;
        arguments.require(heads <= 1 || rotary <= head_dim, || {
            format!("{rotary} rotary channels of a head run into the next head, {head_dim} columns on")
        })?;
        let x = arguments.region("x", x, product(&[rows, stride, 4]))?;
        let frequencies = arguments.region("frequencies", frequencies, product(&[rotary / 2, 4]))?;
        let positions = arguments.region("positions", positions, product(&[rows, 4]))?;
        arguments.distinct(&frequencies, &x)?;
        arguments.distinct(&positions, &x)?;
        let half = rotary / 2;
        Ok(Self { x, stride, offset, heads, head_dim, frequencies, half, pairs, amplitude, positions, rows })
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
            let factors = worker.scratch.floats(self.half * 2)?;
            for row in range {
                let (sines, cosines) = factors.split_at_mut(self.half);
                crate::simd::rotation(isa, positions[row], frequencies, sines, cosines);
                factors.iter_mut().for_each(|factor| *factor *= self.amplitude);
                let (sines, cosines) = factors.split_at(self.half);
                for head in 0..self.heads {
                    let first = row * self.stride + self.offset + head * self.head_dim;
                    // SAFETY: this row belongs to the worker that took it; heads end within it.
                    let channels = unsafe { self.x.items_mut::<f32>(first, self.half * 2) };
                    match self.pairs {
                        RopePairs::Halves => {
                            let (low, high) = channels.split_at_mut(self.half);
                            crate::simd::rotate(isa, low, high, sines, cosines);
                        }
                        RopePairs::Adjacent => crate::simd::rotate_adjacent(isa, channels, sines, cosines),
                    }
                }
            }
        }
        Ok(())
    }
}
