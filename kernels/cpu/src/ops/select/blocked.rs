//! Index scores with vectors: keys of a part are widened once for all heads of a row. Cuts the work into rows, and where rows
//! alone would leave workers idle, their contexts into chunks whose scores meet in shared scratch. Knows no formats.
//!
//! ```text
//! phase 0   row: scores of all tokens in the worker's scratch    -> line
//!           row x chunk: scores                                  -> shared scratch     only where rows are few
//! phase 1   row: choose among its scores                         -> line
//! ```
//!
//! A score is one row's sums over channels and heads in one order, so the choice does not depend on how the work was cut.

use std::ops::Range;

use millrace_ops::BackendError;

use super::{Checked, Row, top};
use crate::isa::Isa;
use crate::ops::attend::kernels::{self, HERE, Scores};
use crate::ops::step::{Preceding, Walk};
use crate::ops::tokens::{Found, TokenPlane};
use crate::simd::vector::Vector;
use crate::task::{Task, Worker, product};

/// Tokens of a part, whose widened keys stay in L2.
const PART: usize = 64;
/// Floats from one head's products to the next: a power of two would put all heads into a few sets of the cache.
const STRIDE: usize = PART + 16;
/// Tokens of a chunk; whole parts.
const CHUNK: usize = 1024;
/// Fewer rows than this per worker, and contexts are cut.
const ROWS_PER_WORKER: usize = 2;
/// Most shared scratch for scores; where more would be needed, contexts are not cut.
const MAX_SHARED_BYTES: usize = 64 << 20;

pub(super) struct BlockedSelect {
    checked: Checked,
}

/// Floats of scores of so many tokens: whole parts.
fn score_floats(tokens: usize) -> usize {
    tokens.next_multiple_of(PART)
}

impl BlockedSelect {
    pub(super) fn new(checked: Checked) -> Self {
        Self { checked }
    }

    fn rows_of(&self, sequence: usize) -> usize {
        self.checked.step.segments()[sequence].rows as usize
    }

    /// Tokens up to a sequence's last row.
    fn context(&self, sequence: usize) -> usize {
        self.checked.step.segments()[sequence].start as usize + self.rows_of(sequence)
    }

    /// Shared scratch for scores of all rows of a sequence.
    fn floats_of(&self, sequence: usize) -> usize {
        self.rows_of(sequence) * score_floats(self.context(sequence))
    }

    fn chunks_of(&self, sequence: usize) -> usize {
        self.context(sequence).div_ceil(CHUNK)
    }

    /// Whether contexts are cut. Who computes a score changes nothing in the choice, so this may depend on anything.
    fn cuts(&self, worker: &Worker<'_>) -> bool {
        let sequences = 0..self.checked.step.sequences;
        let rows: usize = sequences.clone().map(|s| self.rows_of(s)).sum();
        let floats = sequences.map(|s| self.floats_of(s)).fold(0, usize::saturating_add);
        worker.workers > 1 && rows < ROWS_PER_WORKER * worker.workers && product(&[floats, 4]) <= worker.shared.bytes()
    }

    /// Scores of `tokens` of a row, which begin with a part, in whole parts.
    fn score(
        &self,
        row: Row,
        tokens: Range<usize>,
        scores: &mut [f32],
        (isa, block): (Isa, &mut [f32]),
        found: &mut Found,
    ) -> Result<(), BackendError> {
        let Checked { arguments, cache, step, plane, layer, heads, .. } = &self.checked;
        let keys = TokenPlane { arguments: *arguments, cache, plane: *plane, layer: *layer };
        let table = step.table(*arguments, row.sequence)?;
        // SAFETY: queries and weights are written by nobody in this phase.
        let (queries, weights) = unsafe { (self.checked.queries(row.row), self.checked.head_weights(row.row)) };
        let (block, products) = block.split_at_mut(PART * self.checked.width());
        let (first, end) = (tokens.start, tokens.end);
        for (start, scores) in tokens.step_by(PART).zip(scores[..score_floats(end - first)].chunks_exact_mut(PART)) {
            keys.find(table, start..end.min(start + PART), found)?;
            let part = Part { found, queries, weights, block, products: &mut products[..heads * STRIDE], scores };
            // SAFETY: the instruction set is the machine's (checked when the backend was made), and pages are written by nobody in
            // this phase.
            unsafe { dispatch(isa, part) }
        }
        Ok(())
    }

    /// Floats of a worker's scratch beside scores.
    fn block_floats(&self) -> usize {
        product(&[PART, self.checked.width()]).saturating_add(product(&[self.checked.heads, STRIDE]))
    }

    /// Scores and choices of whole rows.
    fn whole_rows(&self, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let checked = &self.checked;
        let total = (0..checked.step.sequences).map(|s| self.rows_of(s)).sum();
        let (mut walk, mut found) = (Walk::new(|s| self.rows_of(s)), Found::default());
        let isa = worker.isa;
        while let Some(range) = worker.take(1, total) {
            for item in range {
                let (sequence, index) = walk.locate(item);
                let row = checked.row(sequence, index);
                // SAFETY: this row belongs to the worker that took it.
                if !unsafe { checked.needs_scores(row) } {
                    continue;
                }
                let seen = row.position + 1;
                let scratch = worker.scratch.floats(score_floats(seen).saturating_add(self.block_floats()))?;
                let (scores, block) = scratch.split_at_mut(score_floats(seen));
                self.score(row, 0..seen, scores, (isa, block), &mut found)?;
                // SAFETY: as above.
                top::choose(&scores[..seen], unsafe { checked.lines.line_mut(row.row, row.position) });
            }
        }
        Ok(())
    }

