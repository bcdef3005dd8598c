//! Kimi K2: DeepSeek-V3 with YaRN and without expert groups; and the text core of K2.5's wrapper, whose configuration and
//! tensors the checkpoint has unwrapped. Source: Moonshot's model card of Kimi K2, DeepseekV3ForCausalLM of transformers.

use super::deepseek_v3;
use crate::spec::ModelSpec;
use crate::{CheckpointError, Config};

pub(super) fn spec(config: &Config) -> Result<ModelSpec, CheckpointError> {
    let mut model = deepseek_v3::spec(config)?;
    if config.is_wrapped() {
        model.skipped.push("the vision tower that the wrapper's config names is skipped: text only".to_owned());
    }
    Ok(model)
}
