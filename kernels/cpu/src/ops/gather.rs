//! GatherRows: the last row of each sampled segment, packed. Knows not what rows hold.

use millrace_ops::{BackendError, GatherRows, SamplerParams, Segment};

use crate::memory::Region;
use crate::task::{Arguments, Task, Worker, product};

pub(crate) struct GatherRowsTask {
    arguments: Arguments,
    x: Region,
    samplers: Region,
    segments: Region,
    out: Region,
    count: usize,
    width: usize,
}

impl GatherRowsTask {
    pub(crate) fn new(arguments: Arguments, op: GatherRows) -> Result<Self, BackendError> {
        let GatherRows { x, step, out, count, width } = op;
        let x = arguments.region("x", x, 0)?;
        let out = arguments.region("out", out, product(&[count, width, 4]))?;
        arguments.distinct(&x, &out)?;
        let samplers = arguments.region("step.samplers", step.samplers, product(&[count, size_of::<SamplerParams>()]))?;
        let segments = arguments.region("step.segments", step.segments, 0)?;
        Ok(Self { arguments, x, samplers, segments, out, count, width })
    }

    /// Row of `x` that output row `index` copies.
    fn source(&self, index: usize) -> Result<usize, BackendError> {
        // SAFETY: only uploads write samplers, in phases of their own.
        let segment = unsafe { self.samplers.items::<SamplerParams>(index, 1)[0].segment } as usize;
        let segments = self.segments.bytes() / size_of::<Segment>();
        self.arguments.require(segment < segments, || format!("sampler {index} names segment {segment} of {segments}"))?;
        // SAFETY: only uploads write segments, in phases of their own.
        let segment = unsafe { self.segments.items::<Segment>(segment, 1)[0] };
        let end = segment.first_row as usize + segment.rows as usize;
        let fits = segment.rows > 0 && product(&[end, self.width, 4]) <= self.x.bytes();
        self.arguments.require(fits, || format!("sampler {index}: its segment is empty or ends at row {end}, outside `x`"))?;
        Ok(end - 1)
    }
}

impl Task for GatherRowsTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let chunk = worker.chunk(self.count);
        while let Some(range) = worker.take(chunk, self.count) {
            for index in range {
                let source = self.source(index)?;
                // SAFETY: `x` is another buffer than `out` and written by nobody in this phase.
                let from = unsafe { self.x.items::<f32>(source * self.width, self.width) };
                // SAFETY: output row `index` belongs to the worker that took it.
                unsafe { self.out.items_mut::<f32>(index * self.width, self.width) }.copy_from_slice(from);
            }
        }
        Ok(())
    }
}
