//! Blocked attention over latents as a task: cuts the work into tiles, and where tiles alone would leave workers idle, the
//! context of single rows into spans and their heads into groups. Knows no vectors; `tile` has the arithmetic.
//!
//! ```text
//! phase 0   tile:  rows of a sequence x heads, all spans         -> output
//!           span:  one decode row x heads x span                 -> shared scratch     only where rows are few
//! phase 1   decode row x heads: merge its spans in order         -> output
//! ```

use std::ops::Range;

use millrace_ops::BackendError;

use super::tile::{Call, PART, Target, Tile, Work, dispatch};
use super::{Checked, LATENTS};
use crate::isa::Isa;
use crate::ops::step::{Preceding, Walk};
use crate::ops::tokens::{Found, TokenPlane};
use crate::task::{Task, Worker, product};

/// Queries of a tile: enough to make widening a token cheap, few enough for their sums to stay in L2.
const TILE_QUERIES: usize = 128;
/// Fewer items than this per worker, and decode rows are cut.
const ITEMS_PER_WORKER: usize = 2;
/// Heads of a group where rows are cut into groups: fewer would make widening a token dear.
const GROUP_HEADS: usize = 16;
/// A context has at most so many spans, and a span at least so many parts.
const MOST_SPANS: usize = 32;
const LEAST_SPAN_PARTS: usize = 2;
/// Most shared scratch for spans; where more would be needed, contexts are not cut.
const MAX_SHARED_BYTES: usize = 64 << 20;

/// Tokens of each span of a context of `tokens`. Depends on nothing else, as the result depends on it. It changes after 4096
/// tokens and after each doubling of that, where a tile ends.
fn span_tokens(tokens: usize) -> usize {
    tokens.div_ceil(PART).div_ceil(MOST_SPANS).next_power_of_two().max(LEAST_SPAN_PARTS) * PART
}

pub(super) struct BlockedLatent {
    checked: Checked,
    lanes: usize,
}

/// How a step is divided. Who computes what changes nothing in the result, so this may depend on anything.
#[derive(Clone, Copy)]
struct Division {
    /// Whether decode rows are cut into spans.
    spans: bool,
    /// Heads of each group; the last may have fewer.
    heads: usize,
    groups: usize,
}

/// What a worker does with an item.
#[derive(Clone)]
struct Item {
    sequence: usize,
    heads: Range<usize>,
    first_row: usize,
    rows: usize,
    position: usize,
    /// The only span to compute; `None`: all, up to the output.
    span: Option<usize>,
}

impl BlockedLatent {
    /// For vectors of `lanes`.
    pub(super) fn new(checked: Checked, lanes: usize) -> Self {
        Self { checked, lanes }
    }

    /// A power of two, so that tiles end where spans change. Rows with selections have nothing in common.
    fn tile_rows(&self) -> usize {
        let rows = if self.checked.selection.is_some() { 1 } else { (TILE_QUERIES / self.checked.heads).max(1) };
        1 << rows.ilog2()
    }

    /// Tiles of a sequence: its rows, cut at positions that are multiples of a tile's.
    fn tiles_of(&self, sequence: usize) -> usize {
        let segment = self.checked.step.segments()[sequence];
        let (start, rows, tile) = (segment.start as usize, segment.rows as usize, self.tile_rows());
        if rows == 0 { 0 } else { (start + rows - 1) / tile - start / tile + 1 }
    }

    fn is_decode(&self, sequence: usize) -> bool {
        self.checked.step.segments()[sequence].rows == 1
    }

    /// Tokens that a row at `position` sees.
    fn seen(&self, position: usize) -> usize {
        self.checked.selection.as_ref().map_or(position + 1, |lines| lines.count(position))
    }

    /// Spans of a decode row.
    fn spans_of(&self, sequence: usize) -> usize {
        let seen = self.seen(self.checked.step.segments()[sequence].start as usize);
        seen.div_ceil(span_tokens(seen))
    }

