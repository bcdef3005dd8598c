//! Blocked attention as a task: cuts the work into tiles, and the context of single rows into parts where tiles alone would
//! leave workers idle. Knows no vectors; `tile` has the arithmetic.
//!
//! ```text
//! phase 0   tile:  rows of a sequence x KV head, all parts        -> output
//!           part:  one decode row x KV head x part                -> shared scratch     only where rows are few
//! phase 1   decode row x KV head: merge its parts in order        -> output
//! ```

use std::ops::Range;

use millrace_ops::{BackendError, KvFormat};

use super::Checked;
#[cfg(target_arch = "x86_64")]
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::dots;
#[cfg(target_arch = "x86_64")]
use super::halves;
use super::kernels::HERE;
use super::softmax::{Row, Softmax};
use super::tile::{PART, PageBlocks, Products, Tile, attend, finish, merge_into};
use super::work::Work;
use crate::isa::Isa;
use crate::linear::{CpuCompute, StepRows};
use crate::ops::step::{KEYS, Preceding, VALUES, Walk};
use crate::pool::Compute;
use crate::simd::vector::Vector;
use crate::task::{Task, Worker, product};

/// Query rows of a tile, heads of a group included: enough to make widening a page cheap, few enough for scores to stay in L2.
const TILE_QUERIES: usize = 96;
/// Fewer items than this per worker, and decode rows are cut into parts.
const ITEMS_PER_WORKER: usize = 4;
/// Channels of BF16 that a tile holds.
const TILE_CHANNELS: usize = 32;
/// Channels, and tokens of a page, that dot products of FP8 pages take at once.
pub(super) const DOT_CHANNELS: usize = 64;
pub(super) const DOT_TOKENS: usize = 32;
/// Most shared scratch for parts; contexts beyond it are not cut.
const MAX_SHARED_BYTES: usize = 64 << 20;

pub(super) struct BlockedAttend {
    checked: Checked,
    products: Products,
}

/// What a worker does with an item.
#[derive(Clone, Copy)]
struct Item {
    sequence: usize,
    kv_head: usize,
    first_row: usize,
    rows: usize,
    position: usize,
    /// The only part to compute; `None`: all, up to the output.
    part: Option<usize>,
    run: HeadRun,
}

/// Where an item is among those of the same rows that one worker takes one after the other.
#[derive(Clone, Copy, Default)]
struct HeadRun {
    has_previous: bool,
    has_next: bool,
}

fn fits_dots(checked: &Checked) -> bool {
    checked.head_dim().is_multiple_of(DOT_CHANNELS) && checked.cache.layout.page_tokens.is_multiple_of(DOT_TOKENS)
}

impl BlockedAttend {
    /// Whether vectors of `lanes` fit the shape.
    pub(super) fn fits(checked: &Checked, lanes: usize) -> bool {
        let page_tokens = checked.cache.layout.page_tokens;
        checked.head_dim().is_multiple_of(lanes) && page_tokens.is_multiple_of(16) && PART.is_multiple_of(page_tokens)
    }

    pub(super) fn new(checked: Checked, compute: Compute) -> Self {
        let keys = &checked.cache.layout;
        // By what does not change from step to step, so that a row's result does not depend on the rows beside it.
        let many = compute.step_rows() == StepRows::Many;
        let products = match keys.format {
            // With one row a sequence, bringing keys and values into the form of tiles costs more than vectors need.
            KvFormat::Bf16 if many && compute.isa == Isa::Amx && checked.head_dim().is_multiple_of(TILE_CHANNELS) => {
                Products::Tiles
            }
            // With many rows a sequence, codes are widened once for all of them, and vectors are as fast.
            KvFormat::Fp8 if !many && compute.isa == Isa::Avx512Bf16 && fits_dots(&checked) => Products::Dots,
            KvFormat::Fp8 if !many && compute.isa.has_fp16() && compute.mode == CpuCompute::Fast && fits_dots(&checked) => {
                Products::Halves
            }
            _ => Products::Vectors,
        };
        Self { checked, products }
    }

    fn tile_rows(&self) -> usize {
        (TILE_QUERIES / self.checked.group).max(1)
    }

    fn tiles_of(&self, sequence: usize) -> usize {
        (self.checked.step.segments()[sequence].rows as usize).div_ceil(self.tile_rows())
    }

    fn is_decode(&self, sequence: usize) -> bool {
        self.checked.step.segments()[sequence].rows == 1
    }

    fn parts_of(&self, sequence: usize) -> usize {
        (self.checked.step.segments()[sequence].start as usize + 1).div_ceil(PART)
    }

