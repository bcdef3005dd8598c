//! Qwen2 (and 2.5): a Llama whose q, k and v have biases. Source: Qwen2ForCausalLM of transformers.

use crate::spec::rope::RotaryPart;
use crate::spec::{AttentionSpec, Indexing, LayerSpec, ModelSpec, read};
use crate::{CheckpointError, Config};

pub(super) fn spec(config: &Config) -> Result<ModelSpec, CheckpointError> {
    let outline = read::outline(config, 1e-6)?;
    config.refuse_null(&["head_dim"])?;
    let mut attention = read::grouped_query(config, outline.hidden, RotaryPart::Whole)?;
    attention.input_bias = true;
    let layer = LayerSpec { indexing: Indexing::Dense, feed_forward: read::dense(config)? };
    Ok(outline.model(AttentionSpec::GroupedQuery(attention), |_| layer))
}
