//! GLM-5, 5.1 and 5.2: DeepSeek's attention over latents made sparse by an indexer, of its own in full layers, the last full
//! layer's in shared ones. Source: GlmMoeDsaForCausalLM of transformers.

use super::deepseek_v3;
use crate::check::PartKeys;
use crate::spec::read::ExpertDefaults;
use crate::spec::{AttentionSpec, Indexing, LatentSpec, LayerSpec, ModelSpec, read};
use crate::{CheckpointError, Config};

const EXPERTS: ExpertDefaults = ExpertDefaults { groups: 1, top_groups: 1, scale: 2.5 };
/// Keys that put parts into a layer or leave them out.
pub(super) const KEYS: PartKeys = PartKeys {
    indexing: &["indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"],
    sparsity: &["mlp_layer_types", "first_k_dense_replace"],
    ..deepseek_v3::KEYS
};

pub(super) fn spec(config: &Config) -> Result<ModelSpec, CheckpointError> {
    let outline = read::outline(config, 1e-5)?;
    config.refuse_null(&["num_key_value_heads"])?;
    let dense = read::latent(config)?;
    let attention = LatentSpec { indexer: Some(read::indexer(config, &dense, outline.max_tokens)?), ..dense };
    let indexing = indexing(config, outline.layers)?;
    let sparse = sparse_layers(config, outline.layers)?;
    let feed_forward =
        deepseek_v3::feed_forward(config, EXPERTS, outline.layers, |layer| sparse.get(layer).copied().unwrap_or(true))?;
    let (prediction_layers, skipped) = read::prediction_layers(config)?;
    let model = outline.model(AttentionSpec::Latent(attention), |layer| LayerSpec {
        indexing: indexing.get(layer).copied().unwrap_or(Indexing::Full),
        feed_forward: feed_forward(layer),
    });
    Ok(ModelSpec { prediction_layers, skipped: skipped.into_iter().collect(), ..model })
}

/// Who indexes in each layer: a list, a pattern of letters, or every so many layers from an offset on.
fn indexing(config: &Config, layers: usize) -> Result<Vec<Indexing>, CheckpointError> {
    let (key, said) = if let Some(types) = config.texts("indexer_types")? {
        ("indexer_types", types.into_iter().map(kind).collect())
    } else if let Some(pattern) = config.text("index_topk_pattern")? {
        ("index_topk_pattern", pattern.split("").filter(|letter| !letter.is_empty()).map(kind).collect())
    } else {
        let every = config.size_or("index_topk_freq", 1)?;
        let offset = config.count_or("index_skip_topk_offset", 2)?;
        let full = |layer: usize| (layer + 1).saturating_sub(offset).is_multiple_of(every);
        let types = (0..layers).map(|layer| Some(if full(layer) { Indexing::Full } else { Indexing::Shared }));
        ("index_topk_freq", types.collect::<Option<Vec<_>>>())
    };
    let Some(types) = said else { return Err(config.wrong(key, "holds something else than full (F) and shared (S)")) };
    if types.len() < layers {
        return Err(config.wrong(key, format!("says who indexes in {} of {layers} layers", types.len())));
    }
    if types.first() != Some(&Indexing::Full) {
        return Err(config.wrong(key, "lets the first layer share a selection that no layer before it has made"));
    }
    Ok(types)
}

fn kind(text: &str) -> Option<Indexing> {
    match text {
        "full" | "F" => Some(Indexing::Full),
        "shared" | "S" => Some(Indexing::Shared),
        _ => None,
    }
}

/// Whether each layer has experts.
fn sparse_layers(config: &Config, layers: usize) -> Result<Vec<bool>, CheckpointError> {
    let dense_layers = config.count_or("first_k_dense_replace", 3)?;
    let Some(types) = config.texts("mlp_layer_types")? else {
        return Ok((0..layers).map(|layer| layer >= dense_layers).collect());
    };
    if types.len() != layers || types.iter().any(|kind| !matches!(*kind, "dense" | "sparse")) {
        return Err(config.wrong("mlp_layer_types", format!("does not say dense or sparse of each of {layers} layers")));
    }
    Ok(types.iter().map(|kind| *kind == "sparse").collect())
}
