//! Qwen3: each head's query and key normed before it is rotated, heads wider than hidden / heads.
//! Source: Qwen3ForCausalLM of transformers.

use crate::check::PartKeys;
use crate::spec::rope::RotaryPart;
use crate::spec::{AttentionSpec, GroupedQuerySpec, Indexing, LayerSpec, ModelSpec, read};
use crate::{CheckpointError, Config, Flag};

/// Heads of Qwen3 that say nothing of their width have this one.
const DEFAULT_HEAD_DIM: u64 = 128;

/// Keys that put parts into a layer or leave them out.
pub(super) const KEYS: PartKeys = PartKeys { biased: &["q_proj", "k_proj", "v_proj", "o_proj"], ..PartKeys::NONE };

pub(super) fn spec(config: &Config) -> Result<ModelSpec, CheckpointError> {
    let outline = read::outline(config, 1e-6)?;
    let mut wide = config.clone();
    wide.set_missing("head_dim", DEFAULT_HEAD_DIM.into());
    let attention = attention(&wide, outline.hidden)?;
    let layer = LayerSpec { indexing: Indexing::Dense, feed_forward: read::dense(config)? };
    Ok(outline.model(AttentionSpec::GroupedQuery(attention), |_| layer))
}

/// Also of Qwen3's mixture of experts.
pub(super) fn attention(config: &Config, hidden: usize) -> Result<GroupedQuerySpec, CheckpointError> {
    config.refuse_null(&["head_dim"])?;
    let biased = config.flag("attention_bias", Flag::Off)?;
    let plain = read::grouped_query(config, hidden, RotaryPart::Whole)?;
    Ok(GroupedQuerySpec { input_bias: biased, output_bias: biased, head_norms: true, ..plain })
}
