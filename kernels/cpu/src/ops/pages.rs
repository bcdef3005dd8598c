//! ExportPages and ImportPages: pages to and from staging slots, converted on the way in. Knows no transport.

use std::sync::atomic::Ordering;

use millrace_ops::{BackendError, Buffer, ExportPages, ImportPages, KvFormat, KvLayout, PlaneKind, StagedPage};

use crate::isa::Isa;
use crate::kv_block::{HeadBlock, HeadBlockMut, HeadPlace};
use crate::memory::Region;
use crate::ops::step::Cache;
use crate::task::{Arguments, Task, Worker, product};

/// The pages of either operation. A work item is one layer of one plane of one page.
struct Staged {
    arguments: Arguments,
    cache: Cache,
    /// Layout of the staging slots.
    layout: KvLayout,
    slot_bytes: usize,
    staging: Region,
    pages: Region,
    verdicts: Region,
    count: usize,
    /// (plane, layer) of each item of a page.
    layers: Vec<(usize, usize)>,
}

/// The buffers of either operation.
struct StagedBuffers {
    staging: Buffer,
    pages: Buffer,
    verdicts: Buffer,
}

impl Staged {
    fn new(
        arguments: Arguments,
        cache: Cache,
        layout: KvLayout,
        buffers: StagedBuffers,
        count: usize,
    ) -> Result<Self, BackendError> {
        let staging = arguments.region("staging", buffers.staging, 0)?;
        let pages = arguments.region("pages", buffers.pages, product(&[count, size_of::<StagedPage>()]))?;
        let verdicts = arguments.region("verdicts", buffers.verdicts, 0)?;
        arguments.distinct(&staging, &cache.pages)?;
        let planes = layout.planes.iter().enumerate();
        let layers = planes.flat_map(|(plane, p)| (0..p.layers).map(move |layer| (plane, layer))).collect();
        let slot_bytes = layout.page_bytes();
        Ok(Self { arguments, cache, layout, slot_bytes, staging, pages, verdicts, count, layers })
    }

    fn pages(&self) -> &[StagedPage] {
        // SAFETY: only uploads write staged pages, in phases of their own.
        unsafe { self.pages.items(0, self.count) }
    }

    /// The staged page at `index`, checked; `None` where its page does not carry its tag, which sets its verdict.
    fn page(&self, index: usize, target: fn(&StagedPage) -> u32) -> Result<Option<StagedPage>, BackendError> {
        let pages = self.pages();
        let page = pages[index];
        let slots = self.staging.bytes() / self.slot_bytes.max(1);
        self.arguments.require((page.slot as usize) < slots, || format!("slot {} of {slots} staging slots", page.slot))?;
        let verdicts = self.verdicts.bytes() / 4;
        self.arguments.require((page.verdict as usize) < verdicts, || format!("verdict {} of {verdicts}", page.verdict))?;
        let tokens = self.layout.page_tokens;
        self.arguments.require(page.tokens as usize <= tokens, || format!("{} tokens in a page of {tokens}", page.tokens))?;
        // Workers write items of one operation at once, so two of them must not share a target.
        self.arguments.require(pages[..index].iter().all(|earlier| target(earlier) != target(&page)), || {
            format!("staged page {index} has the same target as an earlier one")
        })?;
        if self.cache.tags.carries(page.page, page.tag) {
            return Ok(Some(page));
        }
        self.verdicts.word(page.verdict as usize).store(1, Ordering::Relaxed);
        Ok(None)
    }

    /// Offset of a layer's block in a staging slot.
    fn staged_block(&self, slot: u32, (plane, layer): (usize, usize)) -> usize {
        slot as usize * self.slot_bytes + self.layout.block_offset(plane, layer)
    }
}

pub(crate) struct ExportTask(Staged);

impl ExportTask {
    pub(crate) fn new(arguments: Arguments, op: ExportPages) -> Result<Self, BackendError> {
        let ExportPages { cache, staging, pages, verdicts, count } = op;
        let cache = Cache::new(arguments, cache)?;
        let layout = cache.layout.clone();
        Ok(Self(Staged::new(arguments, cache, layout, StagedBuffers { staging, pages, verdicts }, count)?))
    }
}