    /// Floats of one span's result: sums of all heads, then softmax.
    fn span_floats(&self) -> usize {
        product(&[self.checked.heads, self.padded() + 2]).next_multiple_of(16)
    }

    fn padded(&self) -> usize {
        self.checked.latent.next_multiple_of(self.lanes)
    }

    fn division(&self, worker: &Worker<'_>) -> Division {
        let sequences = 0..self.checked.step.sequences;
        let (heads, wanted) = (self.checked.heads, ITEMS_PER_WORKER * worker.workers);
        let tiles: usize = sequences.clone().map(|s| self.tiles_of(s)).sum();
        if worker.workers == 1 || tiles >= wanted {
            return Division { spans: false, heads, groups: 1 };
        }
        let decode = sequences.clone().filter(|s| self.is_decode(*s));
        let bytes = product(&[decode.map(|s| self.spans_of(s)).sum(), self.span_floats(), 4]);
        let spans = bytes <= worker.shared.bytes();
        let items: usize = sequences.map(|s| self.parts_of(s, spans)).sum();
        let groups = wanted.div_ceil(items.max(1)).min(heads / GROUP_HEADS).max(1);
        let heads = heads.div_ceil(groups).next_multiple_of(8).min(heads);
        Division { spans, heads, groups: self.checked.heads.div_ceil(heads) }
    }

    /// Items of a sequence and one group of heads.
    fn parts_of(&self, sequence: usize, spans: bool) -> usize {
        if spans && self.is_decode(sequence) { self.spans_of(sequence) } else { self.tiles_of(sequence) }
    }

    fn item(&self, sequence: usize, index: usize, division: Division) -> Item {
        let segment = self.checked.step.segments()[sequence];
        let (group, index) = (index % division.groups, index / division.groups);
        let heads = group * division.heads..self.checked.heads.min((group + 1) * division.heads);
        let (first_row, position) = (segment.first_row as usize, segment.start as usize);
        if division.spans && self.is_decode(sequence) {
            return Item { sequence, heads, first_row, rows: 1, position, span: Some(index) };
        }
        // The last rows have the longest context: they go first, so that no worker is left with a long one at the end.
        let tile = position / self.tile_rows() + self.tiles_of(sequence) - 1 - index;
        let begin = position.max(tile * self.tile_rows());
        let end = (position + segment.rows as usize).min((tile + 1) * self.tile_rows());
        Item { sequence, heads, first_row: first_row + begin - position, rows: end - begin, position: begin, span: None }
    }

    fn tile(&self, item: &Item) -> Tile {
        let Checked { latent, rotary, scale, .. } = self.checked;
        let (width, padded) = (latent + rotary, self.padded());
        Tile { heads: item.heads.len(), rows: item.rows, width, latent, padded, seen: self.seen(item.position), scale }
    }

