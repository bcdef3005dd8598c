//! Llama: grouped-query attention, SiLU-gated MLP, biases where the configuration says so.
//! Source: LlamaForCausalLM of transformers.

use crate::check::PartKeys;
use crate::spec::rope::RotaryPart;
use crate::spec::{AttentionSpec, FeedForwardSpec, Indexing, LayerSpec, ModelSpec, read};
use crate::{CheckpointError, Config, Flag};

/// Keys that put parts into a layer or leave them out.
pub(super) const KEYS: PartKeys =
    PartKeys { biased: &["q_proj", "k_proj", "v_proj", "o_proj"], mlp_bias: &["mlp_bias"], ..PartKeys::NONE };

pub(super) fn spec(config: &Config) -> Result<ModelSpec, CheckpointError> {
    let outline = read::outline(config, 1e-6)?;
    let mut attention = read::grouped_query(config, outline.hidden, RotaryPart::Whole)?;
    let biased = config.flag("attention_bias", Flag::Off)?;
    (attention.input_bias, attention.output_bias) = (biased, biased);
    let mut feed_forward = read::dense(config)?;
    if let FeedForwardSpec::Dense { bias, .. } = &mut feed_forward {
        *bias = config.flag("mlp_bias", Flag::Off)?;
    }
    let layer = LayerSpec { indexing: Indexing::Dense, feed_forward };
    Ok(outline.model(AttentionSpec::GroupedQuery(attention), |_| layer))
}
