//! A decoder-only transformer, loaded from its specification.
//!
//! ```text
//! tokens -> embed -> hidden
//! layer:  hidden -> norm -> attention inputs -> pages -> attend -> o + hidden
//!         hidden -> norm -> feed-forward + hidden
//! hidden of the rows that draw a token -> norm -> head -> logits
//! ```
//! In the last layer everything after attention runs for the rows that get logits alone, and nothing after the KV write where
//! none does. Knows no architecture by name.

use millrace_core::StageRecipe;
use millrace_ops::{Backend, Buffer, Embed, GatherRows, KvFormat, KvLayout, LinearMode, Op, Queue, StaticScales, Weight};

use super::experts::Experts;
use super::gated_mlp::GatedMlp;
use super::grouped_query::GroupedQuery;
use super::latent::Latent;
use super::projection::{Bias, Norm, Projection};
use super::rotary::Rotary;
use super::work::{Activations, AttentionWork};
use crate::architecture::{Architecture, Logits, StepShape};
use crate::spec::{AttentionSpec, FeedForwardSpec, Indexing, ModelSpec};
use crate::weights::WeightLoader;
use crate::{Checkpoint, CheckpointError, ModelError, WeightCache};

pub(crate) struct Decoder {
    spec: ModelSpec,
    embedding: Weight,
    head: Projection,
    final_norm: Norm,
    rotary: Rotary,
    layers: Vec<Layer>,
    /// Of the latents in FP8, where the checkpoint was calibrated.
    latent_scales: StaticScales,
    weight_bytes: usize,
}

struct Layer {
    input_norm: Norm,
    attention: Attention,
    /// Full layers before this one: its own place among them, if it is one.
    index_layer: usize,
    mlp_norm: Norm,
    feed_forward: FeedForward,
}

enum Attention {
    GroupedQuery(GroupedQuery),
    Latent(Box<Latent>),
}

enum FeedForward {
    Dense(GatedMlp),
    Experts(Experts),
}

/// Where the rows of a layer's second half are: all rows of the step, or those that draw a token.
struct Rows<'a> {
    hidden: &'a Buffer,
    attended: &'a Buffer,
    count: usize,
}

impl Decoder {
    /// # Errors
    /// What is wrong with the checkpoint, or what the backend refuses.
    pub(crate) fn load(
        spec: ModelSpec,
        checkpoint: &Checkpoint,
        backend: &dyn Backend,
        recipe: StageRecipe,
        cache: &mut WeightCache,
    ) -> Result<Self, ModelError> {
        let mut loader = WeightLoader::new(checkpoint, backend, recipe, cache);
        let embedding = loader.table("model.embed_tokens.weight", spec.vocab, spec.hidden)?;
        // A head that is stored is used even where the config calls it tied, as transformers does: it may be another.
        let head = match spec.tied_head && !checkpoint.has_tensor("lm_head.weight") {
            true => Projection::of(embedding.clone()),
            false => Projection::table(&mut loader, "lm_head.weight", spec.vocab, spec.hidden)?,
        };
        let final_norm = Norm::load(&mut loader, "model.norm", spec.hidden, spec.norm_eps)?;
        let rope = match spec.attention {
            AttentionSpec::GroupedQuery(attention) => attention.rope,
            AttentionSpec::Latent(attention) => attention.rope,
        };
        let rotary = Rotary::load(&mut loader, rope)?;
        // Grows with the layers that the checkpoint really holds: a missing tensor ends it.
        let mut layers = Vec::new();
        let mut index_layer = 0;
        for layer in 0..spec.layers.len() {
            layers.push(load_layer(&mut loader, &spec, layer, index_layer)?);
            index_layer += usize::from(spec.layers.get(layer).is_some_and(|layer| layer.indexing == Indexing::Full));
        }
        let weight_bytes = loader.finish()?;
        let latent_scales = latent_scales(checkpoint, &spec)?;
        Ok(Self { spec, embedding, head, final_norm, rotary, layers, latent_scales, weight_bytes })
    }

    /// hidden -> norm -> attention inputs -> pages.
    fn attention_inputs(&self, queue: &mut dyn Queue, step: &StepShape<'_>, index: usize, layer: &Layer) {
        let work = step.activations;
        layer.input_norm.enqueue(queue, &work.hidden, &work.normed, step.rows);
        match (&layer.attention, &work.attention) {
            (Attention::GroupedQuery(attention), AttentionWork::GroupedQuery(work)) => {
                attention.inputs(queue, step, work, (&self.rotary, index));
            }
            (Attention::Latent(attention), AttentionWork::Latent(work)) => {
                attention.inputs(queue, step, work, (&self.rotary, index, layer.index_layer));
            }
            // Activations are made by the model that uses them.
            _ => {}
        }
    }

    fn attend(queue: &mut dyn Queue, step: &StepShape<'_>, index: usize, layer: &Layer) {
        match (&layer.attention, &step.activations.attention) {
            (Attention::GroupedQuery(attention), AttentionWork::GroupedQuery(work)) => {
                attention.attend(queue, step, work, index);
            }
            (Attention::Latent(attention), AttentionWork::Latent(work)) => {
                attention.attend(queue, step, work, (index, layer.index_layer));
            }
            _ => {}
        }
    }

