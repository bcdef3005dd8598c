//! Sequences side by side over a page pool of their own: uploads step inputs, checks tags, runs the model, reads logits. Does not
//! know where a sequence's first pages came from.

use std::sync::Arc;

use millrace_ops::{
    ApplyTags, Backend, Buffer, CheckPoint, CheckTags, KvCache, KvFormat, Op, PageEntry, Priority, Queue, SamplerParams, Segment,
    StepBuffers, TagDelta, Upload, as_bytes,
};

use crate::{Activations, Architecture, Logits, ModelError, StepShape};

/// Any value but 0, the tag of memory that nobody owns.
const FIRST_TAG: u64 = 0x6d69_6c6c_0000_0001;
/// Tokens in pages, and rows of a step, beyond this are not an evaluation any more.
pub(super) const MAX_TOKENS: usize = 1 << 24;

/// Sizes of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionShape {
    pub(super) kv: KvFormat,
    /// A multiple of 16.
    pub(super) page_tokens: usize,
    pub(super) sequences: usize,
    /// Longest sequence, in tokens.
    pub(super) tokens: usize,
    /// Rows of one step over all sequences.
    pub(super) rows: usize,
}

pub(super) struct Session<'a> {
    model: &'a dyn Architecture,
    queue: Box<dyn Queue>,
    buffers: StepBuffers,
    cache: KvCache,
    activations: Activations,
    shape: SessionShape,
    sequences: Vec<Sequence>,
    next_tag: u64,
}

/// One token stream.
struct Sequence {
    table: Vec<PageEntry>,
    /// Tokens already in pages.
    position: usize,
}

impl<'a> Session<'a> {
    pub(super) fn new(model: &'a dyn Architecture, backend: &dyn Backend, shape: SessionShape) -> Result<Self, ModelError> {
        let pages_each = check(&shape, model.max_tokens())?;
        let SessionShape { kv, page_tokens, sequences, rows, .. } = shape;
        let page_count = pages_each * sequences;
        let layout = model.kv_layout(kv, page_tokens);
        let cache = KvCache {
            pages: backend.allocate(page_count.saturating_mul(layout.page_bytes()))?,
            tags: backend.allocate(page_count * 8)?,
            layout,
            page_count,
        };
        let buffers = StepBuffers {
            tokens: backend.allocate(rows * 4)?,
            positions: backend.allocate(rows * 4)?,
            segments: backend.allocate(sequences * size_of::<Segment>())?,
            tables: backend.allocate(page_count * size_of::<PageEntry>())?,
            table_stride: pages_each,
            verdicts: backend.allocate(sequences * 4)?,
            samplers: backend.allocate(sequences * size_of::<SamplerParams>())?,
            deltas: backend.allocate(pages_each * size_of::<TagDelta>())?,
            records: backend.allocate(sequences * 8)?,
        };
        let activations = model.activations(backend, rows, rows)?;
        let queue = backend.queue(Priority::Normal, Arc::new(|| {}));
        // Pages of the sequences alternate and go from last to first, so that nothing works by a page's number being its place.
        let page = |sequence: usize, place: usize| ((pages_each - 1 - place) * sequences + sequence) as u32;
        let entry = |sequence, place| PageEntry { page: page(sequence, place), ..PageEntry::default() };
        let table = |sequence: usize| (0..pages_each).map(|place| entry(sequence, place)).collect();
        let sequences = (0..sequences).map(|s| Sequence { table: table(s), position: 0 }).collect();
        let mut session = Self { model, queue, buffers, cache, activations, shape, sequences, next_tag: FIRST_TAG };
        session.upload_samplers();
        for sequence in 0..session.sequences.len() {
            session.begin(sequence);
        }
        Ok(session)
    }

    pub(super) fn cache(&self) -> &KvCache {
        &self.cache
    }

    pub(super) fn queue(&mut self) -> &mut dyn Queue {
        self.queue.as_mut()
    }

    /// The page table of a sequence, empty where there is no such sequence.
    pub(super) fn table(&self, sequence: usize) -> &[PageEntry] {
        self.sequences.get(sequence).map_or(&[], |sequence| &sequence.table)
    }

    /// Starts a sequence anew: its pages get new tags and are empty.
    pub(super) fn begin(&mut self, sequence: usize) {
        let Some(state) = self.sequences.get_mut(sequence) else { return };
        state.position = 0;
        for entry in &mut state.table {
            entry.tag = self.next_tag;
            self.next_tag = self.next_tag.wrapping_add(1);
        }
        let deltas: Vec<TagDelta> = state.table.iter().map(|e| TagDelta { page: e.page, zero: 1, tag: e.tag }).collect();
        let at = sequence * state.table.len() * size_of::<PageEntry>();
        upload(self.queue.as_mut(), (&self.buffers.deltas, 0), as_bytes(&deltas));
        upload(self.queue.as_mut(), (&self.buffers.tables, at), as_bytes(&state.table));
        self.queue.enqueue(Op::ApplyTags(ApplyTags {
            cache: self.cache.clone(),
            deltas: self.buffers.deltas.clone(),
            count: deltas.len(),
        }));
    }

    /// The first `tokens` tokens of a sequence have come into its pages from elsewhere.
    pub(super) fn adopt(&mut self, sequence: usize, tokens: usize) {
        if let Some(state) = self.sequences.get_mut(sequence) {
            state.position = tokens;
        }
    }

