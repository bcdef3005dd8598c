//! Tiny models made from a seed: a checkpoint in a directory that is gone once the model is loaded. The simulator loads what a server
//! loads, by the same code. Knows no device.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use millrace_core::StageRecipe;
use millrace_model::{Architecture, Checkpoint, WeightCache, load};
use millrace_ops::Backend;

use crate::SimError;
use crate::rng::Rng;

/// Ids of both engines' models.
pub(crate) const VOCAB: u32 = 128;
/// Longest context that the CPU engine's model takes, and the fake engine's.
pub(crate) const MAX_TOKENS: u32 = 512;
pub(crate) const FAKE_MAX_TOKENS: u32 = 8_192;

const HIDDEN: usize = 128;
const HEADS: usize = 4;
const HEAD_DIM: usize = 32;
const INTERMEDIATE: usize = 128;
/// Tokens hang on the weights, so a repository of expected ones would have to change with it.
const WEIGHT_SEED: u64 = 20_260_101;

/// What a model is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) layers: usize,
    pub(crate) max_tokens: u32,
}

/// A Llama with random weights, on a backend.
///
/// # Errors
/// There is no room for its files, or the backend refuses it.
pub(crate) fn tiny(backend: &dyn Backend, size: Size) -> Result<(Arc<dyn Architecture>, String), SimError> {
    let directory = tempfile::tempdir().map_err(SimError::Checkpoint)?;
    write(directory.path(), size).map_err(SimError::Checkpoint)?;
    let checkpoint = Checkpoint::open(directory.path()).map_err(millrace_model::ModelError::from)?;
    let model = load(&checkpoint, backend, StageRecipe::Stored, &mut WeightCache::default())?;
    Ok((model.into(), checkpoint.digest().to_owned()))
}

fn write(directory: &Path, Size { layers, max_tokens }: Size) -> std::io::Result<()> {
    let config = format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": {VOCAB}, "hidden_size": {HIDDEN},
            "intermediate_size": {INTERMEDIATE}, "num_hidden_layers": {layers}, "num_attention_heads": {HEADS},
            "num_key_value_heads": 1, "head_dim": {HEAD_DIM}, "hidden_act": "silu", "max_position_embeddings": {max_tokens},
            "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
            "eos_token_id": 2, "rope_theta": 10000.0, "torch_dtype": "bfloat16"}}"#
    );
    std::fs::write(directory.join("config.json"), config)?;
    std::fs::write(directory.join("model.safetensors"), tensors(layers))
}

/// A safetensors file: length of the header, header, BF16 numbers.
fn tensors(layers: usize) -> Vec<u8> {
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB as usize, HIDDEN])];
    for layer in 0..layers {
        let mut add = |name: &str, shape: &[usize]| shapes.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        add("input_layernorm", &[HIDDEN]);
        add("self_attn.q_proj", &[HEADS * HEAD_DIM, HIDDEN]);
        add("self_attn.k_proj", &[HEAD_DIM, HIDDEN]);
        add("self_attn.v_proj", &[HEAD_DIM, HIDDEN]);
        add("self_attn.o_proj", &[HIDDEN, HEADS * HEAD_DIM]);
        add("post_attention_layernorm", &[HIDDEN]);
        add("mlp.gate_proj", &[INTERMEDIATE, HIDDEN]);
        add("mlp.up_proj", &[INTERMEDIATE, HIDDEN]);
        add("mlp.down_proj", &[HIDDEN, INTERMEDIATE]);
    }
    shapes.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    shapes.push(("lm_head.weight".to_owned(), vec![VOCAB as usize, HIDDEN]));
    let (mut header, mut data, mut rng) = (String::from("{"), Vec::new(), Rng::new(WEIGHT_SEED));
    for (name, shape) in &shapes {
        let begin = data.len();
        let count: usize = shape.iter().product();
        let is_norm = shape.len() == 1;
        // Rows of unit length keep numbers of one size through the layers; what attention adds must be able to change the token.
        let scale = if name.contains("embed") { 1.7 } else { 1.7 / (shape[shape.len() - 1] as f32).sqrt() };
        for _ in 0..count {
            let value = if is_norm { 1.0 } else { scale * (rng.below(2001) as f32 / 1000.0 - 1.0) };
            // BF16 is the upper half of an f32.
            data.extend_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
        }
        let comma = if header.len() > 1 { "," } else { "" };
        // Writing to a string does not fail.
        let _ = write!(header, r#"{comma}"{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{begin},{}]}}"#, data.len());
    }
    header.push('}');
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    file
}