impl Task for ExportTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let staged = &self.0;
        let per_page = staged.layers.len();
        let total = staged.count * per_page;
        let chunk = worker.chunk(total);
        while let Some(range) = worker.take(chunk, total) {
            for item in range {
                let Some(page) = staged.page(item / per_page, |page| page.slot)? else { continue };
                let (plane, layer) = staged.layers[item % per_page];
                let bytes = staged.layout.planes[plane].layer_bytes();
                // SAFETY: pages are written by nobody in this phase.
                let from = unsafe { staged.cache.pages.items_at::<u8>(staged.cache.block(page.page, plane, layer), bytes) };
                let to = staged.staged_block(page.slot, (plane, layer));
                // SAFETY: slots differ from page to page (checked), and this layer belongs to the worker that took it.
                unsafe { staged.staging.items_at_mut::<u8>(to, bytes) }.copy_from_slice(from);
            }
        }
        Ok(())
    }
}

pub(crate) struct ImportTask(Staged);

impl ImportTask {
    pub(crate) fn new(arguments: Arguments, op: ImportPages) -> Result<Self, BackendError> {
        let ImportPages { cache, from, staging, pages, verdicts, count } = op;
        let cache = Cache::new(arguments, cache)?;
        let own = &cache.layout;
        let agrees = from.page_tokens == own.page_tokens
            && from.planes.len() == own.planes.len()
            && from.planes.iter().zip(&own.planes).all(|(a, b)| {
                let shapes = (a.kind, a.layers, a.heads, a.width) == (b.kind, b.layers, b.heads, b.width);
                shapes && a.page_tokens == b.page_tokens && a.format == a.kind.stored_in(from.format)
            });
        arguments.require(agrees, || {
            format!("pages of layout {} cannot become pages of layout {}: they differ in more than format", from.id(), own.id())
        })?;
        Ok(Self(Staged::new(arguments, cache, from, StagedBuffers { staging, pages, verdicts }, count)?))
    }

    /// Converts one layer of one plane.
    fn import(&self, isa: Isa, page: &StagedPage, (plane, layer): (usize, usize), scratch: &mut [f32]) {
        let staged = &self.0;
        let (from, to) = (&staged.layout.planes[plane], &staged.cache.layout.planes[plane]);
        let (source, target) = (staged.staged_block(page.slot, (plane, layer)), staged.cache.block(page.page, plane, layer));
        let scaled_alike = from.kind != PlaneKind::Latent
            || staged.layout.latent_scales.of(layer) == staged.cache.layout.latent_scales.of(layer)
            || from.format != KvFormat::Fp8;
        let whole = page.tokens as usize == from.page_tokens;
        if from.format == to.format && whole && scaled_alike {
            let bytes = to.layer_bytes();
            // SAFETY: staging is written by nobody in this phase.
            let from = unsafe { staged.staging.items_at::<u8>(source, bytes) };
            // SAFETY: pages differ from item to item (checked), and this layer belongs to the worker that took it.
            unsafe { staged.cache.pages.items_at_mut::<u8>(target, bytes) }.copy_from_slice(from);
            return;
        }
        for head in 0..from.heads {
            // SAFETY: as above.
            let source = unsafe { HeadBlock::new(&staged.staging, from, HeadPlace::new(&staged.layout, (source, layer), head)) };
            let place = HeadPlace::new(&staged.cache.layout, (target, layer), head);
            // SAFETY: as above.
            let mut target = unsafe { HeadBlockMut::new(&staged.cache.pages, to, place) };
            target.take(isa, &source, page.tokens as usize, scratch);
        }
    }
}

impl Task for ImportTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let staged = &self.0;
        let per_page = staged.layers.len();
        let total = staged.count * per_page;
        let chunk = worker.chunk(total);
        while let Some(range) = worker.take(chunk, total) {
            for item in range {
                let Some(page) = staged.page(item / per_page, |page| page.page)? else { continue };
                let at = staged.layers[item % per_page];
                let plane = &staged.layout.planes[at.0];
                let scratch = worker.scratch.floats((plane.width + 1) * plane.page_tokens)?;
                self.import(worker.isa, &page, at, scratch);
            }
        }
        Ok(())
    }
}