    /// Appends `ids[s]` (at least one each) to sequence s, and gives the logits that were asked for, row after row.
    pub(super) fn step(&mut self, ids: &[&[u32]], logits: Logits) -> Result<Vec<f32>, ModelError> {
        let rows = self.upload_inputs(ids)?;
        if cfg!(feature = "tags") {
            self.queue.enqueue(Op::CheckTags(CheckTags {
                cache: self.cache.clone(),
                step: self.buffers.clone(),
                sequences: ids.len(),
                point: CheckPoint::Head,
            }));
        }
        let (buffers, cache, activations) = (&self.buffers, &self.cache, &self.activations);
        let step = StepShape { buffers, cache, activations, rows, sequences: ids.len(), logits };
        self.model.forward(self.queue.as_mut(), &step);
        let ticket = self.queue.submit();
        self.queue.wait(ticket)?;
        for (state, ids) in self.sequences.iter_mut().zip(ids) {
            state.position += ids.len();
        }
        let mut verdicts = vec![0; ids.len() * 4];
        self.queue.read(&self.buffers.verdicts, 0, &mut verdicts)?;
        if verdicts.iter().any(|&byte| byte != 0) {
            return refuse("a page lost its tag; the backend's tag check is wrong");
        }
        self.read_logits(match logits {
            Logits::None => 0,
            Logits::Last { count } => count,
            Logits::All => rows,
        })
    }

    /// Returns the step's rows.
    fn upload_inputs(&mut self, ids: &[&[u32]]) -> Result<usize, ModelError> {
        let (vocab, limit) = (self.model.vocab(), self.shape.tokens);
        if let Some(&id) = ids.iter().copied().flatten().find(|&&id| id as usize >= vocab) {
            return Err(ModelError::UnknownToken { id, vocab });
        }
        let rows = ids.iter().map(|ids| ids.len()).sum();
        if rows > self.shape.rows || ids.len() > self.sequences.len() || ids.iter().any(|ids| ids.is_empty()) || rows == 0 {
            return refuse("a step has more rows or sequences than were planned, or a sequence without rows");
        }
        let (mut positions, mut segments) = (Vec::new(), Vec::new());
        for (state, ids) in self.sequences.iter().zip(ids) {
            let end = state.position + ids.len();
            if end > limit {
                return Err(ModelError::TooLong { tokens: end, limit });
            }
            // All below 2^24, which `check` saw to.
            let first_row = positions.len() as u32;
            positions.extend((state.position..end).map(|position| position as u32));
            let pages = end.div_ceil(self.shape.page_tokens) as u32;
            segments.push(Segment { first_row, rows: ids.len() as u32, start: state.position as u32, pages });
        }
        let queue = self.queue.as_mut();
        upload(queue, (&self.buffers.tokens, 0), as_bytes(&ids.concat()));
        upload(queue, (&self.buffers.positions, 0), as_bytes(&positions));
        upload(queue, (&self.buffers.segments, 0), as_bytes(&segments));
        Ok(rows)
    }

    /// Row i of [`Logits::Last`] is the last row of segment i.
    fn upload_samplers(&mut self) {
        let samplers = (0u32..).take(self.sequences.len());
        let samplers: Vec<SamplerParams> =
            samplers.map(|segment| SamplerParams { top_p: 1.0, segment, ..SamplerParams::default() }).collect();
        upload(self.queue.as_mut(), (&self.buffers.samplers, 0), as_bytes(&samplers));
    }

    fn read_logits(&self, rows: usize) -> Result<Vec<f32>, ModelError> {
        let mut bytes = vec![0; rows * self.model.vocab() * 4];
        if rows > 0 {
            self.queue.read(&self.activations.logits, 0, &mut bytes)?;
        }
        Ok(bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
    }
}

/// Pages of each sequence.
fn check(shape: &SessionShape, context: usize) -> Result<usize, ModelError> {
    let SessionShape { page_tokens, sequences, tokens, rows, .. } = *shape;
    if tokens == 0 {
        return refuse("there are no token ids; give at least one");
    }
    if rows == 0 || page_tokens == 0 || !page_tokens.is_multiple_of(16) || page_tokens > MAX_TOKENS {
        return refuse("the chunk must be at least 1 and a page's tokens a multiple of 16");
    }
    let limit = context.min(MAX_TOKENS);
    if tokens > limit {
        return Err(ModelError::TooLong { tokens, limit });
    }
    let pages = tokens.div_ceil(page_tokens);
    let room = pages.saturating_mul(page_tokens).saturating_mul(sequences);
    if sequences == 0 || rows.max(room) > MAX_TOKENS {
        return refuse(&format!(
            "{sequences} sequences of {tokens} tokens in steps of {rows} rows; at most {MAX_TOKENS} tokens and rows, and at least one sequence, can be run"
        ));
    }
    Ok(pages)
}

pub(super) fn refuse<T>(why: &str) -> Result<T, ModelError> {
    Err(ModelError::Evaluation { why: why.to_owned() })
}

pub(super) fn upload(queue: &mut dyn Queue, (to, offset): (&Buffer, usize), bytes: Vec<u8>) {
    queue.enqueue(Op::Upload(Upload { to: to.clone(), offset, bytes }));
}

#[cfg(test)]
mod neighbours;