    /// Parts that the longest table can have.
    fn most_parts(&self) -> usize {
        self.checked.step.table_tokens(self.checked.cache.layout.page_tokens).div_ceil(PART)
    }

    /// Floats of one part's result: sums, then softmax.
    fn part_floats(&self) -> usize {
        (self.checked.group * (self.checked.head_dim() + 2)).next_multiple_of(16)
    }

    /// Whether decode rows are cut. Who computes a part changes nothing in the result, so this may depend on anything.
    fn cuts(&self, worker: &Worker<'_>) -> bool {
        let sequences = 0..self.checked.step.sequences;
        let items = sequences.clone().map(|s| self.tiles_of(s)).sum::<usize>() * self.checked.kv_heads();
        let rows = sequences.filter(|s| self.is_decode(*s)).count() * self.checked.kv_heads();
        let bytes = product(&[rows, self.most_parts(), self.part_floats(), 4]);
        worker.workers > 1 && items < ITEMS_PER_WORKER * worker.workers && bytes <= worker.shared.bytes()
    }

    fn items_of(&self, sequence: usize, cut: bool) -> usize {
        let per_head = if cut && self.is_decode(sequence) { self.parts_of(sequence) } else { self.tiles_of(sequence) };
        per_head * self.checked.kv_heads()
    }

    fn item(&self, sequence: usize, index: usize, cut: bool) -> Item {
        let segment = self.checked.step.segments()[sequence];
        let (kv_head, index) = (index % self.checked.kv_heads(), index / self.checked.kv_heads());
        let (first_row, position) = (segment.first_row as usize, segment.start as usize);
        if cut && self.is_decode(sequence) {
            return Item { sequence, kv_head, first_row, rows: 1, position, part: Some(index), run: HeadRun::default() };
        }
        // The last rows have the longest context: they go first, so that no worker is left with a long one at the end.
        let skip = (self.tiles_of(sequence) - 1 - index) * self.tile_rows();
        let rows = self.tile_rows().min(segment.rows as usize - skip);
        let (first_row, position) = (first_row + skip, position + skip);
        Item { sequence, kv_head, first_row, rows, position, part: None, run: HeadRun::default() }
    }

    /// Addresses of the pages that hold the positions `tokens`, which begin with a page.
    fn pages(&self, item: &Item, tokens: Range<usize>, pages: &mut Vec<PageBlocks>) -> Result<(), BackendError> {
        let Checked { arguments, cache, step, layer, .. } = &self.checked;
        let page_tokens = cache.layout.page_tokens;
        // Pages lie within their buffer, and blocks and scales within a page, so the addresses below are valid.
        let base = cache.pages.address_of::<u8>(cache.page_count * cache.page_bytes).cast_const();
        let offsets = |plane: usize| {
            let (layout, block) = (&cache.layout.planes[plane], cache.layout.block_offset(plane, *layer));
            (block + item.kv_head * layout.head_bytes(), block + layout.scales_offset(item.kv_head))
        };
        let ((keys, key_scales), (values, value_scales)) = (offsets(KEYS), offsets(VALUES));
        pages.clear();
        let (first, last) = (tokens.start / page_tokens, tokens.end.div_ceil(page_tokens));
        for entry in &step.table(*arguments, item.sequence)?[first..last] {
            let page = base.wrapping_add(cache.known(*arguments, entry)? as usize * cache.page_bytes);
            pages.push(PageBlocks {
                keys: page.wrapping_add(keys),
                values: page.wrapping_add(values),
                key_scales: page.wrapping_add(key_scales).cast(),
                value_scales: page.wrapping_add(value_scales).cast(),
            });
        }
        Ok(())
    }

