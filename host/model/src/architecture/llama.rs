//! The Llama architecture: RMS norm, grouped-query attention with rotary embedding, SiLU-gated MLP.
//! Source: LlamaForCausalLM of transformers. Does not know files, devices or formats of weights.
//!
//! ```text
//! tokens -> embed -> hidden
//! layer:  hidden -> norm -> [q|k|v] -> rope(q, k) -> write k, v -> attend -> o + hidden
//!         hidden -> norm -> [gate|up] -> silu(gate) * up -> down + hidden
//! hidden of the rows that draw a token -> norm -> head -> logits
//! ```
//! q, k, v are one weight, gate and up another, stacked along their rows. In the last layer everything after attention runs
//! for the rows that get logits alone, and nothing after the KV write where none does.

mod config;
mod rope;

use millrace_core::StageRecipe;
use millrace_ops::{
    Attend, Backend, Buffer, Embed, GatherRows, KvFormat, KvLayout, Linear, LinearMode, Op, Queue, RmsNorm, Rope, SiluMul,
    Weight, WriteKv,
};

pub use config::{LlamaConfig, RopeScaling};

use super::{Activations, Architecture, Logits, StepShape};
use crate::weights::{Stack, WeightLoader};
use crate::{Checkpoint, CheckpointError, ModelError, WeightCache};

/// GGUF's form of Llama 3 rope scaling: divisors of the frequencies.
const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// A loaded Llama.
pub struct LlamaModel {
    config: LlamaConfig,
    embedding: Weight,
    head: Weight,
    final_norm: Buffer,
    /// f32 `[head_dim / 2]`.
    frequencies: Buffer,
    layers: Vec<Layer>,
    weight_bytes: usize,
}

struct Layer {
    input_norm: Buffer,
    qkv: Projection,
    out: Projection,
    mlp_norm: Buffer,
    gate_up: Projection,
    down: Projection,
}

struct Projection {
    weight: Weight,
    bias: Option<Buffer>,
}

/// Where the rows of a layer's second half are: all rows of the step, or those that draw a token.
struct Rows<'a> {
    hidden: &'a Buffer,
    attended: &'a Buffer,
    count: usize,
}

impl LlamaModel {
    /// # Errors
    /// What is wrong with the checkpoint, or what the backend refuses.
    pub fn load(
        checkpoint: &Checkpoint,
        backend: &dyn Backend,
        recipe: StageRecipe,
        cache: &mut WeightCache,
    ) -> Result<Self, ModelError> {
        let config = LlamaConfig::new(checkpoint.config())?;
        let mut loader = WeightLoader::new(checkpoint, backend, recipe, cache);
        let embedding = loader.table("model.embed_tokens.weight", config.vocab, config.hidden)?;
        let head =
            if config.tied_head { embedding.clone() } else { loader.table("lm_head.weight", config.vocab, config.hidden)? };
        let final_norm = loader.vectors(&[("model.norm.weight".to_owned(), config.hidden)])?;
        let mut frequencies = rope::frequencies(&config);
        if checkpoint.has_tensor(ROPE_DIVISORS) {
            let divisors = checkpoint.vector(ROPE_DIVISORS, frequencies.len())?;
            if !divisors.iter().all(|d| d.is_normal() && *d > 0.0) {
                let why = "holds something else than numbers above 0";
                return Err(CheckpointError::tensor(checkpoint.path(), ROPE_DIVISORS, why).into());
            }
            frequencies.iter_mut().zip(divisors).for_each(|(frequency, divisor)| *frequency /= divisor);
        }
        let frequencies = loader.upload(&frequencies)?;
        // Grows with the layers that the checkpoint really holds: a missing tensor ends it.
        let mut layers = Vec::new();
        for index in 0..config.layers {
            layers.push(load_layer(&mut loader, &config, index)?);
        }
        let weight_bytes = loader.finish()?;
        Ok(Self { config, embedding, head, final_norm, frequencies, layers, weight_bytes })
    }

    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// hidden -> norm -> q|k|v -> rope -> pages.
    fn attention_inputs(&self, queue: &mut dyn Queue, step: &StepShape<'_>, index: usize, layer: &Layer) {
        let (config, work) = (&self.config, step.activations);
        let (query_width, key_width) = (config.query_width(), config.key_width());
        let stride = query_width + 2 * key_width;
        self.norm(queue, &work.hidden, &layer.input_norm, &work.normed, step.rows);
        layer.qkv.enqueue(queue, &work.normed, &work.qkv, step.rows, LinearMode::Store);
        // Keys follow the queries, so one operation rotates the heads of both.
        queue.enqueue(Op::Rope(Rope {
            x: work.qkv.clone(),
            stride,
            offset: 0,
            heads: config.heads + config.kv_heads,
            head_dim: config.head_dim,
            frequencies: self.frequencies.clone(),
            rotary: config.head_dim,
            positions: step.buffers.positions.clone(),
            rows: step.rows,
        }));
        queue.enqueue(Op::WriteKv(WriteKv {
            cache: step.cache.clone(),
            step: step.buffers.clone(),
            layer: index,
            x: work.qkv.clone(),
            stride,
            key_offset: query_width,
            value_offset: query_width + key_width,
            rows: step.rows,
            sequences: step.sequences,
        }));
    }

