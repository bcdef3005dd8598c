//! The values that a Llama is made of, read from a checkpoint's configuration and checked against each other.
//! Reads keys of transformers before and since version 5 (`rope_theta` and `rope_scaling`, or `rope_parameters`).

use crate::architecture::ModelFacts;
use crate::checkpoint::Flag;
use crate::{CheckpointError, Config};

/// Largest counts that are believed; the largest Llama has 126 layers and 128 heads.
const MAX_LAYERS: usize = 1024;
const MAX_HEADS: usize = 4096;
const MAX_HEAD_DIM: usize = 4096;

/// Configuration of a Llama.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Longest context in tokens.
    pub max_tokens: usize,
    pub norm_eps: f32,
    pub rope_theta: f32,
    pub rope_scaling: RopeScaling,
    /// q, k, v and o have biases.
    pub attention_bias: bool,
    /// gate, up and down have biases.
    pub mlp_bias: bool,
    /// The head is the embedding table.
    pub tied_head: bool,
}

/// How rotary frequencies are stretched for contexts longer than trained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    None,
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, those between blended.
    Llama3 {
        factor: f32,
        low_frequency_factor: f32,
        high_frequency_factor: f32,
        original_tokens: f32,
    },
}

impl LlamaConfig {
    /// # Errors
    /// [`CheckpointError::Config`] with the key that is missing or impossible, [`CheckpointError::Unsupported`] for features
    /// that Llama checkpoints rarely have.
    pub fn new(config: &Config) -> Result<Self, CheckpointError> {
        let hidden = config.size("hidden_size")?;
        let heads = bounded(config, "num_attention_heads", MAX_HEADS)?;
        let kv_heads = config.optional_size("num_key_value_heads")?.unwrap_or(heads);
        if kv_heads > heads || !heads.is_multiple_of(kv_heads) {
            return Err(config.wrong("num_key_value_heads", format!("is {kv_heads}, which does not divide {heads} heads")));
        }
        let head_dim = match config.optional_size("head_dim")? {
            Some(said) => said,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => return Err(config.wrong("hidden_size", format!("is {hidden}, which {heads} heads do not divide"))),
        };
        if head_dim == 0 || head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(2) {
            return Err(config.wrong("head_dim", format!("is {head_dim}, not an even number up to {MAX_HEAD_DIM}")));
        }
        if let Some(activation) = config.text("hidden_act")?.filter(|a| *a != "silu") {
            return Err(unsupported(config, format!("hidden_act {activation}")));
        }
        let (rope_theta, rope_scaling) = read_rope(config)?;
        Ok(Self {
            hidden,
            intermediate: config.size("intermediate_size")?,
            layers: bounded(config, "num_hidden_layers", MAX_LAYERS)?,
            heads,
            kv_heads,
            head_dim,
            vocab: config.size("vocab_size")?,
            max_tokens: config.size("max_position_embeddings")?,
            norm_eps: config.optional_positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope_theta,
            rope_scaling,
            attention_bias: config.flag("attention_bias", Flag::Off)?,
            mlp_bias: config.flag("mlp_bias", Flag::Off)?,
            tied_head: config.flag("tie_word_embeddings", Flag::Off)?,
        })
    }

