//! Parts of a specification that several architectures read alike, each value checked by itself and against the others.
//! Knows keys of configurations; not which architecture uses which part.

use millrace_ops::{RopePairs, RouteRule, RouteScoring};

use super::rope::{HeadChannels, RotaryPart};
use super::{
    AttentionSpec, ExpertsSpec, FeedForwardSpec, GroupedQuerySpec, IndexerSpec, LatentSpec, LayerSpec, ModelSpec, RopeSpec,
};
use crate::{CheckpointError, Config, Flag};

/// Experts whose scores make a group's.
const SCORED_PER_GROUP: usize = 2;
/// Largest counts that are believed; the largest models have 126 layers, 128 heads and 512 experts.
const MAX_LAYERS: usize = 1024;
const MAX_HEADS: usize = 4096;
const MAX_HEAD_DIM: usize = 4096;
const MAX_EXPERTS: usize = 4096;
/// What `layer_types` calls layers that attend to all tokens, or to those that an indexer chooses.
const FULL_ATTENTION: [&str; 4] = ["full_attention", "attention", "indexed_attention", "deepseek_sparse_attention"];
/// First layer with a window in a Qwen configuration that does not say.
const DEFAULT_WINDOWS_FROM: usize = 28;
/// Products of two widths stay far from overflow.
const MAX_WIDTH: usize = 1 << 24;

/// What every decoder has.
pub(crate) struct Outline {
    pub(crate) hidden: usize,
    pub(crate) vocab: usize,
    pub(crate) max_tokens: usize,
    pub(crate) norm_eps: f32,
    pub(crate) tied_head: bool,
    pub(crate) layers: usize,
}

/// `norm_eps`: of an architecture whose configuration does not say. Null is an error for every key whose default would change
/// what comes out: to transformers it is neither the default nor, in most, a value. It is none where it says that a value
/// follows from others (`head_dim`, `num_key_value_heads`) or a feature is off (`rope_scaling`, `sliding_window`).
///
/// # Errors
/// [`CheckpointError::Config`] with the key that is missing or impossible, [`CheckpointError::Unsupported`] for an activation
/// other than SiLU or for sliding windows; so for all functions of this file.
pub(crate) fn outline(config: &Config, norm_eps: f64) -> Result<Outline, CheckpointError> {
    config.refuse_null(&["hidden_act"])?;
    if let Some(activation) = config.text("hidden_act")?.filter(|a| *a != "silu") {
        return Err(unsupported(config, format!("hidden_act {activation}"), "silu"));
    }
    let hidden = bounded(config, "hidden_size", MAX_WIDTH)?;
    let layers = bounded(config, "num_hidden_layers", MAX_LAYERS)?;
    refuse_windows(config, layers)?;
    Ok(Outline {
        hidden,
        vocab: config.size("vocab_size")?,
        max_tokens: config.size("max_position_embeddings")?,
        norm_eps: config.positive_or("rms_norm_eps", norm_eps)? as f32,
        tied_head: config.flag("tie_word_embeddings", Flag::Off)?,
        layers,
    })
}

/// Refuses layers that attend to less than all tokens before them: by the list of their types or, where there is none, from
/// layer `max_window_layers` on.
fn refuse_windows(config: &Config, layers: usize) -> Result<(), CheckpointError> {
    let first = config.count_or("max_window_layers", DEFAULT_WINDOWS_FROM)?;
    let has_windows = has_window(config)?;
    if let Some(types) = config.texts("layer_types")? {
        if types.len() != layers {
            let why = format!("is a list of {}, but `num_hidden_layers` is {layers}", types.len());
            return Err(config.wrong("layer_types", why));
        }
        return match types.iter().find(|kind| !FULL_ATTENTION.contains(kind)) {
            None => Ok(()),
            Some(other) => {
                let what = format!("attention of the type {}", other.chars().take(64).collect::<String>());
                Err(unsupported(config, what, "full attention in every layer"))
            }
        };
    }
    if has_windows && first < layers { Err(windows(config)) } else { Ok(()) }
}

/// Refuses windows that an architecture has in all layers or none.
pub(crate) fn refuse_any_window(config: &Config) -> Result<(), CheckpointError> {
    if has_window(config)? { Err(windows(config)) } else { Ok(()) }
}

/// A window that is left out has a default width; one that is null is none.
fn has_window(config: &Config) -> Result<bool, CheckpointError> {
    let is_off = config.has("sliding_window") && config.value("sliding_window").is_none();
    Ok(config.flag("use_sliding_window", Flag::Off)? && !is_off)
}

