//! GLM-4.5 to 4.7: grouped-query attention with partly rotary heads, DeepSeek's experts behind the first dense layers.
//! Source: Glm4MoeForCausalLM of transformers.

use super::deepseek_v3;
use crate::check::PartKeys;
use crate::spec::read::ExpertDefaults;
use crate::spec::rope::RotaryPart;
use crate::spec::{AttentionSpec, GroupedQuerySpec, Indexing, LayerSpec, ModelSpec, read};
use crate::{CheckpointError, Config, Flag};

const EXPERTS: ExpertDefaults = ExpertDefaults { groups: 1, top_groups: 1, scale: 1.0 };
/// Keys that put parts into a layer or leave them out.
pub(super) const KEYS: PartKeys = PartKeys {
    biased: &["q_proj", "k_proj", "v_proj"],
    head_norms: &["use_qk_norm"],
    sparsity: &["first_k_dense_replace"],
    shared: &["n_shared_experts"],
    ..PartKeys::NONE
};

pub(super) fn spec(config: &Config) -> Result<ModelSpec, CheckpointError> {
    let outline = read::outline(config, 1e-5)?;
    config.refuse_null(&["num_key_value_heads", "head_dim"])?;
    let attention = GroupedQuerySpec {
        input_bias: config.flag("attention_bias", Flag::Off)?,
        head_norms: config.flag("use_qk_norm", Flag::Off)?,
        ..read::grouped_query(config, outline.hidden, RotaryPart::Of(0.5))?
    };
    let dense_layers = config.count_or("first_k_dense_replace", 1)?;
    let feed_forward = deepseek_v3::feed_forward(config, EXPERTS, outline.layers, |layer| layer >= dense_layers)?;
    let (prediction_layers, skipped) = read::prediction_layers(config)?;
    let model = outline.model(AttentionSpec::GroupedQuery(attention), |layer| LayerSpec {
        indexing: Indexing::Dense,
        feed_forward: feed_forward(layer),
    });
    Ok(ModelSpec { prediction_layers, skipped: skipped.into_iter().collect(), ..model })
}
