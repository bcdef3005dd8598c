//! Grouped-query attention: `normed -> [q|k|v] -> norm heads -> rope(q, k) -> write k, v -> attend -> o`.
//! q, k and v are one weight, stacked along their rows. Knows no layer beside its own.

use millrace_ops::{Activations, Attend, Buffer, LinearMode, NormHeads, NormKind, Op, PlaneColumns, Queue, WriteKv};

use super::projection::{Bias, Projection};
use super::rotary::{HeadColumns, Rotary};
use crate::ModelError;
use crate::architecture::StepShape;
use crate::spec::GroupedQuerySpec;
use crate::weights::WeightLoader;

/// Planes of the cache.
const KEYS: usize = 0;
const VALUES: usize = 1;

pub(super) struct GroupedQuery {
    spec: GroupedQuerySpec,
    qkv: Projection,
    /// Norms of a head's query and key, f32 `[head_dim]` each.
    head_norms: Option<[Buffer; 2]>,
    eps: f32,
    pub(super) out: Projection,
}

/// Working memory.
#[derive(Debug, Clone)]
pub(crate) struct GroupedQueryWork {
    /// `[max_rows, (heads + 2 * kv_heads) * head_dim]`: queries, keys, values.
    pub(super) qkv: Buffer,
}

impl GroupedQuery {
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        spec: GroupedQuerySpec,
        layer: usize,
        (hidden, eps): (usize, f32),
    ) -> Result<Self, ModelError> {
        let name = |module: &str| format!("model.layers.{layer}.self_attn.{module}");
        let (queries, keys) = (spec.query_width(), spec.key_width());
        let parts = [(name("q_proj"), queries), (name("k_proj"), keys), (name("v_proj"), keys)];
        let head_norms = match spec.head_norms {
            false => None,
            true => Some([
                loader.vectors(&[(name("q_norm.weight"), spec.head_dim)])?,
                loader.vectors(&[(name("k_norm.weight"), spec.head_dim)])?,
            ]),
        };
        Ok(Self {
            spec,
            qkv: Projection::load(loader, &parts, hidden, (Bias::when(spec.input_bias), Activations::Fine))?,
            head_norms,
            eps,
            out: Projection::load(
                loader,
                &[(name("o_proj"), hidden)],
                queries,
                (Bias::when(spec.output_bias), Activations::Coarse),
            )?,
        })
    }

    fn stride(&self) -> usize {
        self.spec.query_width() + 2 * self.spec.key_width()
    }

    /// normed -> q|k|v -> norms -> rope -> pages.
    pub(super) fn inputs(
        &self,
        queue: &mut dyn Queue,
        step: &StepShape<'_>,
        work: &GroupedQueryWork,
        (rotary, layer): (&Rotary, usize),
    ) {
        let (spec, stride) = (&self.spec, self.stride());
        let (query_width, key_width) = (spec.query_width(), spec.key_width());
        self.qkv.enqueue(queue, &step.activations.normed, &work.qkv, step.rows, LinearMode::Store);
        if let Some([queries, keys]) = &self.head_norms {
            self.norm_heads(queue, step, work, (queries, 0, spec.heads));
            self.norm_heads(queue, step, work, (keys, query_width, spec.kv_heads));
        }
        // Keys follow the queries, so one operation rotates the heads of both.
        let heads = spec.heads + spec.kv_heads;
        rotary.enqueue(queue, step, &work.qkv, HeadColumns { stride, offset: 0, heads, step: spec.head_dim });
        queue.enqueue(Op::WriteKv(WriteKv {
            cache: step.cache.clone(),
            step: step.buffers.clone(),
            x: work.qkv.clone(),
            stride,
            planes: vec![
                PlaneColumns { plane: KEYS, layer, offset: query_width },
                PlaneColumns { plane: VALUES, layer, offset: query_width + key_width },
            ],
            rows: step.rows,
            sequences: step.sequences,
        }));
    }

    fn norm_heads(
        &self,
        queue: &mut dyn Queue,
        step: &StepShape<'_>,
        work: &GroupedQueryWork,
        (weight, offset, heads): (&Buffer, usize, usize),
    ) {
        queue.enqueue(Op::NormHeads(NormHeads {
            x: work.qkv.clone(),
            stride: self.stride(),
            offset,
            heads,
            width: self.spec.head_dim,
            kind: NormKind::Rms,
            weight: weight.clone(),
            bias: None,
            eps: self.eps,
            rows: step.rows,
        }));
    }

    /// pages -> attended.
    pub(super) fn attend(&self, queue: &mut dyn Queue, step: &StepShape<'_>, work: &GroupedQueryWork, layer: usize) {
        queue.enqueue(Op::Attend(Attend {
            cache: step.cache.clone(),
            step: step.buffers.clone(),
            layer,
            x: work.qkv.clone(),
            stride: self.stride(),
            query_offset: 0,
            heads: self.spec.heads,
            scale: 1.0 / (self.spec.head_dim as f32).sqrt(),
            out: step.activations.attended.clone(),
            rows: step.rows,
            sequences: step.sequences,
        }));
    }
}
