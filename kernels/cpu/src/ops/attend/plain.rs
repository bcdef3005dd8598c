//! Attention in plain loops: all scores of a row, their exact softmax, then the weighted values. The reference, and the form for
//! machines without vectors. Slots behind a row's position are never read into a result.

use half::bf16;
use millrace_ops::BackendError;

use super::Checked;
use crate::kv_block::{E4M3_VALUES, Elements, HeadBlock};
use crate::ops::step::{KEYS, VALUES, Walk};
use crate::task::{Task, Worker};

/// Rows that share a page's widened keys and values.
const TILE_ROWS: usize = 8;

pub(super) struct PlainAttend {
    checked: Checked,
}

/// Rows of one sequence that a work item covers.
#[derive(Clone, Copy)]
struct Tile {
    sequence: usize,
    first_row: usize,
    rows: usize,
    /// Position of the first row.
    position: usize,
}

/// Scratch of a work item.
struct Work<'a> {
    /// `[TILE_ROWS, group, context]`: scores, then weights.
    scores: &'a mut [f32],
    /// `[head_dim, page_tokens]` or `[page_tokens, head_dim]`: a page's keys or values.
    block: &'a mut [f32],
    context: usize,
}

impl PlainAttend {
    pub(super) fn new(checked: Checked) -> Self {
        Self { checked }
    }

    fn tiles_of(&self, sequence: usize) -> usize {
        (self.checked.step.segments()[sequence].rows as usize).div_ceil(TILE_ROWS)
    }

    fn tile(&self, sequence: usize, index: usize) -> Tile {
        let segment = self.checked.step.segments()[sequence];
        let skip = index * TILE_ROWS;
        let rows = TILE_ROWS.min(segment.rows as usize - skip);
        Tile { sequence, first_row: segment.first_row as usize + skip, rows, position: segment.start as usize + skip }
    }

    /// Calls `visit(first token, visible tokens, block)` for each page of a plane that the tile's last row can see.
    fn pages(
        &self,
        tile: Tile,
        (plane, kv_head): (usize, usize),
        mut visit: impl FnMut(usize, usize, &HeadBlock<'_>),
    ) -> Result<(), BackendError> {
        let Checked { arguments, cache, step, layer, .. } = &self.checked;
        let (layout, tokens) = (&cache.layout.planes[plane], cache.layout.page_tokens);
        let context = tile.position + tile.rows;
        for (i, entry) in step.table(*arguments, tile.sequence)?.iter().take(context.div_ceil(tokens)).enumerate() {
            let place = cache.place(cache.known(*arguments, entry)?, (plane, *layer), kv_head);
            // SAFETY: pages are written by nobody in this phase.
            let block = unsafe { HeadBlock::new(&cache.pages, layout, place) };
            visit(i * tokens, tokens.min(context - i * tokens), &block);
        }
        Ok(())
    }

    fn attend(&self, tile: Tile, kv_head: usize, work: &mut Work<'_>) -> Result<(), BackendError> {
        let (checked, context) = (&self.checked, work.context);
        let (head_dim, tokens, group) = (checked.head_dim(), checked.cache.layout.page_tokens, checked.group);
        self.pages(tile, (KEYS, kv_head), |first, visible, block| {
            for channel in 0..head_dim {
                widen(block, (channel * tokens, channel * tokens), visible, work.block);
            }
            scale_keys(block, visible, tokens, work.block);
            for row in 0..tile.rows {
                let seen = visible.min((tile.position + row + 1).saturating_sub(first));
                // SAFETY: `x` is written by nobody in this phase.
                let queries = unsafe { checked.queries(tile.first_row + row, kv_head) };
                for (g, query) in queries.chunks_exact(head_dim).enumerate() {
                    let scores = &mut work.scores[(row * group + g) * context + first..][..seen];
                    dot_keys(query, work.block, tokens, scores);
                }
            }
        })?;
        for row in 0..tile.rows {
            for g in 0..group {
                let seen = tile.position + row + 1;
                softmax(&mut work.scores[(row * group + g) * context..][..seen], checked.scale);
            }
            // SAFETY: these outputs belong to the worker that took the item.
            unsafe { checked.outputs(tile.first_row + row, kv_head) }.fill(0.0);
        }
        self.pages(tile, (VALUES, kv_head), |first, visible, block| {
            for token in 0..visible {
                widen(block, (token * head_dim, token * head_dim), head_dim, work.block);
            }
            scale_values(block, visible, head_dim, work.block);
            for row in 0..tile.rows {
                let seen = visible.min((tile.position + row + 1).saturating_sub(first));
                // SAFETY: as above.
                let outputs = unsafe { checked.outputs(tile.first_row + row, kv_head) };
                for (g, out) in outputs.chunks_exact_mut(head_dim).enumerate() {
                    let weights = &work.scores[(row * group + g) * context + first..][..seen];
                    add_values(weights, work.block, out);
                }
            }
        })
    }
}

impl Task for PlainAttend {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let checked = &self.checked;
        let Checked { arguments, cache, step, rows, .. } = checked;
        step.check(*arguments, *rows, cache.layout.page_tokens)?;
        let (kv_heads, head_dim) = (checked.kv_heads(), checked.head_dim());
        let total = (0..step.sequences).map(|sequence| self.tiles_of(sequence)).sum::<usize>() * kv_heads;
        let mut walk = Walk::new(|sequence| self.tiles_of(sequence));
        while let Some(range) = worker.take(1, total) {
            for item in range {
                let (sequence, index) = walk.locate(item / kv_heads);
                let tile = self.tile(sequence, index);
                if step.flagged(sequence) {
                    for row in 0..tile.rows {
                        // SAFETY: these outputs belong to the worker that took the item.
                        unsafe { checked.outputs(tile.first_row + row, item % kv_heads) }.fill(0.0);
                    }
                    continue;
                }
                let context = tile.position + tile.rows;
                let (scores, block) = (TILE_ROWS * checked.group * context, head_dim * cache.layout.page_tokens);
                let (scores, block) = worker.scratch.floats(scores + block)?.split_at_mut(scores);
                self.attend(tile, item % kv_heads, &mut Work { scores, block, context })?;
            }
        }
        Ok(())
    }
}