    /// Computes the spans of an item into `work`.
    fn attend(&self, item: &Item, tile: &Tile, work: &mut Work<'_>, tokens: &mut Tokens<'_>) -> Result<(), BackendError> {
        let Checked { arguments, cache, step, layer, selection, .. } = &self.checked;
        let Tokens { isa, found } = tokens;
        let plane = TokenPlane { arguments: *arguments, cache, plane: LATENTS, layer: *layer };
        let table = step.table(*arguments, item.sequence)?;
        let line = match selection {
            None => None,
            // SAFETY: selections are written by nobody in this phase.
            Some(lines) => Some(unsafe { lines.line(*arguments, item.first_row, item.position)? }),
        };
        let mut call = |call: Call<'_>| {
            // SAFETY: the instruction set is the machine's (checked when the backend was made), pages are written by nobody in
            // this phase, and `work` was made for the tile.
            unsafe { dispatch(*isa, tile, call, work) }
        };
        let (context, length) = (tile.context(), span_tokens(tile.context()));
        let spans = item.span.map_or(0..context.div_ceil(length), |span| span..span + 1);
        let first = spans.start;
        for span in spans {
            let target = if span == first { Target::Own } else { Target::Aside };
            let (begin, end) = (span * length, context.min((span + 1) * length));
            call(Call::Begin { target, start: begin });
            for start in (begin..end).step_by(PART) {
                let part = start..end.min(start + PART);
                match line {
                    None => plane.find(table, part, found)?,
                    Some(line) => plane.find(table, line[part].iter().map(|token| *token as usize), found)?,
                }
                call(Call::Part { found, target, start });
            }
            if target == Target::Aside {
                call(Call::Merge { start: begin });
            }
        }
        Ok(())
    }

    fn run_item(&self, item: &Item, slot: usize, worker: &mut Worker<'_>, found: &mut Found) -> Result<(), BackendError> {
        let checked = &self.checked;
        let tile = self.tile(item);
        let isa = worker.isa;
        let mut work = Work::new(worker.scratch.floats(Work::floats(&tile))?, &tile);
        let mut to = work.queries.chunks_exact_mut(tile.width);
        for (row, head) in (0..item.rows).flat_map(|row| item.heads.clone().map(move |head| (row, head))) {
            let Some(to) = to.next() else { break };
            // SAFETY: queries are written by nobody in this phase.
            let (latent, rotary) = unsafe { checked.query(item.first_row + row, head) };
            to[..tile.latent].copy_from_slice(latent);
            to[tile.latent..].copy_from_slice(rotary);
        }
        self.attend(item, &tile, &mut work, &mut Tokens { isa, found })?;
        if item.span.is_some() {
            let [latents, softmax] = self.stored(slot, &item.heads);
            // SAFETY: these heads of this slot belong to the worker that took the item.
            let (latents, softmax) = unsafe {
                (worker.shared.items_mut(latents.start, latents.len()), worker.shared.items_mut(softmax.start, softmax.len()))
            };
            latents.copy_from_slice(&work.own.latents[..tile.heads * tile.padded]);
            softmax.copy_from_slice(&work.own.softmax[..tile.heads * 2]);
            return Ok(());
        }
        self.finish(item, &tile, isa, &mut work);
        Ok(())
    }

    /// Floats of shared scratch that hold some heads' sums, and their softmax.
    fn stored(&self, slot: usize, heads: &Range<usize>) -> [Range<usize>; 2] {
        let (start, padded) = (slot * self.span_floats(), self.padded());
        let softmax = start + self.checked.heads * padded;
        [start + heads.start * padded..start + heads.end * padded, softmax + heads.start * 2..softmax + heads.end * 2]
    }

    /// Writes the outputs of an item.
    fn finish(&self, item: &Item, tile: &Tile, isa: Isa, work: &mut Work<'_>) {
        // SAFETY: the instruction set is the machine's, and `work` was made for the tile.
        unsafe { dispatch(isa, tile, Call::Finish, work) };
        let mut from = work.own.latents.chunks_exact(tile.padded);
        for (row, head) in (0..item.rows).flat_map(|row| item.heads.clone().map(move |head| (row, head))) {
            let Some(from) = from.next() else { break };
            // SAFETY: these outputs belong to the worker that took the item.
            unsafe { self.checked.output(item.first_row + row, head) }.copy_from_slice(&from[..tile.latent]);
        }
    }

    /// Merges the spans of some heads of a decode row, which begin at `slot`.
    fn combine(&self, item: &Item, slot: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let tile = self.tile(item);
        let (isa, shared) = (worker.isa, worker.shared);
        let mut work = Work::new(worker.scratch.floats(Work::floats(&tile))?, &tile);
        for span in 0..self.spans_of(item.sequence) {
            let [latents, softmax] = self.stored(slot + span, &item.heads);
            // SAFETY: spans were written in the first phase and are not written now.
            let (latents, softmax) =
                unsafe { (shared.items::<f32>(latents.start, latents.len()), shared.items::<f32>(softmax.start, softmax.len())) };
            if span == 0 {
                work.own.latents[..latents.len()].copy_from_slice(latents);
                work.own.softmax[..softmax.len()].copy_from_slice(softmax);
                continue;
            }
            // SAFETY: the instruction set is the machine's, and `work` was made for the tile.
            unsafe { dispatch(isa, &tile, Call::MergeStored { latents, softmax }, &mut work) };
        }
        self.finish(item, &tile, isa, &mut work);
        Ok(())
    }

    fn first_phase(&self, worker: &mut Worker<'_>, division: Division) -> Result<(), BackendError> {
        let step = &self.checked.step;
        let (mut found, mut slots) = (Found::default(), Preceding::default());
        let items_of = |sequence| self.parts_of(sequence, division.spans) * division.groups;
        let total = (0..step.sequences).map(items_of).sum();
        let mut walk = Walk::new(items_of);
        while let Some(range) = worker.take(1, total) {
            for item in range {
                let (sequence, index) = walk.locate(item);
                let item = self.item(sequence, index, division);
                let span = item.span.unwrap_or(0);
                if !step.flagged(sequence) {
                    let before = slots.sum(sequence, |s| if self.is_decode(s) { self.spans_of(s) } else { 0 });
                    self.run_item(&item, before + span, worker, &mut found)?;
                } else if span == 0 {
                    for (row, head) in (0..item.rows).flat_map(|row| item.heads.clone().map(move |head| (row, head))) {
                        // SAFETY: these outputs belong to the worker that took the item.
                        unsafe { self.checked.output(item.first_row + row, head) }.fill(0.0);
                    }
                }
            }
        }
        Ok(())
    }

    fn second_phase(&self, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let step = &self.checked.step;
        let groups = self.checked.heads.div_ceil(GROUP_HEADS);
        let division = Division { spans: true, heads: GROUP_HEADS, groups };
        let items_of = |sequence| if self.is_decode(sequence) { groups } else { 0 };
        let total = (0..step.sequences).map(items_of).sum();
        let (mut walk, mut slots) = (Walk::new(items_of), Preceding::default());
        while let Some(range) = worker.take(1, total) {
            for item in range {
                let (sequence, group) = walk.locate(item);
                if !step.flagged(sequence) {
                    let slot = slots.sum(sequence, |s| if self.is_decode(s) { self.spans_of(s) } else { 0 });
                    self.combine(&self.item(sequence, group, division), slot, worker)?;
                }
            }
        }
        Ok(())
    }
}

