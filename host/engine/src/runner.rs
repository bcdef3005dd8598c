//! Runs one pool's steps: turns a [`StepPlan`] into uploads and operations, submits them, and reads the records back.
//!
//! It does not decide anything: which rows, which pages and which tokens come from the plan. It never sees device memory.

use millrace_core::SamplingParams;
use millrace_core::Stage;
use millrace_kv::TagChange;
use millrace_model::{Activations, Architecture, Logits, StepShape};
use millrace_ops::{
    ApplyTags, BackendError, Buffer, CheckPoint, CheckTags, KvCache, KvLayout, Op, PageEntry, Priority, Queue, RowStatus, Sample,
    SamplerParams, Segment, StepBuffers, StepRecord, TagDelta, Ticket, Upload, Wake, as_bytes,
};
use millrace_scheduler::{Outcome, OutcomeStatus, StepPlan};
use std::sync::Arc;

use crate::PoolSpec;
use crate::bracket::{Bracket, tag_array};
use crate::programs::{Programs, Shape};

/// Tag changes uploaded at a time.
const DELTAS_PER_UPLOAD: usize = 1024;

/// A step that was handed to the device.
struct InFlight {
    ticket: Ticket,
    step: u64,
    rows: Vec<(millrace_core::SeqId, u32)>,
    tokens: u32,
    launched_us: u64,
}

/// A step that the device has ended.
pub(crate) struct Finished {
    pub(crate) step: u64,
    pub(crate) launched_us: u64,
    /// Input tokens of all its rows.
    pub(crate) tokens: u32,
    pub(crate) outcomes: Vec<Outcome>,
}

/// One engine's side of the device.
pub(crate) struct StageRunner {
    queue: Box<dyn Queue>,
    model: Arc<dyn Architecture>,
    activations: Activations,
    buffers: StepBuffers,
    cache: KvCache,
    bracket: Bracket,
    max_rows: usize,
    max_sequences: usize,
    table_entries: usize,
    programs: Programs,
    /// A write found a page that is another's, and no head check clears what it flagged.
    flags_left: bool,
    in_flight: Option<InFlight>,
}

impl StageRunner {
    pub(crate) fn new(spec: &PoolSpec, wake: Wake) -> Result<Self, crate::EngineError> {
        let (backend, bracket) = (spec.backend.as_ref(), Bracket::new(spec)?);
        let max_sequences = spec.limits.max_sequences as usize;
        let max_rows = match spec.stage {
            Stage::Prefill => spec.limits.max_step_tokens as usize,
            Stage::Decode => max_sequences,
        };
        let layout = spec.model.kv_layout(spec.kv, spec.page_tokens as usize);
        let pages_per_sequence = spec.model.max_tokens().div_ceil(layout.page_tokens).min(spec.pages as usize);
        let table_entries = max_sequences * pages_per_sequence;
        let page_count = spec.pages as usize;
        let cache = KvCache {
            pages: backend.allocate(page_count * layout.page_bytes())?,
            tags: tag_array(backend, page_count)?,
            layout,
            page_count,
        };
        let buffers = StepBuffers {
            tokens: backend.allocate(max_rows * size_of::<u32>())?,
            positions: backend.allocate(max_rows * size_of::<u32>())?,
            segments: backend.allocate(max_sequences * size_of::<Segment>())?,
            tables: backend.allocate(table_entries * size_of::<PageEntry>())?,
            table_stride: pages_per_sequence,
            verdicts: backend.allocate(max_sequences * size_of::<u32>())?,
            samplers: backend.allocate(max_sequences * size_of::<SamplerParams>())?,
            deltas: backend.allocate(DELTAS_PER_UPLOAD * size_of::<TagDelta>())?,
            records: backend.allocate(max_sequences * size_of::<StepRecord>())?,
        };
        let priority = if spec.stage == Stage::Decode { Priority::High } else { Priority::Normal };
        Ok(Self {
            queue: backend.queue(priority, wake),
            activations: spec.model.activations(backend, max_rows, max_sequences)?,
            model: spec.model.clone(),
            buffers,
            cache,
            bracket,
            max_rows,
            max_sequences,
            table_entries,
            programs: Programs::default(),
            flags_left: false,
            in_flight: None,
        })
    }