    /// attended -> o + hidden; hidden -> norm -> feed-forward + hidden.
    fn second_half(queue: &mut dyn Queue, work: &Activations, layer: &Layer, rows: &Rows<'_>) {
        let out = match &layer.attention {
            Attention::GroupedQuery(attention) => &attention.out,
            Attention::Latent(attention) => &attention.out,
        };
        out.enqueue(queue, rows.attended, rows.hidden, rows.count, LinearMode::Add);
        layer.mlp_norm.enqueue(queue, rows.hidden, &work.normed, rows.count);
        let buffers = (&work.normed, rows.hidden);
        match (&layer.feed_forward, &work.mlp, &work.experts) {
            (FeedForward::Dense(mlp), Some(mlp_work), _) => mlp.enqueue(queue, mlp_work, buffers, rows.count),
            (FeedForward::Experts(experts), mlp_work, Some(experts_work)) => {
                experts.enqueue(queue, (experts_work, mlp_work.as_ref()), buffers, rows.count);
            }
            _ => {}
        }
    }
}

impl Architecture for Decoder {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn kv_layout(&self, format: KvFormat, page_tokens: usize) -> KvLayout {
        KvLayout { latent_scales: self.latent_scales.clone(), ..self.spec.kv_layout(format, page_tokens) }
    }

    fn vocab(&self) -> usize {
        self.spec.vocab
    }

    fn max_tokens(&self) -> usize {
        self.spec.max_tokens
    }

    fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    fn activations(&self, backend: &dyn Backend, max_rows: usize, max_sequences: usize) -> Result<Activations, ModelError> {
        Activations::new(&self.spec, backend, max_rows, max_sequences)
    }

    fn forward(&self, queue: &mut dyn Queue, step: &StepShape<'_>) {
        let work = step.activations;
        queue.enqueue(Op::Embed(Embed {
            table: self.embedding.clone(),
            tokens: step.buffers.tokens.clone(),
            out: work.hidden.clone(),
            rows: step.rows,
        }));
        let mut rows = Rows { hidden: &work.hidden, attended: &work.attended, count: step.rows };
        for (index, layer) in self.layers.iter().enumerate() {
            let last = index + 1 == self.layers.len();
            self.attention_inputs(queue, step, index, layer);
            if last && step.logits == Logits::None {
                return;
            }
            Self::attend(queue, step, index, layer);
            if let (true, Logits::Last { count }) = (last, step.logits) {
                gather(queue, step, (&work.hidden, &work.last_hidden), count, self.spec.hidden);
                gather(queue, step, (&work.attended, &work.last_attended), count, self.spec.attention.output_width());
                rows = Rows { hidden: &work.last_hidden, attended: &work.last_attended, count };
            }
            Self::second_half(queue, work, layer, &rows);
        }
        self.final_norm.enqueue(queue, rows.hidden, &work.normed, rows.count);
        self.head.enqueue(queue, &work.normed, &work.logits, rows.count, LinearMode::Store);
    }
}

/// The scale of each layer's latents: `k_scale` of a calibrated checkpoint, 1 where it says nothing.
fn latent_scales(checkpoint: &Checkpoint, spec: &ModelSpec) -> Result<StaticScales, ModelError> {
    if matches!(spec.attention, AttentionSpec::GroupedQuery(_)) {
        return Ok(StaticScales::default());
    }
    let mut scales = Vec::with_capacity(spec.layers.len());
    for layer in 0..spec.layers.len() {
        let name = format!("model.layers.{layer}.self_attn.k_scale");
        let scale = if checkpoint.has_tensor(&name) { checkpoint.vector(&name, 1)?.first().copied() } else { Some(1.0) };
        match scale.filter(|scale| scale.is_normal() && *scale > 0.0) {
            Some(scale) => scales.push(scale),
            None => return Err(CheckpointError::tensor(checkpoint.path(), &name, "is no number above 0").into()),
        }
    }
    Ok(StaticScales::new(&scales))
}

fn gather(queue: &mut dyn Queue, step: &StepShape<'_>, (x, out): (&Buffer, &Buffer), count: usize, width: usize) {
    queue.enqueue(Op::GatherRows(GatherRows { x: x.clone(), step: step.buffers.clone(), out: out.clone(), count, width }));
}

fn load_layer(loader: &mut WeightLoader<'_>, spec: &ModelSpec, index: usize, index_layer: usize) -> Result<Layer, ModelError> {
    let name = |module: &str| format!("model.layers.{index}.{module}");
    let layer = spec.layers[index];
    let (hidden, eps) = (spec.hidden, spec.norm_eps);
    let attention = match spec.attention {
        AttentionSpec::GroupedQuery(attention) => {
            Attention::GroupedQuery(GroupedQuery::load(loader, attention, index, (hidden, eps))?)
        }
        AttentionSpec::Latent(attention) => {
            Attention::Latent(Box::new(Latent::load(loader, attention, (index, layer.indexing), hidden)?))
        }
    };
    let feed_forward = match layer.feed_forward {
        FeedForwardSpec::Dense { intermediate, bias } => {
            FeedForward::Dense(GatedMlp::load(loader, &name("mlp"), (hidden, intermediate), Bias::when(bias))?)
        }
        FeedForwardSpec::Experts(experts) => FeedForward::Experts(Experts::load(loader, &name("mlp"), hidden, experts)?),
    };
    Ok(Layer {
        input_norm: Norm::load(loader, &name("input_layernorm"), hidden, eps)?,
        attention,
        index_layer,
        mlp_norm: Norm::load(loader, &name("post_attention_layernorm"), hidden, eps)?,
        feed_forward,
    })
}
