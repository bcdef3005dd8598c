//! The cache and the step inputs as operations see them: resolved, checked, and walked in work items.
//! Knows no arithmetic.

use std::sync::atomic::Ordering;

use millrace_ops::{BackendError, KvCache, KvLayout, PageEntry, PlaneKind, PlaneLayout, Segment, StepBuffers};

use crate::kv_block::HeadPlace;
use crate::memory::Region;
use crate::ops::tags::TagArray;
use crate::task::{Arguments, product};

/// A pool's pages and tags.
pub(crate) struct Cache {
    pub(crate) pages: Region,
    pub(crate) tags: TagArray,
    pub(crate) layout: KvLayout,
    pub(crate) page_bytes: usize,
    pub(crate) page_count: usize,
}

/// Index of each plane in the layout of grouped-query attention.
pub(crate) const KEYS: usize = 0;
pub(crate) const VALUES: usize = 1;

impl Cache {
    pub(crate) fn new(arguments: Arguments, cache: KvCache) -> Result<Self, BackendError> {
        let KvCache { pages, tags, layout, page_count } = cache;
        arguments
            .require(layout.is_consistent(), || "a plane's page size or format differs from its layout's, or is 0".into())?;
        let page_bytes = layout.page_bytes();
        let pages = arguments.region("cache.pages", pages, product(&[page_count, page_bytes]))?;
        let tags = TagArray::new(arguments, tags, page_count)?;
        Ok(Self { pages, tags, layout, page_bytes, page_count })
    }

    /// A layer's plane, which must exist and hold something.
    pub(crate) fn plane(&self, arguments: Arguments, plane: usize, layer: usize) -> Result<&PlaneLayout, BackendError> {
        let planes = self.layout.planes.len();
        let Some(found) = self.layout.planes.get(plane) else {
            return Err(arguments.invalid(format!("plane {plane} of a cache of {planes} planes")));
        };
        arguments.require(layer < found.layers, || format!("layer {layer} of a plane of {} layers", found.layers))?;
        arguments.require(found.heads > 0 && found.width > 0, || format!("plane {plane} has no heads or no width"))?;
        Ok(found)
    }

    /// Refuses layouts other than keys and values of equal shape.
    pub(crate) fn require_grouped_query(&self, arguments: Arguments, layer: usize) -> Result<(), BackendError> {
        let [keys, values] = self.layout.planes.as_slice() else {
            return Err(arguments.invalid("the cache needs exactly two planes, keys and values"));
        };
        let kinds = keys.kind == PlaneKind::Keys && values.kind == PlaneKind::Values;
        let shapes = keys.heads == values.heads && keys.width == values.width && keys.layers == values.layers;
        arguments.require(kinds && shapes && keys.heads > 0 && keys.width > 0, || {
            "the cache's planes must be keys, then values, of equal shape".into()
        })?;
        arguments.require(layer < keys.layers, || format!("layer {layer} of a cache of {} layers", keys.layers))
    }

    /// The page of a table's entry, which must be one of the pool.
    pub(crate) fn known(&self, arguments: Arguments, entry: &PageEntry) -> Result<u32, BackendError> {
        arguments.require((entry.page as usize) < self.page_count, || {
            format!("a table names page {} of a pool of {}", entry.page, self.page_count)
        })?;
        Ok(entry.page)
    }

    /// Byte offset of a layer's block of `plane` in a page of the pool.
    pub(crate) fn block(&self, page: u32, plane: usize, layer: usize) -> usize {
        page as usize * self.page_bytes + self.layout.block_offset(plane, layer)
    }

    /// Where a head's block of (plane, layer) lies in a page of the pool.
    pub(crate) fn place(&self, page: u32, (plane, layer): (usize, usize), head: usize) -> HeadPlace {
        HeadPlace::new(&self.layout, (self.block(page, plane, layer), layer), head)
    }
}

/// Segments, page tables and verdicts of a step's first `sequences` sequences.
pub(crate) struct Step {
    segments: Region,
    tables: Region,
    table_stride: usize,
    verdicts: Region,
    pub(crate) sequences: usize,
}