    fn run_item(
        &self,
        item: &Item,
        slot: usize,
        worker: &mut Worker<'_>,
        pages: &mut Vec<PageBlocks>,
    ) -> Result<(), BackendError> {
        let checked = &self.checked;
        let (head_dim, group) = (checked.head_dim(), checked.group);
        let page_tokens = checked.cache.layout.page_tokens;
        let context = item.position + item.rows;
        let tokens = item.part.map_or(0..context, |part| part * PART..context.min((part + 1) * PART));
        let first_token = tokens.start;
        self.pages(item, tokens, pages)?;
        let queries = item.rows * group;
        let mut work =
            Work::new(worker.scratch.floats(Work::floats(queries, head_dim, page_tokens))?, queries, head_dim, page_tokens);
        for (row, to) in work.queries.chunks_exact_mut(group * head_dim).take(item.rows).enumerate() {
            // SAFETY: `x` is written by nobody in this phase.
            to.copy_from_slice(unsafe { checked.queries(item.first_row + row, item.kv_head) });
        }
        let format: KvFormat = checked.cache.layout.format;
        let (rows, position, scale) = (item.rows, item.position, checked.scale);
        let products = self.products;
        let next_head = if item.run.has_next { checked.cache.layout.planes[KEYS].head_bytes() } else { HERE };
        let asked_for = item.run.has_previous;
        let tile = Tile {
            pages,
            first_token,
            format,
            page_tokens,
            head_dim,
            group,
            rows,
            position,
            scale,
            products,
            next_head,
            asked_for,
        };
        let parts = item.part.map_or(0..tile.parts(), |part| part..part + 1);
        // SAFETY: the instruction set is the machine's (checked when the backend was made); pages were resolved above.
        unsafe { dispatch(worker.isa, Call::Attend { tile: &tile, parts }, &mut work) };
        if item.part.is_some() {
            // SAFETY: this slot belongs to the worker that took the item.
            let to = unsafe { worker.shared.items_mut::<f32>(slot * self.part_floats(), group * (head_dim + 2)) };
            to[..group * head_dim].copy_from_slice(&work.sums[..group * head_dim]);
            to[group * head_dim..].copy_from_slice(&work.softmax[..group * 2]);
            return Ok(());
        }
        for row in 0..item.rows {
            // SAFETY: these outputs belong to the worker that took the item.
            let out = unsafe { checked.outputs(item.first_row + row, item.kv_head) };
            // SAFETY: as above for the instruction set.
            unsafe { dispatch(worker.isa, Call::Finish { first_query: row * group, out, head_dim }, &mut work) };
        }
        Ok(())
    }

    /// Merges the parts of one decode row and KV head.
    fn combine(&self, item: &Item, slot: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let checked = &self.checked;
        let (head_dim, group) = (checked.head_dim(), checked.group);
        let (floats, parts) = (self.part_floats(), self.parts_of(item.sequence));
        // SAFETY: these parts were written in the first phase and are not written now (the copies are this worker's own).
        let stored = unsafe { worker.shared.items::<f32>(slot * floats, parts * floats) };
        let page_tokens = checked.cache.layout.page_tokens;
        let mut work =
            Work::new(worker.scratch.floats(Work::floats(group, head_dim, page_tokens))?, group, head_dim, page_tokens);
        work.sums[..group * head_dim].copy_from_slice(&stored[..group * head_dim]);
        work.softmax.copy_from_slice(&stored[group * head_dim..][..group * 2]);
        for part in stored.chunks_exact(floats).skip(1) {
            // SAFETY: the instruction set is the machine's.
            unsafe { dispatch(worker.isa, Call::Merge { part, head_dim }, &mut work) };
        }
        // SAFETY: these outputs belong to the worker that took the item.
        let out = unsafe { checked.outputs(item.first_row, item.kv_head) };
        // SAFETY: the instruction set is the machine's.
        unsafe { dispatch(worker.isa, Call::Finish { first_query: 0, out, head_dim }, &mut work) };
        Ok(())
    }

    fn first_phase(&self, worker: &mut Worker<'_>, cut: bool) -> Result<(), BackendError> {
        let step = &self.checked.step;
        let mut pages = Vec::new();
        let mut rows_before = Preceding::default();
        let total = (0..step.sequences).map(|sequence| self.items_of(sequence, cut)).sum();
        let mut walk = Walk::new(|sequence| self.items_of(sequence, cut));
        // All heads of the same rows, where there is enough for everybody: what one head's blocks lie beside are the next one's.
        let heads = self.checked.kv_heads();
        let run = if total >= ITEMS_PER_WORKER * worker.workers * heads { heads } else { 1 };
        while let Some(range) = worker.take(run, total) {
            for number in range.clone() {
                let (sequence, index) = walk.locate(number);
                let run = HeadRun { has_previous: number > range.start, has_next: number + 1 < range.end };
                let item = Item { run, ..self.item(sequence, index, cut) };
                if step.flagged(sequence) {
                    for row in 0..if item.part.unwrap_or(0) == 0 { item.rows } else { 0 } {
                        // SAFETY: these outputs belong to the worker that took the item.
                        unsafe { self.checked.outputs(item.first_row + row, item.kv_head) }.fill(0.0);
                    }
                    continue;
                }
                let decode_row = rows_before.sum(sequence, |s| usize::from(cut && self.is_decode(s)));
                let slot = (decode_row * self.checked.kv_heads() + item.kv_head) * self.most_parts() + item.part.unwrap_or(0);
                self.run_item(&item, slot, worker, &mut pages)?;
            }
        }
        Ok(())
    }

