//! Index scores in plain loops. The reference, and the form for machines without vectors. Tokens that a row does not see are
//! never read.

use millrace_ops::BackendError;

use super::{Checked, Row, top};
use crate::kv_block::HeadBlock;
use crate::ops::latent::dot;
use crate::ops::step::Walk;
use crate::task::{Task, Worker};

pub(super) struct PlainSelect {
    checked: Checked,
}

impl PlainSelect {
    pub(super) fn new(checked: Checked) -> Self {
        Self { checked }
    }

    /// Scores of the positions up to the row's own.
    fn scores(&self, row: Row, scores: &mut [f32], key: &mut [f32]) -> Result<(), BackendError> {
        let Checked { arguments, cache, step, plane, layer, .. } = &self.checked;
        let page_tokens = cache.layout.page_tokens;
        let table = step.table(*arguments, row.sequence)?;
        // SAFETY: queries and weights are written by nobody in this phase.
        let (queries, weights) = unsafe { (self.checked.queries(row.row), self.checked.head_weights(row.row)) };
        for (scores, entry) in scores.chunks_mut(page_tokens).zip(table) {
            let place = cache.place(cache.known(*arguments, entry)?, (*plane, *layer), 0);
            // SAFETY: pages are written by nobody in this phase.
            let block = unsafe { HeadBlock::new(&cache.pages, &cache.layout.planes[*plane], place) };
            for (slot, score) in scores.iter_mut().enumerate() {
                block.load(slot, key);
                *score = 0.0;
                for (query, weight) in queries.chunks_exact(key.len()).zip(weights) {
                    let product = dot(query, key);
                    // A product that is NaN is not below 0 and stays.
                    *score += weight * if product < 0.0 { 0.0 } else { product };
                }
            }
        }
        Ok(())
    }
}

impl Task for PlainSelect {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let checked = &self.checked;
        checked.check()?;
        let rows_of = |sequence: usize| checked.step.segments()[sequence].rows as usize;
        let total = (0..checked.step.sequences).map(rows_of).sum();
        let mut walk = Walk::new(rows_of);
        while let Some(range) = worker.take(1, total) {
            for item in range {
                let (sequence, index) = walk.locate(item);
                let row = checked.row(sequence, index);
                // SAFETY: this row belongs to the worker that took it.
                if !unsafe { checked.needs_scores(row) } {
                    continue;
                }
                let seen = row.position + 1;
                let (scores, key) = worker.scratch.floats(seen + checked.width())?.split_at_mut(seen);
                self.scores(row, scores, key)?;
                // SAFETY: as above.
                top::choose(scores, unsafe { checked.lines.line_mut(row.row, row.position) });
            }
        }
        Ok(())
    }
}