    pub(crate) fn cache(&self) -> &KvCache {
        &self.cache
    }

    pub(crate) fn layout(&self) -> &KvLayout {
        &self.cache.layout
    }

    /// For work of the same pool that is no step (the hand-off).
    pub(crate) fn queue(&mut self) -> &mut dyn Queue {
        self.queue.as_mut()
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// When the running step was launched, and its tokens.
    pub(crate) fn running(&self) -> Option<(u64, u32)> {
        self.in_flight.as_ref().map(|step| (step.launched_us, step.tokens))
    }

    /// The running step's submission and its rows' sequences, in order.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn running_rows(&self) -> Option<(Ticket, Vec<millrace_core::SeqId>)> {
        self.in_flight.as_ref().map(|step| (step.ticket, step.rows.iter().map(|&(seq, _)| seq).collect()))
    }

    /// Whether the running step has passed the device.
    pub(crate) fn is_done(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|step| self.queue.completed() >= step.ticket)
    }

    /// Applies tag changes in stream order, before anything enqueued later.
    pub(crate) fn apply_changes(&mut self, changes: &[TagChange]) {
        for chunk in changes.chunks(DELTAS_PER_UPLOAD) {
            let deltas: Vec<TagDelta> =
                chunk.iter().map(|c| TagDelta { page: c.page.0, zero: u32::from(c.zero), tag: c.tag.raw() }).collect();
            self.upload(&self.buffers.deltas.clone(), &as_bytes(&deltas));
            let (cache, deltas) = (self.cache.clone(), self.buffers.deltas.clone());
            self.queue.enqueue(Op::ApplyTags(ApplyTags { cache, deltas, count: chunk.len() }));
        }
    }

    /// Hands a step to the device. `sampling(row)` gives the parameters of plan row `row`.
    ///
    /// Returns the number of page-table entries that it checks.
    pub(crate) fn launch<'a>(
        &mut self,
        plan: &StepPlan,
        now_us: u64,
        sampling: impl Fn(usize) -> Option<&'a SamplingParams>,
    ) -> u64 {
        self.apply_changes(&plan.changes);
        if std::mem::take(&mut self.flags_left) {
            self.upload(&self.buffers.verdicts.clone(), &as_bytes(&vec![0u32; self.max_sequences]));
        }
        let inputs = StepInputs::of(plan, sampling);
        debug_assert!(inputs.tokens.len() <= self.max_rows && plan.rows.len() <= self.max_sequences, "plan within limits");
        // As dense as this step allows: the stride is part of the arguments.
        let stride = inputs.stride.next_power_of_two().min(self.table_entries / plan.rows.len().max(1)).max(inputs.stride);
        let step = StepBuffers { table_stride: stride, ..self.buffers.clone() };
        self.upload(&step.tokens, &as_bytes(&inputs.tokens));
        self.upload(&step.positions, &as_bytes(&inputs.positions));
        self.upload(&step.segments, &as_bytes(&inputs.segments));
        self.upload(&step.tables, &as_bytes(&inputs.tables(plan, stride)));
        self.upload(&step.samplers, &as_bytes(&inputs.samplers));
        let (rows, sequences, count) = (inputs.tokens.len(), plan.rows.len(), inputs.samplers.len());
        self.check_tags(&step, sequences, CheckPoint::Head);
        if rows > 0 {
            let logits = if count == 0 { Logits::None } else { Logits::Last { count } };
            let shape = StepShape { buffers: &step, cache: &self.cache, activations: &self.activations, rows, sequences, logits };
            let kind = Shape { rows, sequences, sampled: count, table_stride: stride };
            self.programs.run(self.queue.as_mut(), kind, |queue| self.model.forward(queue, &shape));
            self.queue.enqueue(Op::Sample(Sample {
                logits: self.activations.logits.clone(),
                step: step.clone(),
                count,
                sequences,
                vocab: self.model.vocab(),
                step_number: step_number(plan.step),
            }));
        }
        self.check_tags(&step, sequences, CheckPoint::Tail);
        let ticket = self.queue.submit();
        let tokens = u32::try_from(inputs.tokens.len()).unwrap_or(u32::MAX);
        let rows = plan.rows.iter().map(|row| (row.seq, row.epoch)).collect();
        self.in_flight = Some(InFlight { ticket, step: plan.step, rows, tokens, launched_us: now_us });
        self.bracket.checked(inputs.table_entries)
    }

    /// The step that [`Self::is_done`] spoke of.
    pub(crate) fn collect(&mut self) -> Result<Finished, BackendError> {
        let Some(step) = self.in_flight.take() else {
            return Ok(Finished { step: 0, launched_us: 0, tokens: 0, outcomes: Vec::new() });
        };
        self.queue.wait(step.ticket)?;
        let mut records = vec![StepRecord::default(); step.rows.len()];
        self.queue.read_records(&self.buffers.records, &mut records)?;
        let outcome = |(&(seq, epoch), record): (&(_, u32), &StepRecord)| {
            debug_assert_eq!(record.step(), step_number(step.step), "a record of this step");
            let status = match record.status() {
                RowStatus::Ok => OutcomeStatus::Ok,
                RowStatus::StalePage => OutcomeStatus::StalePage,
                RowStatus::NotFinite => OutcomeStatus::NotFinite,
            };
            Outcome { seq, epoch, token: record.token(), status }
        };
        let outcomes: Vec<Outcome> = step.rows.iter().zip(&records).map(outcome).collect();
        let stale = outcomes.iter().any(|outcome| outcome.status == OutcomeStatus::StalePage);
        self.flags_left = stale && !self.bracket.clears_flags();
        Ok(Finished { step: step.step, launched_us: step.launched_us, tokens: step.tokens, outcomes })
    }

    /// The queue has failed: whatever step it was given ends without outcomes.
    pub(crate) fn give_up(&mut self) {
        self.in_flight = None;
    }

    fn check_tags(&mut self, step: &StepBuffers, sequences: usize, point: CheckPoint) {
        let cache = &self.cache;
        self.bracket.check(self.queue.as_mut(), || CheckTags { cache: cache.clone(), step: step.clone(), sequences, point });
    }

    fn upload(&mut self, to: &Buffer, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.queue.enqueue(Op::Upload(Upload { to: to.clone(), offset: 0, bytes: bytes.to_vec() }));
        }
    }
}

