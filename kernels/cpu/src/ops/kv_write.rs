//! WriteKv: columns of a step's rows into the planes of their sequences' pages. Knows not what they mean.

use millrace_ops::{BackendError, PlaneColumns, WriteKv};

use crate::isa::Isa;
use crate::kv_block::HeadBlockMut;
use crate::memory::Region;
use crate::ops::step::{Cache, Step, Walk};
use crate::task::{Arguments, Task, Worker, product};

pub(crate) struct WriteKvTask {
    arguments: Arguments,
    cache: Cache,
    step: Step,
    x: Region,
    stride: usize,
    /// No two of the same plane and layer, so that workers write apart.
    planes: Vec<PlaneColumns>,
    /// Of the plane that has most.
    heads: usize,
    rows: usize,
}

/// Rows of one sequence that fall into one page.
struct Run {
    page: u32,
    first_row: usize,
    /// Slot of the first row in the page.
    slot: usize,
    rows: usize,
}

impl WriteKvTask {
    pub(crate) fn new(arguments: Arguments, op: WriteKv) -> Result<Self, BackendError> {
        let WriteKv { cache, step, x, stride, planes, rows, sequences } = op;
        let cache = Cache::new(arguments, cache)?;
        let mut heads = 0;
        for (i, columns) in planes.iter().enumerate() {
            let PlaneColumns { plane, layer, offset } = *columns;
            let layout = cache.plane(arguments, plane, layer)?;
            let end = product(&[layout.heads, layout.width]).saturating_add(offset);
            arguments.require(end <= stride, || format!("plane {plane} ends at column {end} of rows of {stride}"))?;
            let twice = planes[..i].iter().any(|earlier| (earlier.plane, earlier.layer) == (plane, layer));
            arguments.require(!twice, || format!("layer {layer} of plane {plane} is written twice"))?;
            heads = heads.max(layout.heads);
        }
        arguments.require(!planes.is_empty(), || "no plane to write".into())?;
        let step = Step::new(arguments, &step, sequences)?;
        let x = arguments.region("x", x, product(&[rows, stride, 4]))?;
        arguments.distinct(&x, &cache.pages)?;
        Ok(Self { arguments, cache, step, x, stride, planes, heads, rows })
    }

    /// How many pages a sequence's rows touch.
    fn runs_of(&self, sequence: usize) -> usize {
        let segment = self.step.segments()[sequence];
        let (start, rows, tokens) = (segment.start as usize, segment.rows as usize, self.cache.layout.page_tokens);
        if rows == 0 { 0 } else { (start + rows - 1) / tokens - start / tokens + 1 }
    }

    /// The `index`th run of a sequence; `None` where its page no longer carries its tag, which flags the sequence.
    fn run_at(&self, sequence: usize, index: usize) -> Result<Option<Run>, BackendError> {
        let segment = self.step.segments()[sequence];
        let tokens = self.cache.layout.page_tokens;
        let (start, rows) = (segment.start as usize, segment.rows as usize);
        let page_index = start / tokens + index;
        let begin = start.max(page_index * tokens);
        let end = (start + rows).min((page_index + 1) * tokens);
        let entry = self.step.table(self.arguments, sequence)?[page_index];
        if !self.cache.tags.carries(entry.page, entry.tag) {
            self.step.set_verdict(sequence, 1);
            return Ok(None);
        }
        let first_row = segment.first_row as usize + begin - start;
        Ok(Some(Run { page: entry.page, first_row, slot: begin - page_index * tokens, rows: end - begin }))
    }

    /// Writes `head` of each plane that has so many.
    fn write(&self, isa: Isa, run: &Run, head: usize) {
        for &PlaneColumns { plane, layer, offset } in &self.planes {
            let layout = &self.cache.layout.planes[plane];
            if head >= layout.heads {
                continue;
            }
            let place = self.cache.place(run.page, (plane, layer), head);
            // SAFETY: a page with a current tag belongs to one sequence's rows, and (run, head) to the worker that took it.
            let mut block = unsafe { HeadBlockMut::new(&self.cache.pages, layout, place) };
            for i in 0..run.rows {
                let at = (run.first_row + i) * self.stride + offset + head * layout.width;
                // SAFETY: `x` is another buffer than the pages and written by nobody in this phase.
                block.store(isa, run.slot + i, unsafe { self.x.items(at, layout.width) });
            }
        }
    }
}

impl Task for WriteKvTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        self.step.check(self.arguments, self.rows, self.cache.layout.page_tokens)?;
        let heads = self.heads;
        let total: usize = (0..self.step.sequences).map(|sequence| self.runs_of(sequence)).sum::<usize>() * heads;
        let mut walk = Walk::new(|sequence| self.runs_of(sequence));
        let chunk = worker.chunk(total);
        while let Some(range) = worker.take(chunk, total) {
            for item in range {
                let (sequence, index) = walk.locate(item / heads);
                if self.step.flagged(sequence) {
                    continue;
                }
                if let Some(run) = self.run_at(sequence, index)? {
                    self.write(worker.isa, &run, item % heads);
                }
            }
        }
        Ok(())
    }
}
