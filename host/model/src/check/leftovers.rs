//! Tensors of a file that the model has no use for: parts that contradict the configuration, known companions that change
//! nothing, and the rest. Knows names; which keys rule a part, an architecture says.

use std::collections::BTreeSet;

use super::keys::{PartKeys, given};
use super::layer_part;
use crate::spec::ModelSpec;
use crate::{Checkpoint, CheckpointError};

/// Modules of a layer that some architecture here computes with, beside those of experts.
const MODULES: [&str; 22] = [
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "self_attn.q_a_proj",
    "self_attn.q_a_layernorm",
    "self_attn.q_b_proj",
    "self_attn.kv_a_proj_with_mqa",
    "self_attn.kv_a_layernorm",
    "self_attn.kv_b_proj",
    "self_attn.indexer.wq_b",
    "self_attn.indexer.wk",
    "self_attn.indexer.k_norm",
    "self_attn.indexer.weights_proj",
    "mlp.gate",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];
const EXPERTS: [&str; 2] = ["mlp.experts.", "mlp.shared_experts."];
/// Last parts of names that hold values of a module.
const VALUES: [&str; 4] = ["weight", "weight_packed", "bias", "e_score_correction_bias"];
const BIASES_OUTSIDE: [&str; 3] = ["model.embed_tokens.bias", "model.norm.bias", "lm_head.bias"];
/// Beginnings of parts that only a layer for multi-token prediction has.
const PREDICTION: [&str; 5] = ["eh_proj.", "enorm.", "hnorm.", "shared_head.", "embed_tokens."];
const LAYER_COUNTS: &[&str] = &["num_hidden_layers", "num_nextn_predict_layers"];
/// Last parts of names that change no result here: scales of activations and of other programs' caches, rotary tables that
/// the configuration gives as well, orders of columns beside weights that are stored in their own.
const QUIET: [&str; 17] = [
    "inv_freq",
    "cos_cached",
    "sin_cached",
    "k_scale",
    "v_scale",
    "q_scale",
    "kv_scale",
    "prob_scale",
    "k_zero_point",
    "v_zero_point",
    "input_scale",
    "activation_scale",
    "output_scale",
    "input_zero_point",
    "output_zero_point",
    "input_global_scale",
    "g_idx",
];
/// First or second parts of names that belong to other models in the same file.
const OTHER_MODELS: [&str; 8] =
    ["vision_tower", "vision_model", "visual", "mm_projector", "multi_modal_projector", "audio_tower", "mtp", "mtp_layers"];
/// Names that the line for the log gives.
const SHOWN: usize = 3;

/// What an unclaimed tensor is.
enum Use {
    /// Known to change nothing.
    None,
    /// A part that these keys leave out of the model; without keys, one that the architecture does not have.
    Denied(&'static [&'static str]),
    Unknown,
}

/// A line for the log where there are tensors that nothing here knows.
///
/// # Errors
/// [`CheckpointError::Tensor`] for the first part that contradicts the configuration.
pub(super) fn judge(
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    keys: &PartKeys,
    unclaimed: &BTreeSet<&str>,
) -> Result<Option<String>, CheckpointError> {
    let mut unknown = Vec::new();
    for &stored in unclaimed {
        match use_of(checkpoint, spec, keys, stored) {
            Use::Denied(keys) if !is_blank(checkpoint, stored) => {
                let why = match keys {
                    [] => format!("is in the file, but {} has no such part", checkpoint.config().architecture()),
                    keys => format!("is in the file, but the config leaves it out by {}", given(checkpoint.config(), keys)),
                };
                return Err(checkpoint.tensor_error(stored, why));
            }
            Use::Denied(_) | Use::None => {}
            Use::Unknown => unknown.push(stored),
        }
    }
    Ok(line(&unknown))
}

fn use_of(checkpoint: &Checkpoint, spec: &ModelSpec, keys: &PartKeys, stored: &str) -> Use {
    if is_quiet(stored) {
        return Use::None;
    }
    let Some(name) = checkpoint.text_name(stored) else { return Use::Unknown };
    // GGUF files hold nothing that their readers do not compute with.
    if name.starts_with("blk.") || BIASES_OUTSIDE.contains(&name) {
        return Use::Denied(&[]);
    }
    let Some((index, part)) = layer_part(name) else { return Use::Unknown };
    match spec.layers.get(index) {
        // Layers behind the model's were checked to be those for prediction.
        None => Use::None,
        Some(_) if PREDICTION.iter().any(|known| part.starts_with(known)) => Use::Denied(LAYER_COUNTS),
        Some(layer) if is_known(part) => Use::Denied(keys.denying(part, &layer.feed_forward)),
        Some(_) => Use::Unknown,
    }
}

fn is_quiet(stored: &str) -> bool {
    let mut parts = stored.split('.');
    let is_other = |part: Option<&str>| part.is_some_and(|part| OTHER_MODELS.contains(&part));
    is_other(parts.next()) || is_other(parts.next()) || stored.rsplit('.').next().is_some_and(|last| QUIET.contains(&last))
}

/// Whether `part` of a layer holds values that some architecture here computes with.
fn is_known(part: &str) -> bool {
    let Some((module, last)) = part.rsplit_once('.') else { return false };
    VALUES.contains(&last) && (MODULES.contains(&module) || EXPERTS.iter().any(|experts| part.starts_with(experts)))
}

/// Whether it is a bias of zeros, as some converters write for every projection.
fn is_blank(checkpoint: &Checkpoint, stored: &str) -> bool {
    let Some(name) = checkpoint.text_name(stored).filter(|name| name.ends_with("bias")) else { return false };
    let Some(view) = checkpoint.tensor(name).ok().filter(|view| view.rows == 1) else { return false };
    let mut values = vec![0.0; view.cols];
    view.row_values(0, &mut values);
    values.iter().all(|value| *value == 0.0)
}

fn line(unknown: &[&str]) -> Option<String> {
    let shown: Vec<String> = unknown.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    let (shown, more) = (shown.join(", "), unknown.len().saturating_sub(SHOWN));
    match (unknown.len(), more) {
        (0, _) => None,
        (1, _) => Some(format!("1 tensor of the checkpoint is not used: {shown}")),
        (count, 0) => Some(format!("{count} tensors of the checkpoint are not used: {shown}")),
        (count, more) => Some(format!("{count} tensors of the checkpoint are not used: {shown} and {more} more")),
    }
}
