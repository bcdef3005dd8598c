//! The indexer of sparse attention: small queries and keys of its own that score which tokens are worth attending to.
//!
//! ```text
//! compressed queries -> wq_b -> rope -> index queries       normed -> weights_proj -> weight per head
//! normed -> wk -> layer norm -> rope -> write               index keys in pages -> select
//! ```
//! Source: DeepSeek-V3.2, GlmMoeDsaIndexer of transformers. Knows no attention.

use millrace_ops::{
    Activations, Buffer, LinearMode, NormHeads, NormKind, Op, PlaneColumns, Queue, SelectTokens, Selection, WriteKv,
};

use super::projection::{Bias, Projection};
use super::rotary::{HeadColumns, Rotary};
use crate::ModelError;
use crate::architecture::StepShape;
use crate::spec::{IndexerSpec, LatentSpec};
use crate::weights::WeightLoader;

/// Plane of the cache.
const INDEX_KEYS: usize = 1;
/// Of the keys' layer norm (transformers).
const KEY_EPS: f32 = 1e-6;

pub(super) struct Indexer {
    spec: IndexerSpec,
    queries: Projection,
    keys: Projection,
    /// f32 `[width]` each.
    key_norm: Buffer,
    key_norm_bias: Buffer,
    head_weights: Projection,
}

/// Working memory.
#[derive(Debug, Clone)]
pub(crate) struct IndexerWork {
    /// `[max_rows, heads * width]`.
    pub(super) queries: Buffer,
    /// `[max_rows, width]`.
    pub(super) keys: Buffer,
    /// `[max_rows, heads]`.
    pub(super) head_weights: Buffer,
    /// Of the last full layer.
    pub(super) selection: Selection,
}

impl Indexer {
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        (spec, latent): (IndexerSpec, &LatentSpec),
        module: &str,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{module}.{part}");
        let rank = latent.query_rank.unwrap_or(hidden);
        Ok(Self {
            spec,
            queries: Projection::load(loader, &[(name("wq_b"), spec.heads * spec.width)], rank, (Bias::None, Activations::Fine))?,
            keys: Projection::load(loader, &[(name("wk"), spec.width)], hidden, (Bias::None, Activations::Fine))?,
            key_norm: loader.vectors(&[(name("k_norm.weight"), spec.width)])?,
            key_norm_bias: loader.vectors(&[(name("k_norm.bias"), spec.width)])?,
            head_weights: Projection::table(loader, &name("weights_proj.weight"), spec.heads, hidden)?,
        })
    }

    /// Index queries and head weights of the step's rows, and their keys into pages.
    pub(super) fn inputs(
        &self,
        queue: &mut dyn Queue,
        step: &StepShape<'_>,
        work: &IndexerWork,
        (compressed_queries, rotary, index_layer): (&Buffer, &Rotary, usize),
    ) {
        let (spec, normed) = (&self.spec, &step.activations.normed);
        self.queries.enqueue(queue, compressed_queries, &work.queries, step.rows, LinearMode::Store);
        self.keys.enqueue(queue, normed, &work.keys, step.rows, LinearMode::Store);
        self.head_weights.enqueue(queue, normed, &work.head_weights, step.rows, LinearMode::Store);
        queue.enqueue(Op::NormHeads(NormHeads {
            x: work.keys.clone(),
            stride: spec.width,
            offset: 0,
            heads: 1,
            width: spec.width,
            kind: NormKind::Layer,
            weight: self.key_norm.clone(),
            bias: Some(self.key_norm_bias.clone()),
            eps: KEY_EPS,
            rows: step.rows,
        }));
        let heads = |heads: usize| HeadColumns { stride: heads * spec.width, offset: 0, heads, step: spec.width };
        rotary.enqueue_pairs(queue, step, &work.queries, (heads(spec.heads), spec.pairs));
        rotary.enqueue_pairs(queue, step, &work.keys, (heads(1), spec.pairs));
        queue.enqueue(Op::WriteKv(WriteKv {
            cache: step.cache.clone(),
            step: step.buffers.clone(),
            x: work.keys.clone(),
            stride: spec.width,
            planes: vec![PlaneColumns { plane: INDEX_KEYS, layer: index_layer, offset: 0 }],
            rows: step.rows,
            sequences: step.sequences,
        }));
    }

    /// Chooses the tokens that this layer, and the shared ones behind it, attend to.
    pub(super) fn select(&self, queue: &mut dyn Queue, step: &StepShape<'_>, work: &IndexerWork, index_layer: usize) {
        queue.enqueue(Op::SelectTokens(SelectTokens {
            cache: step.cache.clone(),
            step: step.buffers.clone(),
            plane: INDEX_KEYS,
            layer: index_layer,
            queries: work.queries.clone(),
            head_weights: work.head_weights.clone(),
            heads: self.spec.heads,
            selection: work.selection.clone(),
            rows: step.rows,
            sequences: step.sequences,
        }));
    }
}