/// Low bits of a step's number, as records carry them.
fn step_number(step: u64) -> u32 {
    (step & 0xff_ffff) as u32
}

/// A plan as the arrays that the device wants.
struct StepInputs {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    segments: Vec<Segment>,
    samplers: Vec<SamplerParams>,
    /// The longest page table.
    stride: usize,
    table_entries: usize,
}

impl StepInputs {
    fn of<'a>(plan: &StepPlan, sampling: impl Fn(usize) -> Option<&'a SamplingParams>) -> Self {
        let mut inputs = Self {
            tokens: Vec::new(),
            positions: Vec::new(),
            segments: Vec::with_capacity(plan.rows.len()),
            samplers: Vec::new(),
            stride: 1,
            table_entries: 0,
        };
        for (index, row) in plan.rows.iter().enumerate() {
            let count = row.tokens.len() as u32;
            inputs.segments.push(Segment {
                first_row: inputs.tokens.len() as u32,
                rows: count,
                start: row.start,
                pages: row.table.len() as u32,
            });
            inputs.tokens.extend_from_slice(&row.tokens);
            inputs.positions.extend(row.start..row.start + count);
            inputs.stride = inputs.stride.max(row.table.len());
            inputs.table_entries += row.table.len();
            if row.sample
                && let Some(params) = sampling(index)
            {
                inputs.samplers.push(SamplerParams {
                    temperature: params.temperature,
                    top_p: params.top_p,
                    min_p: params.min_p,
                    top_k: params.top_k,
                    seed: params.seed,
                    position: row.start + count,
                    segment: index as u32,
                });
            }
        }
        inputs
    }

    fn tables(&self, plan: &StepPlan, stride: usize) -> Vec<PageEntry> {
        let mut entries = vec![PageEntry::default(); plan.rows.len() * stride];
        for (index, row) in plan.rows.iter().enumerate() {
            for (entry, page) in entries[index * stride..].iter_mut().zip(&row.table) {
                *entry = PageEntry { page: page.page.0, reserved: 0, tag: page.tag.raw() };
            }
        }
        entries
    }
}
