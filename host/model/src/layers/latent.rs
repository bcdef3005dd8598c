//! Attention over one latent per token (MLA), absorbed: the cache holds latents alone, and the projections to keys and values
//! are applied to queries and outputs instead.
//!
//! ```text
//! normed -> q_a -> norm -> q_b -> [plain|rotary] per head     rope(rotary)
//! normed -> kv_a -> [latent|rotary]      norm(latent), rope(rotary) -> write
//! plain * keys' half of kv_b -> latent queries -> attend -> * values' half of kv_b -> attended -> o
//! ```
//! Source: DeepSeek-V2 (2024), section 2.1. Knows no layer beside its own.

use std::sync::Arc;

use millrace_ops::{
    Activations, AttendLatent, Buffer, LinearHeads, LinearMode, NormHeads, NormKind, Op, PlaneColumns, Queue, Weight, WriteKv,
};

use super::indexer::{Indexer, IndexerWork};
use super::projection::{Bias, Norm, Projection};
use super::rotary::{HeadColumns, Rotary};
use crate::ModelError;
use crate::architecture::StepShape;
use crate::spec::{Indexing, LatentSpec};
use crate::weights::WeightLoader;

/// Plane of the cache.
const LATENTS: usize = 0;
/// Of the norms of compressed queries, keys and values, whatever the configuration says of the others (DeepseekV3RMSNorm's
/// default in transformers).
const COMPRESSED_EPS: f32 = 1e-6;

pub(super) struct Latent {
    spec: LatentSpec,
    queries: Queries,
    compress: Projection,
    /// f32 `[latent]`.
    compressed_norm: Buffer,
    /// Per head `[latent, plain]`: from plain queries to latent ones.
    absorbed_keys: Arc<[Weight]>,
    /// Per head `[value, latent]`.
    absorbed_values: Arc<[Weight]>,
    indexer: Option<Indexer>,
    pub(super) out: Projection,
}

enum Queries {
    Whole(Projection),
    Compressed { compress: Projection, norm: Norm, expand: Projection },
}

/// Working memory.
#[derive(Debug, Clone)]
pub(crate) struct LatentWork {
    /// `[max_rows, query_rank]`.
    pub(super) compressed_queries: Option<Buffer>,
    /// `[max_rows, heads * (plain + rotary)]`.
    pub(super) queries: Buffer,
    /// `[max_rows, latent + rotary]`.
    pub(super) compressed: Buffer,
    /// `[max_rows, heads * latent]`.
    pub(super) latent_queries: Buffer,
    /// `[max_rows, heads * latent]`.
    pub(super) latent_outputs: Buffer,
    pub(super) indexer: Option<IndexerWork>,
}

