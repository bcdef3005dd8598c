//! Model architectures behind one object-safe trait, and the list of those that are built in. Knows no device, page owner or
//! policy; a new architecture is a new module that reads a specification from a configuration, and a line in [`KNOWN`].

mod deepseek_v3;
mod glm4_moe;
mod glm_moe_dsa;
mod kimi_k2;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3_moe;

use millrace_core::StageRecipe;
use millrace_ops::{Backend, KvCache, KvFormat, KvLayout, Queue, StepBuffers};

use crate::check::{PartKeys, check};
use crate::layers::{Activations, Decoder};
use crate::spec::ModelSpec;
use crate::{Checkpoint, CheckpointError, Config, ModelError, WeightCache};

/// A loaded model. It owns weights and nothing else: pages, step buffers and activations are handed in.
pub trait Architecture: Send + Sync {
    /// What the model is made of.
    fn spec(&self) -> &ModelSpec;

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

struct Entry {
    /// Model classes and types of hub configurations, GGUF architectures.
    names: &'static [&'static str],
    /// Names of others that are computed alike, so that a configuration may give one of each.
    alike: &'static [&'static str],
    spec: fn(&Config) -> Result<ModelSpec, CheckpointError>,
    keys: PartKeys,
}

const KNOWN: [Entry; 8] = [
    Entry { names: &["LlamaForCausalLM", "llama"], alike: &[], spec: llama::spec, keys: llama::KEYS },
    Entry { names: &["Qwen2ForCausalLM", "qwen2"], alike: &[], spec: qwen2::spec, keys: PartKeys::NONE },
    Entry { names: &["Qwen3ForCausalLM", "qwen3"], alike: &[], spec: qwen3::spec, keys: qwen3::KEYS },
    Entry { names: &["Qwen3MoeForCausalLM", "qwen3_moe"], alike: &[], spec: qwen3_moe::spec, keys: qwen3_moe::KEYS },
    Entry {
        names: &["DeepseekV3ForCausalLM", "deepseek_v3"],
        alike: &["KimiK2ForCausalLM", "kimi_k2"],
        spec: deepseek_v3::spec,
        keys: deepseek_v3::KEYS,
    },
    Entry {
        names: &["KimiK25ForConditionalGeneration", "kimi_k25", "KimiK2ForCausalLM", "kimi_k2"],
        alike: &["DeepseekV3ForCausalLM", "deepseek_v3"],
        spec: kimi_k2::spec,
        keys: deepseek_v3::KEYS,
    },
    Entry { names: &["Glm4MoeForCausalLM", "glm4_moe"], alike: &[], spec: glm4_moe::spec, keys: glm4_moe::KEYS },
    Entry { names: &["GlmMoeDsaForCausalLM", "glm_moe_dsa"], alike: &[], spec: glm_moe_dsa::spec, keys: glm_moe_dsa::KEYS },
];

/// Names that a checkpoint's configuration may give.
pub fn known_architectures() -> Vec<&'static str> {
    KNOWN.iter().flat_map(|entry| entry.names).copied().collect()
}

/// Checks the whole configuration without reading weights.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`], or [`CheckpointError::Config`] for impossible values.
pub fn spec_of(config: &Config) -> Result<ModelSpec, ModelError> {
    Ok((entry_of(config)?.spec)(config)?)
}

fn entry_of(config: &Config) -> Result<&'static Entry, ModelError> {
    let found = config.architecture();
    let entry = KNOWN.iter().find(|entry| entry.names.contains(&found)).ok_or_else(|| ModelError::UnknownArchitecture {
        path: config.path().to_path_buf(),
        found: brief(found),
        known: known_architectures().join(", "),
    })?;
    let agrees = |name: &str| entry.names.contains(&name) || entry.alike.contains(&name);
    match config.also_named().find(|(_, name)| !agrees(name)) {
        None => Ok(entry),
        Some((key, name)) => {
            Err(config.contradiction(key, format!("is `{}`, but the architecture is `{found}`", brief(name))).into())
        }
    }
}

fn brief(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Checks the names and shapes of all tensors against the configuration without reading weights; gives a line for the log
/// where tensors have no use and none is known for them.
///
/// # Errors
/// As for [`load`], but for what only weights show.
pub fn unused_tensors(checkpoint: &Checkpoint) -> Result<Option<String>, ModelError> {
    let entry = entry_of(checkpoint.config())?;
    Ok(check(checkpoint, &(entry.spec)(checkpoint.config())?, &entry.keys)?)
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
    unused_tensors(checkpoint)?;
    let spec = spec_of(checkpoint.config())?;
    Ok(Box::new(Decoder::load(spec, checkpoint, backend, recipe, cache)?))
}

#[cfg(test)]
mod tests;