    fn second_phase(&self, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let (step, kv_heads) = (&self.checked.step, self.checked.kv_heads());
        let items_of = |sequence| if self.is_decode(sequence) { kv_heads } else { 0 };
        let total = (0..step.sequences).map(items_of).sum();
        let mut walk = Walk::new(items_of);
        while let Some(range) = worker.take(1, total) {
            for index in range {
                let (sequence, kv_head) = walk.locate(index);
                if !step.flagged(sequence) {
                    let item = Item { part: None, kv_head, ..self.item(sequence, 0, true) };
                    self.combine(&item, index * self.most_parts(), worker)?;
                }
            }
        }
        Ok(())
    }
}

impl Task for BlockedAttend {
    fn phases(&self) -> usize {
        2
    }

    fn shared_bytes(&self, workers: usize) -> usize {
        let rows = (self.checked.step.sequences * self.checked.kv_heads()).min(ITEMS_PER_WORKER * workers);
        let bytes = product(&[rows, self.most_parts(), self.part_floats(), 4]);
        if workers > 1 && bytes <= MAX_SHARED_BYTES { bytes } else { 0 }
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let Checked { arguments, cache, step, rows, .. } = &self.checked;
        step.check(*arguments, *rows, cache.layout.page_tokens)?;
        let cut = self.cuts(worker);
        if phase == 0 {
            self.first_phase(worker, cut)
        } else if cut {
            self.second_phase(worker)
        } else {
            Ok(())
        }
    }
}

/// What is to be computed with vectors.
enum Call<'a> {
    Attend {
        tile: &'a Tile<'a>,
        parts: Range<usize>,
    },
    /// Adds a later part, as stored in shared scratch, to the sums.
    Merge {
        part: &'a [f32],
        head_dim: usize,
    },
    /// Outputs of the queries from `first_query` on.
    Finish {
        first_query: usize,
        out: &'a mut [f32],
        head_dim: usize,
    },
}

/// # Safety
/// The machine has `isa`; tiles hold valid addresses.
unsafe fn dispatch(isa: Isa, call: Call<'_>, work: &mut Work<'_>) {
    // SAFETY: this function's condition.
    unsafe {
        match (isa, call) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, Call::Attend { tile, parts }) if tile.products == Products::Tiles => amx::attend(tile, parts, work),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16, Call::Attend { tile, parts }) if tile.products == Products::Dots => dots::attend(tile, parts, work),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Fp16 | Isa::Amx, Call::Attend { tile, parts }) if tile.products == Products::Halves => {
                halves::attend(tile, parts, work);
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Fp16 | Isa::Amx, call) => with_avx512(call, work),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2 | Isa::AvxVnni, call) => with_avx2(call, work),
            // `lower` gives other sets the plain form.
            _ => unreachable!("blocked attention without vectors"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn with_avx512(call: Call<'_>, work: &mut Work<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's condition.
    unsafe { with::<crate::simd::avx512::Avx512>(call, work) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn with_avx2(call: Call<'_>, work: &mut Work<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's condition.
    unsafe { with::<crate::simd::avx2::Avx2>(call, work) }
}

/// # Safety
/// [`Vector`]'s condition; tiles hold valid addresses.
#[inline(always)]
unsafe fn with<V: Vector>(call: Call<'_>, work: &mut Work<'_>) {
    match call {
        // SAFETY: this function's condition.
        Call::Attend { tile, parts } => unsafe { attend::<V>(tile, parts, work) },
        Call::Merge { part, head_dim } => {
            let queries = work.softmax.len() / 2;
            let (sums, softmax) = part.split_at(queries * head_dim);
            for query in 0..queries {
                let softmax = Softmax { largest: softmax[query * 2], sum: softmax[query * 2 + 1] };
                let later = Row { sums: sums[query * head_dim..].as_ptr().cast_mut(), softmax };
                // SAFETY: this function's condition; `merge` only reads the later part.
                unsafe { merge_into::<V>(work.sums, work.softmax, (query, later), head_dim) };
            }
        }
        Call::Finish { first_query, out, head_dim } => {
            for (i, out) in out.chunks_exact_mut(head_dim).enumerate() {
                // SAFETY: this function's condition.
                unsafe { finish::<V>(work, first_query + i, out) };
            }
        }
    }
}
