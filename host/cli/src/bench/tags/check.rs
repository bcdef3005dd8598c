//! The check alone: the backend's own operation over the page tables of a step of so many streams, with nothing else on the device.

use std::time::Instant;

use anyhow::{Result, ensure};
use millrace_ops::{
    ApplyTags, Backend, Buffer, CheckPoint, CheckTags, KvCache, KvFormat, KvLayout, Op, PageEntry, Priority, Queue, Segment,
    StepBuffers, StepRecord, TagDelta, Upload, as_bytes,
};

use crate::bench::lane::Streams;
use crate::bench::room::PAGE_TOKENS;
use crate::bench::spread::Spread;

/// Checks in one submission: heads and tails by turns.
const CHECKS: usize = 100;
const SUBMISSIONS: usize = 15;
/// A number that the page of each table entry steps by, so that entries do not lie in order.
const STEP: usize = 7919;

/// What one check of a step costs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CheckCost {
    pub(super) pages: usize,
    /// Of a whole check, as the host enqueues it and the device runs it; a step has two.
    pub(super) ns: Spread,
}

impl CheckCost {
    pub(super) fn ns_per_page(&self) -> f64 {
        self.ns.median() / self.pages.max(1) as f64
    }
}

/// # Errors
/// The backend's; or a check that found a tag to differ, which none does.
pub(super) fn measure(backend: &dyn Backend, streams: Streams) -> Result<CheckCost> {
    let each = (streams.depth + streams.output).div_ceil(PAGE_TOKENS);
    let mut bench = Bench::new(backend, streams.batch, each)?;
    bench.submit()?;
    let ns = (0..SUBMISSIONS).map(|_| bench.submit()).collect::<Result<Vec<f64>>>()?;
    ensure!(!bench.found_any()?, "the tag check flags pages that carry their tags");
    Ok(CheckCost { pages: streams.batch * each, ns: Spread::new(ns) })
}

/// A pool of small pages, all of which some table names, and a queue.
struct Bench {
    queue: Box<dyn Queue>,
    cache: KvCache,
    step: StepBuffers,
    sequences: usize,
}

impl Bench {
    fn new(backend: &dyn Backend, sequences: usize, each: usize) -> Result<Self> {
        let (count, none) = (sequences * each, backend.allocate(0)?);
        // As small as pages can be: a check does not look into them.
        let layout = KvLayout::grouped_query(1, 1, 16, 16, KvFormat::Fp8);
        let cache = KvCache {
            pages: backend.allocate(count * layout.page_bytes())?,
            tags: backend.allocate(count * size_of::<u64>())?,
            layout,
            page_count: count,
        };
        let step = StepBuffers {
            tokens: none.clone(),
            positions: none.clone(),
            segments: backend.allocate(sequences * size_of::<Segment>())?,
            tables: backend.allocate(count * size_of::<PageEntry>())?,
            table_stride: each,
            verdicts: backend.allocate(sequences * size_of::<u32>())?,
            samplers: none,
            deltas: backend.allocate(count * size_of::<TagDelta>())?,
            records: backend.allocate(sequences * size_of::<StepRecord>())?,
        };
        let mut bench = Self { queue: backend.queue(Priority::High, std::sync::Arc::new(|| {})), cache, step, sequences };
        bench.fill(each);
        Ok(bench)
    }

    /// Gives every page a tag, and every sequence a table of `each` pages with the tags that they carry.
    fn fill(&mut self, each: usize) {
        let count = self.cache.page_count;
        let tag = |page: usize| (1 << 48) + page as u64 + 1;
        let deltas: Vec<TagDelta> = (0..count).map(|page| TagDelta { page: page as u32, zero: 0, tag: tag(page) }).collect();
        let page = |entry: usize| (entry * STEP) % count;
        let entries: Vec<PageEntry> =
            (0..count).map(page).map(|page| PageEntry { page: page as u32, reserved: 0, tag: tag(page) }).collect();
        let segments = vec![Segment { first_row: 0, rows: 0, start: 0, pages: each as u32 }; self.sequences];
        self.upload(&self.step.deltas.clone(), as_bytes(&deltas));
        self.upload(&self.step.tables.clone(), as_bytes(&entries));
        self.upload(&self.step.segments.clone(), as_bytes(&segments));
        let (cache, deltas) = (self.cache.clone(), self.step.deltas.clone());
        self.queue.enqueue(Op::ApplyTags(ApplyTags { cache, deltas, count }));
    }

    fn upload(&mut self, to: &Buffer, bytes: Vec<u8>) {
        self.queue.enqueue(Op::Upload(Upload { to: to.clone(), offset: 0, bytes }));
    }

    /// Nanoseconds of a check.
    fn submit(&mut self) -> Result<f64> {
        let began = Instant::now();
        for check in 0..CHECKS {
            let point = if check % 2 == 0 { CheckPoint::Head } else { CheckPoint::Tail };
            let (cache, step, sequences) = (self.cache.clone(), self.step.clone(), self.sequences);
            self.queue.enqueue(Op::CheckTags(CheckTags { cache, step, sequences, point }));
        }
        let ticket = self.queue.submit();
        self.queue.wait(ticket)?;
        Ok(began.elapsed().as_nanos() as f64 / CHECKS as f64)
    }

    fn found_any(&mut self) -> Result<bool> {
        let mut verdicts = vec![0; self.sequences * size_of::<u32>()];
        self.queue.read(&self.step.verdicts, 0, &mut verdicts)?;
        Ok(verdicts.iter().any(|&byte| byte != 0))
    }
}

#[cfg(all(test, feature = "tags"))]
mod tests {
    use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};

    use super::*;

    #[test]
    fn every_page_of_every_table_is_checked() {
        let backend = CpuBackend::new(CpuOptions { threads: 2, compute: CpuCompute::Fast, isa: None }).unwrap();
        let cost = measure(&backend, Streams { batch: 3, depth: 60, output: 5 }).unwrap();
        assert_eq!(cost.pages, 9);
        assert!(cost.ns_per_page() > 0.0);
        let mut bench = Bench::new(&backend, 3, 3).unwrap();
        bench.submit().unwrap();
        assert!(!bench.found_any().unwrap());
        // The last page that a table names is another's now.
        let taken = TagDelta { page: ((8 * STEP) % 9) as u32, zero: 0, tag: 7 };
        let deltas = bench.step.deltas.clone();
        bench.upload(&deltas, as_bytes(&[taken]));
        let cache = bench.cache.clone();
        bench.queue.enqueue(Op::ApplyTags(ApplyTags { cache, deltas, count: 1 }));
        bench.submit().unwrap();
        assert!(bench.found_any().unwrap(), "so the check does look");
    }
}