impl Latent {
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        spec: LatentSpec,
        (layer, indexing): (usize, Indexing),
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let name = |module: &str| format!("model.layers.{layer}.self_attn.{module}");
        let bias = Bias::when(spec.bias);
        let query_width = spec.heads * spec.query_dim();
        let queries = match spec.query_rank {
            None => Queries::Whole(Projection::load(
                loader,
                &[(name("q_proj"), query_width)],
                hidden,
                (Bias::None, Activations::Fine),
            )?),
            Some(rank) => Queries::Compressed {
                compress: Projection::load(loader, &[(name("q_a_proj"), rank)], hidden, (bias, Activations::Fine))?,
                norm: Norm::load(loader, &name("q_a_layernorm"), rank, COMPRESSED_EPS)?,
                expand: Projection::load(loader, &[(name("q_b_proj"), query_width)], rank, (Bias::None, Activations::Fine))?,
            },
        };
        let compress =
            Projection::load(loader, &[(name("kv_a_proj_with_mqa"), spec.width())], hidden, (bias, Activations::Fine))?;
        let compressed_norm = loader.vectors(&[(name("kv_a_layernorm.weight"), spec.latent)])?;
        let (absorbed_keys, absorbed_values) = loader.absorbed(&name("kv_b_proj.weight"), &spec)?;
        let indexer = match (spec.indexer, indexing) {
            (Some(indexer), Indexing::Full) => Some(Indexer::load(loader, (indexer, &spec), &name("indexer"), hidden)?),
            _ => None,
        };
        let out = Projection::load(loader, &[(name("o_proj"), hidden)], spec.heads * spec.value, (bias, Activations::Coarse))?;
        Ok(Self { spec, queries, compress, compressed_norm, absorbed_keys, absorbed_values, indexer, out })
    }

    /// normed -> queries; normed -> latent -> pages; index keys -> pages. `index_layer` counts full layers.
    pub(super) fn inputs(
        &self,
        queue: &mut dyn Queue,
        step: &StepShape<'_>,
        work: &LatentWork,
        (rotary, layer, index_layer): (&Rotary, usize, usize),
    ) {
        let (spec, normed) = (&self.spec, &step.activations.normed);
        match (&self.queries, &work.compressed_queries) {
            (Queries::Compressed { compress, norm, expand }, Some(compressed)) => {
                compress.enqueue(queue, normed, compressed, step.rows, LinearMode::Store);
                norm.enqueue(queue, compressed, compressed, step.rows);
                expand.enqueue(queue, compressed, &work.queries, step.rows, LinearMode::Store);
                if let (Some(indexer), Some(work)) = (&self.indexer, &work.indexer) {
                    indexer.inputs(queue, step, work, (compressed, rotary, index_layer));
                }
            }
            (Queries::Whole(expand) | Queries::Compressed { expand, .. }, _) => {
                expand.enqueue(queue, normed, &work.queries, step.rows, LinearMode::Store);
            }
        }
        self.compress.enqueue(queue, normed, &work.compressed, step.rows, LinearMode::Store);
        queue.enqueue(Op::NormHeads(NormHeads {
            x: work.compressed.clone(),
            stride: spec.width(),
            offset: 0,
            heads: 1,
            width: spec.latent,
            kind: NormKind::Rms,
            weight: self.compressed_norm.clone(),
            bias: None,
            eps: COMPRESSED_EPS,
            rows: step.rows,
        }));
        let (stride, heads) = (spec.heads * spec.query_dim(), spec.heads);
        rotary.enqueue(queue, step, &work.queries, HeadColumns { stride, offset: spec.plain, heads, step: spec.query_dim() });
        let key = HeadColumns { stride: spec.width(), offset: spec.latent, heads: 1, step: spec.rotary };
        rotary.enqueue(queue, step, &work.compressed, key);
        queue.enqueue(Op::WriteKv(WriteKv {
            cache: step.cache.clone(),
            step: step.buffers.clone(),
            x: work.compressed.clone(),
            stride: spec.width(),
            planes: vec![PlaneColumns { plane: LATENTS, layer, offset: 0 }],
            rows: step.rows,
            sequences: step.sequences,
        }));
    }

    /// pages -> attended. A layer without an indexer of its own attends to what the last full one selected.
    pub(super) fn attend(
        &self,
        queue: &mut dyn Queue,
        step: &StepShape<'_>,
        work: &LatentWork,
        (layer, index_layer): (usize, usize),
    ) {
        let spec = &self.spec;
        if let (Some(indexer), Some(work)) = (&self.indexer, &work.indexer) {
            indexer.select(queue, step, work, index_layer);
        }
        let heads = |x: &Buffer, weights: &Arc<[Weight]>, out: &Buffer, (stride, step_width): (usize, usize)| {
            Op::LinearHeads(LinearHeads {
                x: x.clone(),
                x_stride: stride,
                x_offset: 0,
                x_step: step_width,
                weights: Arc::clone(weights),
                out: out.clone(),
                rows: step.rows,
            })
        };
        let query_columns = (spec.heads * spec.query_dim(), spec.query_dim());
        queue.enqueue(heads(&work.queries, &self.absorbed_keys, &work.latent_queries, query_columns));
        queue.enqueue(Op::AttendLatent(AttendLatent {
            cache: step.cache.clone(),
            step: step.buffers.clone(),
            layer,
            latent_queries: work.latent_queries.clone(),
            rotary_queries: work.queries.clone(),
            stride: spec.heads * spec.query_dim(),
            rotary_offset: spec.plain,
            rotary_step: spec.query_dim(),
            heads: spec.heads,
            latent: spec.latent,
            rotary: spec.rotary,
            scale: spec.scale(),
            selection: work.indexer.as_ref().map(|indexer| indexer.selection.clone()),
            out: work.latent_outputs.clone(),
            rows: step.rows,
            sequences: step.sequences,
        }));
        let output_columns = (spec.heads * spec.latent, spec.latent);
        queue.enqueue(heads(&work.latent_outputs, &self.absorbed_values, &step.activations.attended, output_columns));
    }
}
