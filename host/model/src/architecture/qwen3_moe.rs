//! Qwen3-MoE: Qwen3's attention, and experts chosen by softmax in all layers but those that the configuration keeps dense.
//! Source: Qwen3MoeForCausalLM of transformers.

use super::qwen3;
use crate::check::PartKeys;
use crate::spec::{AttentionSpec, FeedForwardSpec, Indexing, LayerSpec, ModelSpec, read};
use crate::{CheckpointError, Config};

/// Keys that put parts into a layer or leave them out.
pub(super) const KEYS: PartKeys = PartKeys { sparsity: &["decoder_sparse_step", "mlp_only_layers"], ..qwen3::KEYS };

pub(super) fn spec(config: &Config) -> Result<ModelSpec, CheckpointError> {
    let outline = read::outline(config, 1e-6)?;
    config.refuse_null(&["num_key_value_heads"])?;
    read::refuse_any_window(config)?;
    let attention = qwen3::attention(config, outline.hidden)?;
    let experts = FeedForwardSpec::Experts(read::softmax_experts(config)?);
    // Every so many layers have experts, but for those listed as dense.
    let every = config.size_or("decoder_sparse_step", 1)?;
    let listed = config.counts("mlp_only_layers")?.unwrap_or_default();
    let is_dense = |layer: usize| listed.contains(&layer) || !(layer + 1).is_multiple_of(every);
    let dense = if (0..outline.layers).any(is_dense) { Some(read::dense(config)?) } else { None };
    Ok(outline.model(AttentionSpec::GroupedQuery(attention), |layer| {
        let feed_forward = dense.filter(|_| is_dense(layer)).unwrap_or(experts);
        LayerSpec { indexing: Indexing::Dense, feed_forward }
    }))
}