fn windows(config: &Config) -> CheckpointError {
    unsupported(config, "sliding-window attention".to_owned(), "full attention in every layer")
}

impl Outline {
    /// A model of this outline.
    pub(crate) fn model(&self, attention: AttentionSpec, layer: impl FnMut(usize) -> LayerSpec) -> ModelSpec {
        ModelSpec {
            hidden: self.hidden,
            vocab: self.vocab,
            max_tokens: self.max_tokens,
            norm_eps: self.norm_eps,
            tied_head: self.tied_head,
            attention,
            layers: (0..self.layers).map(layer).collect(),
            prediction_layers: 0,
            skipped: Vec::new(),
        }
    }
}

/// Grouped-query attention without biases or head norms; an architecture sets what it has. `part`: of heads, that is rotated.
pub(crate) fn grouped_query(config: &Config, hidden: usize, part: RotaryPart) -> Result<GroupedQuerySpec, CheckpointError> {
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
    let rope = RopeSpec::read(config, &HeadChannels { count: head_dim, pairs: RopePairs::Halves, part })?;
    Ok(GroupedQuerySpec { heads, kv_heads, head_dim, rope, input_bias: false, output_bias: false, head_norms: false })
}

/// Attention over latents, dense.
pub(crate) fn latent(config: &Config) -> Result<LatentSpec, CheckpointError> {
    let heads = bounded(config, "num_attention_heads", MAX_HEADS)?;
    let kv_heads = config.optional_size("num_key_value_heads")?.unwrap_or(heads);
    if kv_heads != heads {
        return Err(config.wrong("num_key_value_heads", format!("is {kv_heads}; attention over latents has {heads} of both")));
    }
    let rotary = bounded(config, "qk_rope_head_dim", MAX_HEAD_DIM)?;
    if !rotary.is_multiple_of(2) {
        return Err(config.wrong("qk_rope_head_dim", format!("is {rotary}, not an even number")));
    }
    let interleaved = pairs(config, "rope_interleave")?;
    let query_rank = config.optional_size("q_lora_rank")?;
    if let Some(rank) = query_rank.filter(|rank| *rank > MAX_WIDTH) {
        return Err(config.wrong("q_lora_rank", format!("is {rank}, more than {MAX_WIDTH}")));
    }
    Ok(LatentSpec {
        heads,
        query_rank,
        latent: bounded(config, "kv_lora_rank", MAX_WIDTH)?,
        plain: bounded(config, "qk_nope_head_dim", MAX_HEAD_DIM)?,
        rotary,
        value: bounded(config, "v_head_dim", MAX_HEAD_DIM)?,
        rope: RopeSpec::read(config, &HeadChannels { count: rotary, pairs: interleaved, part: RotaryPart::Whole })?,
        bias: config.flag("attention_bias", Flag::Off)?,
        indexer: None,
    })
}

/// The indexer of sparse attention over latents. It chooses no more tokens than a context has.
pub(crate) fn indexer(config: &Config, latent: &LatentSpec, max_tokens: usize) -> Result<IndexerSpec, CheckpointError> {
    if latent.query_rank.is_none() {
        return Err(config.wrong("q_lora_rank", "is missing; the indexer reads compressed queries"));
    }
    let width = bounded(config, "index_head_dim", MAX_HEAD_DIM)?;
    if width < latent.rotary {
        let rotary = latent.rotary;
        return Err(config.wrong("index_head_dim", format!("is {width}, less than the {rotary} channels that are rotated")));
    }
    Ok(IndexerSpec {
        heads: bounded(config, "index_n_heads", MAX_HEADS)?,
        width,
        limit: bounded(config, "index_topk", MAX_WIDTH)?.min(max_tokens),
        pairs: pairs(config, "indexer_rope_interleave")?,
    })
}

/// A dense feed-forward layer without biases.
pub(crate) fn dense(config: &Config) -> Result<FeedForwardSpec, CheckpointError> {
    Ok(FeedForwardSpec::Dense { intermediate: bounded(config, "intermediate_size", MAX_WIDTH)?, bias: false })
}

/// Experts chosen by softmax, none shared (Qwen).
pub(crate) fn softmax_experts(config: &Config) -> Result<ExpertsSpec, CheckpointError> {
    let (experts, top_k) = expert_counts(config)?;
    let normalize = config.flag("norm_topk_prob", Flag::Off)?;
    Ok(ExpertsSpec {
        experts,
        top_k,
        intermediate: bounded(config, "moe_intermediate_size", MAX_WIDTH)?,
        shared_intermediate: 0,
        rule: RouteRule { scoring: RouteScoring::Softmax, groups: 1, top_groups: 1, normalize, scale: 1.0 },
        correction_bias: false,
    })
}