    /// Width of all queries of a row.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all keys (or values) of a row.
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    pub(crate) fn facts(&self) -> ModelFacts {
        ModelFacts {
            layers: self.layers,
            hidden: self.hidden,
            vocab: self.vocab,
            max_tokens: self.max_tokens,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }
}

fn bounded(config: &Config, key: &str, limit: usize) -> Result<usize, CheckpointError> {
    let value = config.size(key)?;
    if value > limit {
        return Err(config.wrong(key, format!("is {value}, more than {limit}")));
    }
    Ok(value)
}

fn read_rope(config: &Config) -> Result<(f32, RopeScaling), CheckpointError> {
    let parameters = config.section("rope_parameters")?;
    let said = match &parameters {
        Some(section) => section.optional_positive("rope_theta")?,
        None => None,
    };
    let theta = said.or(config.optional_positive("rope_theta")?).unwrap_or(10_000.0) as f32;
    let Some(section) = parameters.or(config.section("rope_scaling")?) else { return Ok((theta, RopeScaling::None)) };
    if section.optional_positive("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(unsupported(config, "partial_rotary_factor".to_owned()));
    }
    // The key was called `type` once.
    let kind = section.text("rope_type")?.or(section.text("type")?).unwrap_or("default");
    match kind {
        "default" => Ok((theta, RopeScaling::None)),
        "llama3" => {
            let number = |key: &str| section.positive(key).map(|n| n as f32);
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            if low >= high {
                return Err(section.wrong("low_freq_factor", format!("is {low}, not below high_freq_factor {high}")));
            }
            let scaling = RopeScaling::Llama3 {
                factor: number("factor")?,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_tokens: number("original_max_position_embeddings")?,
            };
            Ok((theta, scaling))
        }
        other => Err(unsupported(config, format!("rope scaling `{other}`"))),
    }
}

fn unsupported(config: &Config, what: String) -> CheckpointError {
    CheckpointError::unsupported(
        config.path(),
        what,
        "use a Llama with silu, whole rotary heads and rope scaling `llama3` or none",
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const BASE: &str = r#""architectures":["LlamaForCausalLM"],"hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,
        "intermediate_size":96,"num_hidden_layers":2,"vocab_size":100,"max_position_embeddings":512"#;

    fn read(more: &str) -> Result<LlamaConfig, CheckpointError> {
        LlamaConfig::new(&Config::from_json(Path::new("config.json"), &format!("{{{BASE}{more}}}")).unwrap())
    }

    #[test]
    fn old_and_new_rope_keys_mean_the_same() {
        let old = read(
            r#","rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
                "high_freq_factor":4.0,"original_max_position_embeddings":64}"#,
        );
        let new = read(
            r#","rope_parameters":{"rope_theta":500000.0,"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
                "high_freq_factor":4.0,"original_max_position_embeddings":64}"#,
        );
        let old = old.unwrap();
        assert_eq!(old, new.unwrap());
        assert_eq!(old.rope_theta, 500_000.0);
        assert_ne!(old.rope_scaling, RopeScaling::None);
        assert_eq!(read(r#","rope_theta":1e5,"rope_scaling":null"#).unwrap().rope_theta, 1e5);
        assert_eq!(read("").unwrap().rope_theta, 10_000.0);
    }

    #[test]
    fn defaults_and_head_dim() {
        let plain = read("").unwrap();
        assert_eq!((plain.head_dim, plain.query_width(), plain.key_width()), (16, 64, 32));
        assert!(!plain.tied_head && !plain.attention_bias);
        let apart = read(r#","head_dim":32,"tie_word_embeddings":true,"attention_bias":true"#).unwrap();
        assert_eq!((apart.head_dim, apart.query_width()), (32, 128));
        assert!(apart.tied_head && apart.attention_bias);
    }

    #[test]
    fn impossible_values_name_their_key() {
        // Later duplicates win in JSON, so each case spoils one value.
        let cases = [
            (r#","num_attention_heads":0"#, "num_attention_heads"),
            (r#","num_attention_heads":65536"#, "num_attention_heads"),
            (r#","num_key_value_heads":3"#, "num_key_value_heads"),
            (r#","num_key_value_heads":8"#, "num_key_value_heads"),
            (r#","num_hidden_layers":1000000"#, "num_hidden_layers"),
            (r#","hidden_size":63"#, "hidden_size"),
            (r#","head_dim":7"#, "head_dim"),
            (r#","rms_norm_eps":0"#, "rms_norm_eps"),
            (r#","vocab_size":-1"#, "vocab_size"),
            (r#","hidden_act":"gelu""#, "gelu"),
            (r#","rope_scaling":{"type":"yarn","factor":4}"#, "yarn"),
            (r#","rope_scaling":{"rope_type":"llama3"}"#, "rope_scaling.low_freq_factor"),
            (r#","rope_parameters":{"rope_theta":"x"}"#, "rope_parameters.rope_theta"),
            (r#","rope_parameters":{"partial_rotary_factor":0.5}"#, "partial_rotary_factor"),
        ];
        for (more, named) in cases {
            let message = read(more).unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
    }
}
