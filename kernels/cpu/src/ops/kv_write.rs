//! WriteKv: keys and values of a step's rows into their sequences' pages. Knows not what they mean.

use millrace_ops::{BackendError, WriteKv};

use crate::isa::Isa;
use crate::kv_block::{HeadBlockMut, HeadPlace};
use crate::memory::Region;
use crate::ops::step::{Cache, KEYS, Step, VALUES, Walk};
use crate::task::{Arguments, Task, Worker, product};

pub(crate) struct WriteKvTask {
    arguments: Arguments,
    cache: Cache,
    step: Step,
    layer: usize,
    x: Region,
    stride: usize,
    key_offset: usize,
    value_offset: usize,
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
        let WriteKv { cache, step, layer, x, stride, key_offset, value_offset, rows, sequences } = op;
        let cache = Cache::new(arguments, cache)?;
        cache.require_grouped_query(arguments, layer)?;
        let width = product(&[cache.layout.planes[KEYS].heads, cache.layout.planes[KEYS].width]);
        let end = key_offset.max(value_offset).saturating_add(width);
        arguments.require(end <= stride, || format!("keys and values end at column {end} of rows of {stride}"))?;
        let step = Step::new(arguments, &step, sequences)?;
        let x = arguments.region("x", x, product(&[rows, stride, 4]))?;
        arguments.distinct(&x, &cache.pages)?;
        Ok(Self { arguments, cache, step, layer, x, stride, key_offset, value_offset, rows })
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
        if self.cache.tag(entry.page) != Some(entry.tag) {
            self.step.set_verdict(sequence, 1);
            return Ok(None);
        }
        let first_row = segment.first_row as usize + begin - start;
        Ok(Some(Run { page: entry.page, first_row, slot: begin - page_index * tokens, rows: end - begin }))
    }

    fn write(&self, isa: Isa, run: &Run, head: usize) {
        for (plane, offset) in [(KEYS, self.key_offset), (VALUES, self.value_offset)] {
            let layout = &self.cache.layout.planes[plane];
            let place = HeadPlace { block: self.cache.block(run.page, plane, self.layer), head };
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
        let heads = self.cache.layout.planes[KEYS].heads;
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
