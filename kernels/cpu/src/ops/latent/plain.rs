//! Attention over latents in plain loops: all scores of some heads of a row, their exact softmax, then the weighted latents.
//! The reference, and the form for machines without vectors. Tokens that a row does not see are never read.

use millrace_ops::BackendError;

use super::{Checked, LATENTS};
use crate::kv_block::HeadBlock;
use crate::ops::attend::plain::softmax;
use crate::ops::step::Walk;
use crate::task::{Task, Worker};

/// Heads of a row that share a token's widened latent.
const HEADS: usize = 8;

pub(super) struct PlainLatent {
    checked: Checked,
}

/// A row and the tokens that it sees.
#[derive(Clone, Copy)]
struct Row<'a> {
    sequence: usize,
    row: usize,
    position: usize,
    /// `None`: all up to its own.
    line: Option<&'a [u32]>,
}

impl PlainLatent {
    pub(super) fn new(checked: Checked) -> Self {
        Self { checked }
    }

    /// Calls `visit(index, latent)` for each token that the row sees.
    fn tokens(&self, row: Row<'_>, values: &mut [f32], mut visit: impl FnMut(usize, &[f32])) -> Result<(), BackendError> {
        let Checked { arguments, cache, step, layer, .. } = &self.checked;
        let (layout, page_tokens) = (&cache.layout.planes[LATENTS], cache.layout.page_tokens);
        let table = step.table(*arguments, row.sequence)?;
        let count = row.line.map_or(row.position + 1, <[u32]>::len);
        for index in 0..count {
            let token = row.line.map_or(index, |line| line[index] as usize);
            let page = cache.known(*arguments, &table[token / page_tokens])?;
            // SAFETY: pages are written by nobody in this phase.
            let block = unsafe { HeadBlock::new(&cache.pages, layout, cache.place(page, (LATENTS, *layer), 0)) };
            block.load(token % page_tokens, values);
            visit(index, values);
        }
        Ok(())
    }

    fn attend(&self, row: Row<'_>, first_head: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let checked = &self.checked;
        let heads = HEADS.min(checked.heads - first_head);
        let seen = row.line.map_or(row.position + 1, <[u32]>::len);
        let (scores, values) = worker.scratch.floats(heads * seen + checked.latent + checked.rotary)?.split_at_mut(heads * seen);
        self.tokens(row, values, |index, values| {
            for head in 0..heads {
                // SAFETY: queries are written by nobody in this phase.
                let (latent, rotary) = unsafe { checked.query(row.row, first_head + head) };
                let (c, k) = values.split_at(checked.latent);
                scores[head * seen + index] = dot(latent, c) + dot(rotary, k);
            }
        })?;
        for head in 0..heads {
            softmax(&mut scores[head * seen..][..seen], checked.scale);
            // SAFETY: the outputs of these heads belong to the worker that took the item.
            unsafe { checked.output(row.row, first_head + head) }.fill(0.0);
        }
        self.tokens(row, values, |index, values| {
            for head in 0..heads {
                let weight = scores[head * seen + index];
                // SAFETY: as above.
                let out = unsafe { checked.output(row.row, first_head + head) };
                for (sum, value) in out.iter_mut().zip(values) {
                    *sum += weight * value;
                }
            }
        })
    }
}

impl Task for PlainLatent {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let checked = &self.checked;
        let Checked { arguments, cache, step, rows, .. } = checked;
        step.check(*arguments, *rows, cache.layout.page_tokens)?;
        let parts = checked.heads.div_ceil(HEADS);
        let items_of = |sequence: usize| step.segments()[sequence].rows as usize * parts;
        let total = (0..step.sequences).map(items_of).sum();
        let mut walk = Walk::new(items_of);
        while let Some(range) = worker.take(1, total) {
            for item in range {
                let (sequence, index) = walk.locate(item);
                let (index, first_head) = (index / parts, index % parts * HEADS);
                let segment = step.segments()[sequence];
                let (row, position) = (segment.first_row as usize + index, segment.start as usize + index);
                if step.flagged(sequence) {
                    for head in first_head..checked.heads.min(first_head + HEADS) {
                        // SAFETY: the outputs of these heads belong to the worker that took the item.
                        unsafe { checked.output(row, head) }.fill(0.0);
                    }
                    continue;
                }
                let lines = checked.selection.as_ref();
                // SAFETY: selections are written by nobody in this phase.
                let line = lines.map(|lines| unsafe { lines.line(*arguments, row, position) }).transpose()?;
                self.attend(Row { sequence, row, position, line }, first_head, worker)?;
            }
        }
        Ok(())
    }
}

/// Sum of products, in as many running sums as a compiler needs to vectorize it.
pub(in crate::ops) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    let (a, b) = (a.chunks(sums.len()), b.chunks(sums.len()));
    for (a, b) in a.zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}