impl Step {
    pub(crate) fn new(arguments: Arguments, step: &StepBuffers, sequences: usize) -> Result<Self, BackendError> {
        let entries = product(&[sequences, step.table_stride, size_of::<PageEntry>()]);
        Ok(Self {
            segments: arguments.region("step.segments", step.segments.clone(), product(&[sequences, size_of::<Segment>()]))?,
            tables: arguments.region("step.tables", step.tables.clone(), entries)?,
            table_stride: step.table_stride,
            verdicts: arguments.region("step.verdicts", step.verdicts.clone(), product(&[sequences, 4]))?,
            sequences,
        })
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        // SAFETY: only uploads write segments, in phases of their own.
        unsafe { self.segments.items(0, self.sequences) }
    }

    /// Used entries of a sequence's page table.
    pub(crate) fn table(&self, arguments: Arguments, sequence: usize) -> Result<&[PageEntry], BackendError> {
        let pages = self.segments()[sequence].pages as usize;
        arguments.require(pages <= self.table_stride, || {
            format!("segment {sequence} uses {pages} pages where a table holds {}", self.table_stride)
        })?;
        // SAFETY: only uploads write tables, in phases of their own.
        Ok(unsafe { self.tables.items(sequence * self.table_stride, pages) })
    }

    /// Tokens that the longest table can hold.
    pub(crate) fn table_tokens(&self, page_tokens: usize) -> usize {
        product(&[self.table_stride, page_tokens])
    }

    pub(crate) fn flagged(&self, sequence: usize) -> bool {
        self.verdicts.word(sequence).load(Ordering::Relaxed) != 0
    }

    pub(crate) fn set_verdict(&self, sequence: usize, verdict: u32) {
        self.verdicts.word(sequence).store(verdict, Ordering::Relaxed);
    }

    /// Checks that segments come in the order of their rows, do not overlap, lie within `rows`, and that their pages
    /// (of `page_tokens`) hold the positions of their rows.
    pub(crate) fn check(&self, arguments: Arguments, rows: usize, page_tokens: usize) -> Result<(), BackendError> {
        let mut end = 0u64;
        for (i, segment) in self.segments().iter().enumerate().filter(|(_, segment)| segment.rows > 0) {
            let first = u64::from(segment.first_row);
            arguments.require(first >= end, || format!("segment {i} begins at row {first}, inside an earlier one"))?;
            end = first + u64::from(segment.rows);
            arguments.require(end <= rows as u64, || format!("segment {i} ends at row {end} of {rows}"))?;
            let pages = segment.pages as usize;
            arguments.require(pages <= self.table_stride, || {
                format!("segment {i} uses {pages} pages where a table holds {}", self.table_stride)
            })?;
            let tokens = u64::from(segment.start) + u64::from(segment.rows);
            let room = u64::from(segment.pages) * page_tokens as u64;
            arguments.require(tokens <= room, || format!("segment {i} needs {tokens} tokens where its pages hold {room}"))?;
        }
        Ok(())
    }
}

/// Finds which sequence (or expert) a work item belongs to, for items taken in ascending order.
pub(crate) struct Walk<F> {
    items_of: F,
    sequence: usize,
    /// Items of the sequences before `sequence`.
    before: usize,
}

impl<F: Fn(usize) -> usize> Walk<F> {
    /// `items_of(sequence)`: how many items a sequence has.
    pub(crate) fn new(items_of: F) -> Self {
        Self { items_of, sequence: 0, before: 0 }
    }

    /// (sequence, item within the sequence) of an item that is not less than the last one asked for and less than the total.
    pub(crate) fn locate(&mut self, item: usize) -> (usize, usize) {
        loop {
            let items = (self.items_of)(self.sequence);
            if item < self.before + items {
                return (self.sequence, item - self.before);
            }
            self.before += items;
            self.sequence += 1;
        }
    }
}

/// Adds up something of the sequences before one, for sequences asked for in ascending order.
#[derive(Default)]
pub(crate) struct Preceding {
    sequence: usize,
    sum: usize,
}

impl Preceding {
    pub(crate) fn sum(&mut self, sequence: usize, of: impl Fn(usize) -> usize) -> usize {
        while self.sequence < sequence {
            self.sum += of(self.sequence);
            self.sequence += 1;
        }
        self.sum
    }
}
