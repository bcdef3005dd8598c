//! Model architectures behind one object-safe trait, and the list of those that are built in. Knows no device, page owner or
//! policy; a new architecture is a new module and a line in [`KNOWN`].

pub(crate) mod llama;

use millrace_core::StageRecipe;
use millrace_ops::{Backend, Buffer, KvCache, KvFormat, KvLayout, Queue, StepBuffers};

use crate::{Checkpoint, CheckpointError, Config, ModelError, WeightCache};
use llama::{LlamaConfig, LlamaModel};

/// A loaded model. It owns weights and nothing else: pages, step buffers and activations are handed in.
pub trait Architecture: Send + Sync {
    /// Layout of a page of `page_tokens` tokens, a multiple of 16.
    fn kv_layout(&self, format: KvFormat, page_tokens: usize) -> KvLayout;

    /// Logits per row.
    fn vocab(&self) -> usize;

    /// Longest context in tokens.
    fn max_tokens(&self) -> usize;

    /// Device bytes of weights and vectors; weights shared with another stage are counted here too.
    fn weight_bytes(&self) -> usize;

    /// Working memory for steps of at most `max_rows` rows that give at most `max_sequences` rows of logits. A step with
    /// [`Logits::All`] needs as many of those as it has rows.
    ///
    /// # Errors
    /// [`ModelError::Backend`] out of memory.
    fn activations(&self, backend: &dyn Backend, max_rows: usize, max_sequences: usize) -> Result<Activations, ModelError>;

    /// Enqueues everything from embedding to logits; tag checks, uploads and sampling are the caller's. Nothing fails here: a
    /// step that is larger than its activations or step buffers makes the backend fail its submission.
    fn forward(&self, queue: &mut dyn Queue, step: &StepShape<'_>);
}

/// Working memory of one engine's steps; every buffer is f32, row-major.
#[derive(Debug, Clone)]
pub struct Activations {
    /// `[max_sequences, vocab]`.
    pub logits: Buffer,
    /// `[max_rows, hidden]`: the residual stream.
    pub(crate) hidden: Buffer,
    /// `[max_rows, hidden]`.
    pub(crate) normed: Buffer,
    /// `[max_rows, (heads + 2 * kv_heads) * head_dim]`: queries, keys, values.
    pub(crate) qkv: Buffer,
    /// `[max_rows, heads * head_dim]`.
    pub(crate) attended: Buffer,
    /// `[max_rows, 2 * intermediate]`.
    pub(crate) gate_up: Buffer,
    /// `[max_rows, intermediate]`.
    pub(crate) gated: Buffer,
    /// `[max_sequences, hidden]`: `hidden` of the rows that draw a token.
    pub(crate) last_hidden: Buffer,
    /// `[max_sequences, heads * head_dim]`: `attended` of the same.
    pub(crate) last_attended: Buffer,
}

/// Which rows of a step get logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logits {
    /// None: a prefill chunk that is not its prompt's last.
    None,
    /// The last row of each segment that a sampler names, in the samplers' order.
    Last { count: usize },
    /// Every row, in the step's order.
    All,
}

/// One step: what it reads and how large it is. With the model it settles the list of operations.
#[derive(Debug, Clone, Copy)]
pub struct StepShape<'a> {
    pub buffers: &'a StepBuffers,
    pub cache: &'a KvCache,
    pub activations: &'a Activations,
    pub rows: usize,
    pub sequences: usize,
    pub logits: Logits,
}

/// What a configuration says about a model before its weights are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFacts {
    pub layers: usize,
    pub hidden: usize,
    pub vocab: usize,
    /// Longest context in tokens.
    pub max_tokens: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

struct Entry {
    /// Model class of hub configurations, GGUF architecture.
    names: [&'static str; 2],
    facts: fn(&Config) -> Result<ModelFacts, CheckpointError>,
    load: Load,
}

type Load = fn(&Checkpoint, &dyn Backend, StageRecipe, &mut WeightCache) -> Result<Box<dyn Architecture>, ModelError>;

const KNOWN: [Entry; 1] = [Entry {
    names: ["LlamaForCausalLM", "llama"],
    facts: |config| Ok(LlamaConfig::new(config)?.facts()),
    load: |checkpoint, backend, recipe, cache| Ok(Box::new(LlamaModel::load(checkpoint, backend, recipe, cache)?)),
}];

/// Names that a checkpoint's configuration may give.
pub fn known_architectures() -> Vec<&'static str> {
    KNOWN.iter().flat_map(|entry| entry.names).collect()
}

/// Checks the whole configuration without reading weights.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`], or [`CheckpointError::Config`] for impossible values.
pub fn facts(checkpoint: &Checkpoint) -> Result<ModelFacts, ModelError> {
    Ok((entry(checkpoint)?.facts)(checkpoint.config())?)
}

/// Loads the checkpoint's model with `recipe` on `backend`. `cache` belongs to that backend.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`], what is wrong with the checkpoint, or what the backend refuses.
pub fn load(
    checkpoint: &Checkpoint,
    backend: &dyn Backend,
    recipe: StageRecipe,
    cache: &mut WeightCache,
) -> Result<Box<dyn Architecture>, ModelError> {
    (entry(checkpoint)?.load)(checkpoint, backend, recipe, cache)
}

fn entry(checkpoint: &Checkpoint) -> Result<&'static Entry, ModelError> {
    let found = checkpoint.config().architecture();
    KNOWN.iter().find(|entry| entry.names.contains(&found)).ok_or_else(|| ModelError::UnknownArchitecture {
        path: checkpoint.path().to_path_buf(),
        found: found.chars().take(64).collect(),
        known: known_architectures().join(", "),
    })
}
