//! What the pool runs: an operation, checked and resolved to memory, in phases that all workers enter together.
//! Knows neither queues nor threads.

use std::ops::Range;

use millrace_ops::{BackendError, Buffer, DeviceMemory};

use crate::barrier::Barrier;
use crate::isa::Isa;
use crate::linear::QuantizedRows;
use crate::memory::{DEVICE, HostMemory, Region};

/// One operation of a submission.
pub(crate) trait Task: Send + Sync {
    /// Phases; between two of them all workers meet.
    fn phases(&self) -> usize {
        1
    }

    /// Bytes of scratch that all workers share from the first phase to the last; contents are undefined at the start.
    fn shared_bytes(&self, _workers: usize) -> usize {
        0
    }

    /// Rows and columns of activations that are quantized into [`Worker::quantized`].
    fn quantized(&self) -> Option<(usize, usize)> {
        None
    }

    /// One worker's part of a phase. Work is divided by [`Worker::take`].
    ///
    /// # Errors
    /// Step inputs that do not fit the operation; the submission fails and no later phase runs.
    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError>;
}

/// What one worker has at hand in a phase.
pub(crate) struct Worker<'a> {
    /// Which of `workers` it is.
    pub(crate) index: usize,
    pub(crate) workers: usize,
    pub(crate) isa: Isa,
    /// This worker's own scratch; see [`Scratch::floats`].
    pub(crate) scratch: &'a mut Scratch,
    /// [`Task::shared_bytes`] or more.
    pub(crate) shared: &'a Region,
    /// Room for [`Task::quantized`], shared like the above.
    pub(crate) quantized: &'a QuantizedRows,
    pub(crate) barrier: &'a Barrier,
}

impl Worker<'_> {
    /// The next run of at most `chunk` of the phase's `total` items; `None` when all are taken.
    #[inline]
    pub(crate) fn take(&self, chunk: usize, total: usize) -> Option<Range<usize>> {
        self.barrier.take(chunk, total)
    }

    /// A chunk size that gives each worker several turns, so that a slow one does not hold up the rest.
    pub(crate) fn chunk(&self, total: usize) -> usize {
        total.div_ceil(self.workers * 4).max(1)
    }
}

/// Memory of one worker that lives as long as the pool.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Activations that this worker quantized for itself.
    pub(crate) quantized: QuantizedRows,
    memory: Option<HostMemory>,
}

impl Scratch {
    /// [`Self::floats`], and room for quantized activations.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub(crate) fn floats_and_quantized(&mut self, count: usize) -> Result<(&mut [f32], &mut QuantizedRows), BackendError> {
        let Self { quantized, memory } = self;
        Ok((floats(memory, count)?, quantized))
    }

    /// `count` floats with any contents, 64-byte aligned.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub(crate) fn floats(&mut self, count: usize) -> Result<&mut [f32], BackendError> {
        floats(&mut self.memory, count)
    }
}

/// `count` floats out of `kept`, which grows.
fn floats(kept: &mut Option<HostMemory>, count: usize) -> Result<&mut [f32], BackendError> {
    let bytes = count.saturating_mul(4);
    let memory = match kept.take().filter(|memory| memory.bytes() >= bytes) {
        Some(memory) => memory,
        None => HostMemory::new(bytes.saturating_add(bytes / 2))?,
    };
    let start = kept.insert(memory).start().cast();
    // SAFETY: at least `bytes` bytes from the start were checked or allocated above; initialised (zeroed when made); only this worker
    // has the scratch, and the slice borrows it mutably.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, count) })
}

/// Product of sizes; too large a product becomes `usize::MAX`, which no buffer satisfies.
pub(crate) fn product(factors: &[usize]) -> usize {
    factors.iter().fold(1, |product, &factor| product.saturating_mul(factor))
}

/// Resolves the buffers of one operation and says what is wrong with them.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    pub(crate) operation: &'static str,
}

impl Arguments {
    pub(crate) fn invalid(self, why: impl Into<String>) -> BackendError {
        BackendError::Invalid { device: DEVICE.into(), operation: self.operation, why: why.into() }
    }

    /// `buffer` as memory of at least `bytes`.
    pub(crate) fn region(self, name: &str, buffer: Buffer, bytes: usize) -> Result<Region, BackendError> {
        let Some(region) = Region::of(buffer) else {
            return Err(self.invalid(format!("`{name}` is a buffer of another backend")));
        };
        if region.bytes() < bytes {
            let have = region.bytes();
            return Err(self.invalid(format!("`{name}` holds {have} bytes where the operation needs {bytes}")));
        }
        Ok(region)
    }

    /// Refuses an output that is also an input.
    pub(crate) fn distinct(self, input: &Region, output: &Region) -> Result<(), BackendError> {
        if input.same_memory(output) {
            return Err(self.invalid("the output buffer is also an input, which this operation cannot do"));
        }
        Ok(())
    }

    /// Refuses with `why` where something that must hold does not.
    pub(crate) fn require(self, holds: bool, why: impl FnOnce() -> String) -> Result<(), BackendError> {
        if holds { Ok(()) } else { Err(self.invalid(why())) }
    }
}
