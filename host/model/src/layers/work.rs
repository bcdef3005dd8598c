//! Working memory of one engine's steps: every buffer that a model's layers pass rows through. Knows sizes, no arithmetic.

use millrace_ops::{Backend, Buffer, ExpertBuffers, Selection};

use super::experts::ExpertsWork;
use super::gated_mlp::GatedMlpWork;
use super::grouped_query::GroupedQueryWork;
use super::indexer::IndexerWork;
use super::latent::LatentWork;
use crate::ModelError;
use crate::spec::{AttentionSpec, ExpertsSpec, FeedForwardSpec, IndexerSpec, LatentSpec, ModelSpec};

/// Working memory of one engine's steps; every buffer is f32, row-major.
#[derive(Debug, Clone)]
pub struct Activations {
    /// `[max_sequences, vocab]`.
    pub logits: Buffer,
    /// `[max_rows, hidden]`: the residual stream.
    pub(crate) hidden: Buffer,
    /// `[max_rows, hidden]`.
    pub(crate) normed: Buffer,
    /// `[max_rows, width of the attention's output]`.
    pub(crate) attended: Buffer,
    /// `[max_sequences, hidden]`: `hidden` of the rows that draw a token.
    pub(crate) last_hidden: Buffer,
    /// `[max_sequences, width of the attention's output]`: `attended` of the same.
    pub(crate) last_attended: Buffer,
    pub(crate) attention: AttentionWork,
    /// Of dense layers and shared experts.
    pub(crate) mlp: Option<GatedMlpWork>,
    pub(crate) experts: Option<ExpertsWork>,
}

#[derive(Debug, Clone)]
pub(crate) enum AttentionWork {
    GroupedQuery(GroupedQueryWork),
    Latent(LatentWork),
}

/// Allocates `[rows, width]` buffers.
struct Allocator<'a> {
    backend: &'a dyn Backend,
    rows: usize,
}

impl Allocator<'_> {
    fn buffer(&self, width: usize) -> Result<Buffer, ModelError> {
        Ok(self.backend.allocate(self.rows.saturating_mul(width).saturating_mul(4))?)
    }
}

impl Activations {
    pub(super) fn new(
        spec: &ModelSpec,
        backend: &dyn Backend,
        max_rows: usize,
        max_sequences: usize,
    ) -> Result<Self, ModelError> {
        let (rows, last) = (Allocator { backend, rows: max_rows }, Allocator { backend, rows: max_sequences });
        let attended = spec.attention.output_width();
        let attention = match spec.attention {
            AttentionSpec::GroupedQuery(attention) => {
                let qkv = rows.buffer(attention.query_width() + 2 * attention.key_width())?;
                AttentionWork::GroupedQuery(GroupedQueryWork { qkv })
            }
            AttentionSpec::Latent(attention) => AttentionWork::Latent(rows.latent(&attention)?),
        };
        Ok(Self {
            logits: last.buffer(spec.vocab)?,
            hidden: rows.buffer(spec.hidden)?,
            normed: rows.buffer(spec.hidden)?,
            attended: rows.buffer(attended)?,
            last_hidden: last.buffer(spec.hidden)?,
            last_attended: last.buffer(attended)?,
            attention,
            mlp: rows.mlp(spec)?,
            experts: rows.experts(spec)?,
        })
    }
}

impl Allocator<'_> {
    fn latent(&self, spec: &LatentSpec) -> Result<LatentWork, ModelError> {
        Ok(LatentWork {
            compressed_queries: spec.query_rank.map(|rank| self.buffer(rank)).transpose()?,
            queries: self.buffer(spec.heads * spec.query_dim())?,
            compressed: self.buffer(spec.width())?,
            latent_queries: self.buffer(spec.heads * spec.latent)?,
            latent_outputs: self.buffer(spec.heads * spec.latent)?,
            indexer: spec.indexer.map(|indexer| self.indexer(indexer)).transpose()?,
        })
    }

    fn indexer(&self, spec: IndexerSpec) -> Result<IndexerWork, ModelError> {
        Ok(IndexerWork {
            queries: self.buffer(spec.heads * spec.width)?,
            keys: self.buffer(spec.width)?,
            head_weights: self.buffer(spec.heads)?,
            selection: Selection { tokens: self.buffer(spec.limit)?, limit: spec.limit },
        })
    }

    /// For the widest of dense layers and shared experts.
    fn mlp(&self, spec: &ModelSpec) -> Result<Option<GatedMlpWork>, ModelError> {
        let widths = spec.layers.iter().map(|layer| match layer.feed_forward {
            FeedForwardSpec::Dense { intermediate, .. } => intermediate,
            FeedForwardSpec::Experts(experts) => experts.shared_intermediate,
        });
        match widths.max() {
            None | Some(0) => Ok(None),
            Some(width) => Ok(Some(GatedMlpWork { gate_up: self.buffer(2 * width)?, gated: self.buffer(width)? })),
        }
    }

    /// All layers of a model have the same experts.
    fn experts(&self, spec: &ModelSpec) -> Result<Option<ExpertsWork>, ModelError> {
        let experts = spec.layers.iter().find_map(|layer| match layer.feed_forward {
            FeedForwardSpec::Dense { .. } => None,
            FeedForwardSpec::Experts(experts) => Some(experts),
        });
        let Some(ExpertsSpec { experts, top_k, intermediate, .. }) = experts else { return Ok(None) };
        let slots = Allocator { backend: self.backend, rows: self.rows.saturating_mul(top_k) };
        Ok(Some(ExpertsWork {
            scores: self.buffer(experts)?,
            routing: ExpertBuffers {
                experts,
                top_k,
                ids: self.buffer(top_k)?,
                weights: self.buffer(top_k)?,
                slots: self.buffer(top_k)?,
                slot_rows: self.buffer(top_k)?,
                starts: self.backend.allocate(experts.saturating_add(1).saturating_mul(4))?,
            },
            dispatched: slots.buffer(spec.hidden)?,
            gate_up: slots.buffer(2 * intermediate)?,
            gated: slots.buffer(intermediate)?,
            results: slots.buffer(spec.hidden)?,
        }))
    }
}
