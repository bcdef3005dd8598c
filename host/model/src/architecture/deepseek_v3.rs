//! DeepSeek-V3 and R1: attention over latents, experts in groups behind the first dense layers.
//! Source: DeepSeek-V3 (2024), DeepseekV3ForCausalLM of transformers.

use crate::check::PartKeys;
use crate::spec::read::ExpertDefaults;
use crate::spec::{AttentionSpec, FeedForwardSpec, Indexing, LayerSpec, ModelSpec, read};
use crate::{CheckpointError, Config};

const EXPERTS: ExpertDefaults = ExpertDefaults { groups: 8, top_groups: 4, scale: 2.5 };
/// Keys that put parts into a layer or leave them out.
pub(super) const KEYS: PartKeys = PartKeys {
    biased: &["q_a_proj", "kv_a_proj_with_mqa", "o_proj"],
    compression: &["q_lora_rank"],
    sparsity: &["first_k_dense_replace", "moe_layer_freq"],
    shared: &["n_shared_experts"],
    ..PartKeys::NONE
};

pub(super) fn spec(config: &Config) -> Result<ModelSpec, CheckpointError> {
    let outline = read::outline(config, 1e-6)?;
    let attention = read::latent(config)?;
    let dense_layers = config.count_or("first_k_dense_replace", 3)?;
    let every = config.size_or("moe_layer_freq", 1)?;
    let has_experts = |layer: usize| layer >= dense_layers && layer.is_multiple_of(every);
    let feed_forward = feed_forward(config, EXPERTS, outline.layers, has_experts)?;
    let (prediction_layers, skipped) = read::prediction_layers(config)?;
    let model = outline.model(AttentionSpec::Latent(attention), |layer| LayerSpec {
        indexing: Indexing::Dense,
        feed_forward: feed_forward(layer),
    });
    Ok(ModelSpec { prediction_layers, skipped: skipped.into_iter().collect(), ..model })
}

/// Dense layers, and DeepSeek's experts where `has_experts` says so; keys of a kind that no layer has are not read.
pub(super) fn feed_forward(
    config: &Config,
    defaults: ExpertDefaults,
    layers: usize,
    has_experts: impl Fn(usize) -> bool,
) -> Result<impl Fn(usize) -> FeedForwardSpec, CheckpointError> {
    let experts = match (0..layers).any(&has_experts) {
        true => Some(FeedForwardSpec::Experts(read::sigmoid_experts(config, defaults)?)),
        false => None,
    };
    let dense = match (0..layers).all(&has_experts) {
        true => None,
        false => Some(read::dense(config)?),
    };
    let none = FeedForwardSpec::Dense { intermediate: 0, bias: false };
    Ok(move |layer: usize| if has_experts(layer) { experts } else { dense }.unwrap_or(none))
}
