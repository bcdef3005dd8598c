//! One sequence over a page pool of its own: uploads step inputs, checks tags, runs the model, reads logits.

use std::sync::Arc;

use millrace_ops::{
    ApplyTags, Backend, CheckPoint, CheckTags, KvCache, Op, PageEntry, Priority, Queue, SamplerParams, Segment, StepBuffers,
    TagDelta, Upload, as_bytes,
};

use super::EvalOptions;
use crate::{Activations, Architecture, Logits, ModelError, StepShape};

/// Any value but 0, the tag of memory that nobody owns.
const FIRST_TAG: u64 = 0x6d69_6c6c_0000_0001;
/// Pages and rows beyond this are not an evaluation any more.
const MAX_TOKENS: usize = 1 << 24;

pub(super) struct Session<'a> {
    model: &'a dyn Architecture,
    queue: Box<dyn Queue>,
    buffers: StepBuffers,
    cache: KvCache,
    activations: Activations,
    /// Tokens already in pages.
    position: usize,
    capacity: usize,
}

impl<'a> Session<'a> {
    /// For at most `capacity` tokens in steps of at most `options.chunk` rows.
    pub(super) fn new(
        model: &'a dyn Architecture,
        backend: &dyn Backend,
        capacity: usize,
        options: EvalOptions,
    ) -> Result<Self, ModelError> {
        let EvalOptions { kv, page_tokens, chunk } = options;
        let refuse = |why: &str| Err(ModelError::Evaluation { why: why.to_owned() });
        if capacity == 0 {
            return refuse("there are no token ids; give at least one");
        }
        if chunk == 0 || page_tokens == 0 || !page_tokens.is_multiple_of(16) || page_tokens > MAX_TOKENS {
            return refuse("the chunk must be at least 1 and a page's tokens a multiple of 16");
        }
        let limit = model.max_tokens().min(MAX_TOKENS);
        if capacity > limit {
            return Err(ModelError::TooLong { tokens: capacity, limit });
        }
        let rows = chunk.min(capacity);
        let page_count = capacity.div_ceil(page_tokens);
        let layout = model.kv_layout(kv, page_tokens);
        let bytes = page_count.saturating_mul(layout.page_bytes());
        let cache = KvCache {
            pages: backend.allocate(bytes)?,
            tags: backend.allocate(page_count.saturating_mul(8))?,
            layout,
            page_count,
        };
        let buffers = StepBuffers {
            tokens: backend.allocate(rows * 4)?,
            positions: backend.allocate(rows * 4)?,
            segments: backend.allocate(size_of::<Segment>())?,
            tables: backend.allocate(page_count * size_of::<PageEntry>())?,
            table_stride: page_count,
            verdicts: backend.allocate(4)?,
            samplers: backend.allocate(size_of::<SamplerParams>())?,
            deltas: backend.allocate(page_count * size_of::<TagDelta>())?,
            records: backend.allocate(8)?,
        };
        let activations = model.activations(backend, rows, rows)?;
        let queue = backend.queue(Priority::Normal, Arc::new(|| {}));
        let mut session = Self { model, queue, buffers, cache, activations, position: 0, capacity };
        session.hand_out_pages();
        Ok(session)
    }

    /// Gives every page its tag and the sequence its table. Pages are handed out from the last to the first, so that nothing
    /// works by a page's number being its place in the sequence.
    fn hand_out_pages(&mut self) {
        let pages = (0u32..).take(self.cache.page_count);
        let deltas: Vec<TagDelta> =
            pages.map(|page| TagDelta { page, zero: 1, tag: FIRST_TAG.wrapping_add(u64::from(page)) }).collect();
        let table: Vec<PageEntry> = deltas.iter().rev().map(|d| PageEntry { page: d.page, reserved: 0, tag: d.tag }).collect();
        let sampler = SamplerParams { top_p: 1.0, ..SamplerParams::default() };
        upload(self.queue.as_mut(), &self.buffers.deltas, as_bytes(&deltas));
        upload(self.queue.as_mut(), &self.buffers.tables, as_bytes(&table));
        upload(self.queue.as_mut(), &self.buffers.samplers, as_bytes(&[sampler]));
        self.queue.enqueue(Op::ApplyTags(ApplyTags {
            cache: self.cache.clone(),
            deltas: self.buffers.deltas.clone(),
            count: self.cache.page_count,
        }));
    }

    /// Appends `ids` and gives the logits that were asked for, row after row.
    pub(super) fn step(&mut self, ids: &[u32], logits: Logits) -> Result<Vec<f32>, ModelError> {
        let vocab = self.model.vocab();
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab) {
            return Err(ModelError::UnknownToken { id, vocab });
        }
        let end = self.position.saturating_add(ids.len());
        if ids.is_empty() || end > self.capacity {
            return Err(ModelError::TooLong { tokens: end, limit: self.capacity });
        }
        self.upload_inputs(ids, end)?;
        self.queue.enqueue(Op::CheckTags(CheckTags {
            cache: self.cache.clone(),
            step: self.buffers.clone(),
            sequences: 1,
            point: CheckPoint::Head,
        }));
        let (buffers, cache, activations) = (&self.buffers, &self.cache, &self.activations);
        let step = StepShape { buffers, cache, activations, rows: ids.len(), sequences: 1, logits };
        self.model.forward(self.queue.as_mut(), &step);
        let ticket = self.queue.submit();
        self.queue.wait(ticket)?;
        self.position = end;
        let mut verdict = [0; 4];
        self.queue.read(&self.buffers.verdicts, 0, &mut verdict)?;
        if verdict != [0; 4] {
            return Err(ModelError::Evaluation { why: "a page lost its tag; the backend's tag check is wrong".to_owned() });
        }
        self.read_logits(match logits {
            Logits::None => 0,
            Logits::Last { count } => count,
            Logits::All => ids.len(),
        })
    }

    fn upload_inputs(&mut self, ids: &[u32], end: usize) -> Result<(), ModelError> {
        let too_long = |_| ModelError::TooLong { tokens: end, limit: self.capacity };
        let start = u32::try_from(self.position).map_err(too_long)?;
        let rows = u32::try_from(ids.len()).map_err(too_long)?;
        let pages = u32::try_from(end.div_ceil(self.cache.layout.page_tokens)).map_err(too_long)?;
        let positions: Vec<u32> = (start..).take(ids.len()).collect();
        let queue = self.queue.as_mut();
        upload(queue, &self.buffers.tokens, as_bytes(ids));
        upload(queue, &self.buffers.positions, as_bytes(&positions));
        upload(queue, &self.buffers.segments, as_bytes(&[Segment { first_row: 0, rows, start, pages }]));
        Ok(())
    }

    fn read_logits(&self, rows: usize) -> Result<Vec<f32>, ModelError> {
        let mut bytes = vec![0; rows * self.model.vocab() * 4];
        if rows > 0 {
            self.queue.read(&self.activations.logits, 0, &mut bytes)?;
        }
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }
}

fn upload(queue: &mut dyn Queue, to: &millrace_ops::Buffer, bytes: Vec<u8>) {
    queue.enqueue(Op::Upload(Upload { to: to.clone(), offset: 0, bytes }));
}