    fn attend(&self, queue: &mut dyn Queue, step: &StepShape<'_>, index: usize) {
        let (config, work) = (&self.config, step.activations);
        queue.enqueue(Op::Attend(Attend {
            cache: step.cache.clone(),
            step: step.buffers.clone(),
            layer: index,
            x: work.qkv.clone(),
            stride: config.query_width() + 2 * config.key_width(),
            query_offset: 0,
            heads: config.heads,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
            out: work.attended.clone(),
            rows: step.rows,
            sequences: step.sequences,
        }));
    }

    /// attended -> o + hidden; hidden -> norm -> gate|up -> down + hidden.
    fn second_half(&self, queue: &mut dyn Queue, work: &Activations, layer: &Layer, rows: &Rows<'_>) {
        layer.out.enqueue(queue, rows.attended, rows.hidden, rows.count, LinearMode::Add);
        self.norm(queue, rows.hidden, &layer.mlp_norm, &work.normed, rows.count);
        layer.gate_up.enqueue(queue, &work.normed, &work.gate_up, rows.count, LinearMode::Store);
        queue.enqueue(Op::SiluMul(SiluMul {
            x: work.gate_up.clone(),
            out: work.gated.clone(),
            rows: rows.count,
            width: self.config.intermediate,
        }));
        layer.down.enqueue(queue, &work.gated, rows.hidden, rows.count, LinearMode::Add);
    }

    fn norm(&self, queue: &mut dyn Queue, x: &Buffer, weight: &Buffer, out: &Buffer, rows: usize) {
        queue.enqueue(Op::RmsNorm(RmsNorm {
            x: x.clone(),
            weight: weight.clone(),
            out: out.clone(),
            rows,
            width: self.config.hidden,
            eps: self.config.norm_eps,
        }));
    }
}

impl Architecture for LlamaModel {
    fn kv_layout(&self, format: KvFormat, page_tokens: usize) -> KvLayout {
        KvLayout::grouped_query(self.config.layers, self.config.kv_heads, self.config.head_dim, page_tokens, format)
    }

    fn vocab(&self) -> usize {
        self.config.vocab
    }

    fn max_tokens(&self) -> usize {
        self.config.max_tokens
    }

    fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    fn activations(&self, backend: &dyn Backend, max_rows: usize, max_sequences: usize) -> Result<Activations, ModelError> {
        let config = &self.config;
        let buffer = |rows: usize, width: usize| backend.allocate(rows.saturating_mul(width).saturating_mul(4));
        Ok(Activations {
            logits: buffer(max_sequences, config.vocab)?,
            hidden: buffer(max_rows, config.hidden)?,
            normed: buffer(max_rows, config.hidden)?,
            qkv: buffer(max_rows, config.query_width() + 2 * config.key_width())?,
            attended: buffer(max_rows, config.query_width())?,
            gate_up: buffer(max_rows, 2 * config.intermediate)?,
            gated: buffer(max_rows, config.intermediate)?,
            last_hidden: buffer(max_sequences, config.hidden)?,
            last_attended: buffer(max_sequences, config.query_width())?,
        })
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
            self.attend(queue, step, index);
            if let (true, Logits::Last { count }) = (last, step.logits) {
                gather(queue, step, (&work.hidden, &work.last_hidden), count, self.config.hidden);
                gather(queue, step, (&work.attended, &work.last_attended), count, self.config.query_width());
                rows = Rows { hidden: &work.last_hidden, attended: &work.last_attended, count };
            }
            self.second_half(queue, work, layer, &rows);
        }
        self.norm(queue, rows.hidden, &self.final_norm, &work.normed, rows.count);
        let head = Projection { weight: self.head.clone(), bias: None };
        head.enqueue(queue, &work.normed, &work.logits, rows.count, LinearMode::Store);
    }
}

impl Projection {
    fn enqueue(&self, queue: &mut dyn Queue, x: &Buffer, out: &Buffer, rows: usize, mode: LinearMode) {
        queue.enqueue(Op::Linear(Linear {
            x: x.clone(),
            weight: self.weight.clone(),
            bias: self.bias.clone(),
            out: out.clone(),
            rows,
            mode,
        }));
    }
}

fn gather(queue: &mut dyn Queue, step: &StepShape<'_>, (x, out): (&Buffer, &Buffer), count: usize, width: usize) {
    queue.enqueue(Op::GatherRows(GatherRows { x: x.clone(), step: step.buffers.clone(), out: out.clone(), count, width }));
}

fn load_layer(loader: &mut WeightLoader<'_>, config: &LlamaConfig, index: usize) -> Result<Layer, ModelError> {
    let name = |module: &str| format!("model.layers.{index}.{module}");
    let (queries, keys) = (config.query_width(), config.key_width());
    let qkv = [(name("self_attn.q_proj"), queries), (name("self_attn.k_proj"), keys), (name("self_attn.v_proj"), keys)];
    let gate_up = [(name("mlp.gate_proj"), config.intermediate), (name("mlp.up_proj"), config.intermediate)];
    let (attention_bias, mlp_bias) = (config.attention_bias, config.mlp_bias);
    Ok(Layer {
        input_norm: loader.vectors(&[(name("input_layernorm.weight"), config.hidden)])?,
        qkv: load_projection(loader, &qkv, config.hidden, attention_bias)?,
        out: load_projection(loader, &[(name("self_attn.o_proj"), config.hidden)], queries, attention_bias)?,
        mlp_norm: loader.vectors(&[(name("post_attention_layernorm.weight"), config.hidden)])?,
        gate_up: load_projection(loader, &gate_up, config.hidden, mlp_bias)?,
        down: load_projection(loader, &[(name("mlp.down_proj"), config.hidden)], config.intermediate, mlp_bias)?,
    })
}

/// Modules (name, rows) stacked along their rows, and their biases where the model has them.
fn load_projection(
    loader: &mut WeightLoader<'_>,
    modules: &[(String, usize)],
    cols: usize,
    biased: bool,
) -> Result<Projection, ModelError> {
    let part = |suffix: &str| modules.iter().map(|(name, rows)| (format!("{name}.{suffix}"), *rows)).collect::<Vec<_>>();
    let weight = loader.linear(&Stack { parts: part("weight"), cols })?;
    let bias = if biased { Some(loader.vectors(&part("bias"))?) } else { None };
    Ok(Projection { weight, bias })
}