/// What transformers takes where a configuration leaves a key out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertDefaults {
    pub(crate) groups: usize,
    pub(crate) top_groups: usize,
    pub(crate) scale: f64,
}

/// Experts chosen by sigmoid scores with a correction bias, in groups, beside a shared one (DeepSeek-V3 and its kin).
pub(crate) fn sigmoid_experts(config: &Config, defaults: ExpertDefaults) -> Result<ExpertsSpec, CheckpointError> {
    let (experts, top_k) = expert_counts(config)?;
    config.refuse_null(&["scoring_func", "topk_method"])?;
    for (key, wanted) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        if let Some(other) = config.text(key)?.filter(|said| *said != wanted) {
            return Err(unsupported(config, format!("{key} {other}"), wanted));
        }
    }
    let groups = config.size_or("n_group", defaults.groups)?;
    let top_groups = config.size_or("topk_group", defaults.top_groups)?;
    if groups > experts || !experts.is_multiple_of(groups) {
        return Err(config.wrong("n_group", format!("is {groups}, which does not divide {experts} experts")));
    }
    if experts / groups < SCORED_PER_GROUP {
        return Err(config.wrong("n_group", format!("is {groups} for {experts} experts; a group is judged by its best two")));
    }
    let open = (experts / groups).saturating_mul(top_groups);
    if top_groups > groups || top_k > open {
        let why = format!("is {top_groups} of {groups} groups, which leaves {open} experts to choose {top_k} from");
        return Err(config.wrong("topk_group", why));
    }
    let intermediate = bounded(config, "moe_intermediate_size", MAX_WIDTH)?;
    let shared = config.count_or("n_shared_experts", 1)?;
    let shared_intermediate = shared.saturating_mul(intermediate);
    if shared_intermediate > MAX_WIDTH {
        return Err(config.wrong("n_shared_experts", format!("is {shared}, together wider than {MAX_WIDTH}")));
    }
    let normalize = config.flag("norm_topk_prob", Flag::On)?;
    let scale = config.positive_or("routed_scaling_factor", defaults.scale)? as f32;
    let rule = RouteRule { scoring: RouteScoring::Sigmoid, groups, top_groups, normalize, scale };
    Ok(ExpertsSpec { experts, top_k, intermediate, shared_intermediate, rule, correction_bias: true })
}

/// A line for the prediction layers that the configuration names, and their number.
pub(crate) fn prediction_layers(config: &Config) -> Result<(usize, Option<String>), CheckpointError> {
    let count = match config.optional_count("num_nextn_predict_layers")? {
        Some(count) => count,
        None => config.optional_count("num_mtp_layers")?.unwrap_or(0),
    };
    if count > MAX_LAYERS {
        return Err(config.wrong("num_nextn_predict_layers", format!("is {count}, more than {MAX_LAYERS}")));
    }
    let layers = if count == 1 { "layer" } else { "layers" };
    let line = (count > 0).then(|| format!("multi-token prediction ({count} {layers} that the config names) is skipped"));
    Ok((count, line))
}

pub(crate) fn unsupported(config: &Config, what: String, instead: &str) -> CheckpointError {
    CheckpointError::unsupported(config.path(), what, format!("use a checkpoint with {instead}"))
}

/// (experts, chosen per row)
fn expert_counts(config: &Config) -> Result<(usize, usize), CheckpointError> {
    let keys = ["n_routed_experts", "num_experts", "num_local_experts"];
    config.refuse_null(&keys)?;
    let mut given = keys.into_iter().filter(|key| config.has(key));
    let key = given.next().unwrap_or("num_experts");
    let experts = bounded(config, key, MAX_EXPERTS)?;
    for other in given {
        if bounded(config, other, MAX_EXPERTS)? != experts {
            return Err(config.wrong(other, format!("is another number than the {experts} of `{key}`")));
        }
    }
    let top_k = config.size("num_experts_per_tok")?;
    if top_k > experts {
        return Err(config.wrong("num_experts_per_tok", format!("is {top_k} of {experts} experts")));
    }
    Ok((experts, top_k))
}

fn pairs(config: &Config, key: &str) -> Result<RopePairs, CheckpointError> {
    Ok(if config.flag(key, Flag::On)? { RopePairs::Adjacent } else { RopePairs::Halves })
}

fn bounded(config: &Config, key: &str, limit: usize) -> Result<usize, CheckpointError> {
    let value = config.size(key)?;
    if value > limit {
        return Err(config.wrong(key, format!("is {value}, more than {limit}")));
    }
    Ok(value)
}