    /// Where a row's scores lie in shared scratch, given the floats of the sequences before its own.
    fn shared_scores(&self, row: Row, index: usize, before: usize) -> usize {
        before + index * score_floats(self.context(row.sequence))
    }

    /// Scores of chunks, into shared scratch.
    fn first_phase(&self, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let checked = &self.checked;
        let items_of = |s: usize| self.rows_of(s) * self.chunks_of(s);
        let total = (0..checked.step.sequences).map(items_of).sum();
        let (mut walk, mut found, mut before) = (Walk::new(items_of), Found::default(), Preceding::default());
        let isa = worker.isa;
        while let Some(range) = worker.take(1, total) {
            for item in range {
                let (sequence, item) = walk.locate(item);
                let (index, chunk) = (item / self.chunks_of(sequence), item % self.chunks_of(sequence));
                let row = checked.row(sequence, index);
                let tokens = chunk * CHUNK..(row.position + 1).min((chunk + 1) * CHUNK);
                if !checked.is_scored(row) || tokens.is_empty() {
                    continue;
                }
                let start = self.shared_scores(row, index, before.sum(sequence, |s| self.floats_of(s))) + tokens.start;
                // SAFETY: this chunk of this row belongs to the worker that took it.
                let scores = unsafe { worker.shared.items_mut(start, score_floats(tokens.len())) };
                let block = worker.scratch.floats(self.block_floats())?;
                self.score(row, tokens, scores, (isa, block), &mut found)?;
            }
        }
        Ok(())
    }

    /// Choices among the scores in shared scratch.
    fn second_phase(&self, worker: &mut Worker<'_>) {
        let checked = &self.checked;
        let total = (0..checked.step.sequences).map(|s| self.rows_of(s)).sum();
        let (mut walk, mut before) = (Walk::new(|s| self.rows_of(s)), Preceding::default());
        while let Some(range) = worker.take(1, total) {
            for item in range {
                let (sequence, index) = walk.locate(item);
                let row = checked.row(sequence, index);
                // SAFETY: this row belongs to the worker that took it.
                if !unsafe { checked.needs_scores(row) } {
                    continue;
                }
                let start = self.shared_scores(row, index, before.sum(sequence, |s| self.floats_of(s)));
                // SAFETY: scores were written in the first phase and are not written now.
                let scores = unsafe { worker.shared.items::<f32>(start, row.position + 1) };
                // SAFETY: as above.
                top::choose(scores, unsafe { checked.lines.line_mut(row.row, row.position) });
            }
        }
    }
}

impl Task for BlockedSelect {
    fn phases(&self) -> usize {
        2
    }

    fn shared_bytes(&self, workers: usize) -> usize {
        let Checked { step, cache, rows, .. } = &self.checked;
        if workers == 1 || *rows >= ROWS_PER_WORKER * workers {
            return 0;
        }
        let tokens = step.table_tokens(cache.layout.page_tokens).saturating_add(PART);
        product(&[*rows, tokens, 4]).min(MAX_SHARED_BYTES)
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        self.checked.check()?;
        match (phase, self.cuts(worker)) {
            (0, false) => self.whole_rows(worker)?,
            (0, true) => self.first_phase(worker)?,
            (_, true) => self.second_phase(worker),
            (_, false) => {}
        }
        Ok(())
    }
}

/// Some tokens of a row.
struct Part<'a> {
    found: &'a Found,
    /// `[heads, width]`
    queries: &'a [f32],
    weights: &'a [f32],
    /// `[width, PART]`
    block: &'a mut [f32],
    /// `[heads, STRIDE]`
    products: &'a mut [f32],
    /// `[PART]`; what lies behind the found tokens has no meaning.
    scores: &'a mut [f32],
}

/// # Safety
/// The machine has `isa`; found tokens lie in pages that nobody writes.
unsafe fn dispatch(isa: Isa, part: Part<'_>) {
    // SAFETY: this function's condition.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Fp16 | Isa::Amx => with_avx512(part),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => with_avx2(part),
            // `lower` gives other sets the plain form.
            _ => unreachable!("blocked scores without vectors"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn with_avx512(part: Part<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's condition.
    unsafe { with::<crate::simd::avx512::Avx512>(part) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn with_avx2(part: Part<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's condition.
    unsafe { with::<crate::simd::avx2::Avx2>(part) }
}

/// # Safety
/// [`Vector`]'s condition; else as [`dispatch`].
#[inline(always)]
unsafe fn with<V: Vector>(part: Part<'_>) {
    let Part { found, queries, weights, block, products, scores } = part;
    let (heads, tokens) = (weights.len(), found.count());
    // SAFETY: this function's condition; a part's tokens fit into whole vectors of `PART`.
    unsafe {
        found.by_channel::<V>(block.as_mut_ptr(), PART);
        kernels::scores::<V, f32>(Scores {
            keys: block.as_ptr(),
            page_tokens: PART,
            head_dim: queries.len() / heads,
            queries: queries.as_ptr(),
            scores: products.as_mut_ptr(),
            stride: STRIDE,
            rows: heads,
            tokens,
            ahead: HERE,
        });
        let zero = V::splat(0.0);
        let mut at = 0;
        while at < tokens {
            let mut sum = zero;
            let mut head = 0;
            while head < heads {
                // A product that is NaN stays.
                let product = zero.max(V::load(products.as_ptr().add(head * STRIDE + at)));
                sum = product.fma(V::splat(weights[head]), sum);
                head += 1;
            }
            sum.store(scores.as_mut_ptr().add(at));
            at += V::LANES;
        }
    }
}