/// What finding and widening tokens takes.
struct Tokens<'a> {
    isa: Isa,
    found: &'a mut Found,
}

impl Task for BlockedLatent {
    fn phases(&self) -> usize {
        2
    }

    fn shared_bytes(&self, workers: usize) -> usize {
        let step = &self.checked.step;
        if workers == 1 || step.sequences >= ITEMS_PER_WORKER * workers {
            return 0;
        }
        let spans = step.table_tokens(self.checked.cache.layout.page_tokens).div_ceil(LEAST_SPAN_PARTS * PART).min(MOST_SPANS);
        product(&[step.sequences, spans, self.span_floats(), 4]).min(MAX_SHARED_BYTES)
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let Checked { arguments, cache, step, rows, .. } = &self.checked;
        step.check(*arguments, *rows, cache.layout.page_tokens)?;
        let division = self.division(worker);
        if phase == 0 {
            self.first_phase(worker, division)
        } else if division.spans {
            self.second_phase(worker)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_bounded_and_change_where_tiles_end() {
        let mut last = span_tokens(1);
        for tokens in 1..300_000 {
            let length = span_tokens(tokens);
            assert!(tokens.div_ceil(length) <= MOST_SPANS && length.is_multiple_of(PART), "{tokens} tokens");
            // The row that sees one token more begins a tile, whatever a tile's power of two.
            assert!(length == last || (tokens - 1).is_multiple_of(TILE_QUERIES), "{tokens} tokens");
            last = length;
        }
        assert_eq!([1, 512, 4096, 4097, 1 << 20].map(span_tokens), [128, 128, 128, 256, 32_768]);
    }
}