/// Unscaled values of `count` elements from `from` into `out[to..]`.
fn widen(block: &HeadBlock<'_>, (from, to): (usize, usize), count: usize, out: &mut [f32]) {
    let out = &mut out[to..to + count];
    match block.elements {
        Elements::F32(values) => out.copy_from_slice(&values[from..from + count]),
        Elements::Bf16(bits) => {
            for (value, bits) in out.iter_mut().zip(&bits[from..]) {
                *value = bf16::from_bits(*bits).to_f32();
            }
        }
        Elements::Fp8 { codes, .. } | Elements::Fp8Latent { codes, .. } => {
            let table = &*E4M3_VALUES;
            for (value, code) in out.iter_mut().zip(&codes[from..]) {
                *value = table[*code as usize];
            }
        }
    }
}

fn scale_keys(block: &HeadBlock<'_>, visible: usize, tokens: usize, keys: &mut [f32]) {
    let Elements::Fp8 { scales, .. } = block.elements else { return };
    for channel in keys.chunks_exact_mut(tokens) {
        for (key, scale) in channel[..visible].iter_mut().zip(scales) {
            *key *= bf16::from_bits(*scale).to_f32();
        }
    }
}

fn scale_values(block: &HeadBlock<'_>, visible: usize, head_dim: usize, values: &mut [f32]) {
    let Elements::Fp8 { scales, .. } = block.elements else { return };
    for (token, scale) in values.chunks_exact_mut(head_dim).take(visible).zip(scales) {
        let scale = bf16::from_bits(*scale).to_f32();
        for value in token {
            *value *= scale;
        }
    }
}

/// `scores[t] = query . keys[.., t]`
fn dot_keys(query: &[f32], keys: &[f32], tokens: usize, scores: &mut [f32]) {
    scores.fill(0.0);
    for (q, channel) in query.iter().zip(keys.chunks_exact(tokens)) {
        for (score, key) in scores.iter_mut().zip(channel) {
            *score += q * key;
        }
    }
}

/// `out += sum over t of weights[t] * values[t]`
fn add_values(weights: &[f32], values: &[f32], out: &mut [f32]) {
    for (weight, value) in weights.iter().zip(values.chunks_exact(out.len())) {
        for (sum, v) in out.iter_mut().zip(value) {
            *sum += weight * v;
        }
    }
}

/// Scores to weights: `exp(scale * (s - max))`, divided by their sum.
pub(in crate::ops) fn softmax(scores: &mut [f32], scale: f32) {
    for score in scores.iter_mut() {
        *score *= scale;
    }
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
        sum += f64::from(*score);
    }
    #[expect(clippy::cast_possible_truncation, reason = "a sum of at most 2^32 values of at most 1")]
    let inverse = (1.0 / sum) as f32;
    for score in scores.iter_mut() {
        *score *= inverse;
    }
}
