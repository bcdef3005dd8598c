//! Which tensors are projections that may be quantized, told by their hub names. Knows no format and no file.
//!
//! A tensor is one where all of this holds; everything else keeps what it is stored in:
//! - it is `MODULE.weight` of a layer of the text model: `model.layers.N.`, within a wrapper `language_model.model.layers.N.`;
//! - its last part is the name of a projection: `.._proj`, `kv_a_proj_with_mqa`, the indexer's `wq_b` and `wk`, `w1` to `w3`;
//! - it is no norm, embedding, head, router (`mlp.gate`, `.._gate`, `router`), and none of the small projections whose
//!   output selects something: `weights_proj` of the indexer, `eh_proj` of a prediction layer.

/// What a projection belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Attention,
    Indexer,
    /// A feed-forward block, or a shared expert.
    Dense,
    /// One of the experts that a router chooses among.
    RoutedExpert,
}

/// Projections whose names do not end in `_proj`.
const OTHER_PROJECTIONS: [&str; 6] = ["kv_a_proj_with_mqa", "wq_b", "wk", "w1", "w2", "w3"];
/// Small projections whose outputs choose or join; quantized checkpoints of their models leave them.
const NEVER: [&str; 3] = ["weights_proj", "indexers_proj", "eh_proj"];
/// What may stand before `layers` in the text model's names.
const TEXT_MODEL: [&str; 4] = ["model", "language_model", "text_model", "transformer"];

/// The part that the projection `MODULE.weight` belongs to; None for everything that is never quantized.
pub(super) fn part_of(tensor: &str) -> Option<Part> {
    let parts: Vec<&str> = tensor.strip_suffix(".weight")?.split('.').collect();
    let layers = parts.iter().position(|&part| part == "layers")?;
    let (before, rest) = (parts.get(..layers)?, parts.get(layers.checked_add(2)?..)?);
    let numbered = parts.get(layers.checked_add(1)?).is_some_and(|index| is_number(index));
    if !numbered || !before.iter().all(|part| TEXT_MODEL.contains(part)) {
        return None;
    }
    let last = rest.last()?;
    let protected = rest.iter().any(|part| ["norm", "embed", "router"].iter().any(|word| part.contains(word)));
    if protected || NEVER.contains(last) || last.ends_with("_gate") {
        return None;
    }
    if !last.ends_with("_proj") && !OTHER_PROJECTIONS.contains(last) {
        return None;
    }
    let routed = rest.windows(2).any(|pair| matches!(pair, ["experts", index] if is_number(index)));
    Some(match rest.first()? {
        _ if routed => Part::RoutedExpert,
        _ if rest.contains(&"indexer") => Part::Indexer,
        first if first.contains("attn") || first.contains("attention") => Part::Attention,
        _ => Part::Dense,
    })
}

/// `model.layers.12` of a tensor in layer 12; None outside of layers.
pub(super) fn layer_of(tensor: &str) -> Option<&str> {
    let (before, after) = tensor.split_once("layers.")?;
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 || !(before.is_empty() || before.ends_with('.')) {
        return None;
    }
    tensor.get(..before.len().checked_add("layers.".len())?.checked_add(digits)?)
}

/// What many programs load together as one tensor, by a name for it: the experts of a layer, q/k/v, gate and up, the two
/// projections to latents. None for a projection that stands alone.
pub(super) fn loaded_as_one(tensor: &str) -> Option<String> {
    if part_of(tensor)? == Part::RoutedExpert {
        return tensor.split_once(".experts.").map(|(before, _)| format!("{before}.experts"));
    }
    let (before, last) = tensor.strip_suffix(".weight")?.rsplit_once('.')?;
    let together = ["q_proj k_proj v_proj", "gate_proj up_proj", "q_a_proj kv_a_proj_with_mqa"];
    let names = together.into_iter().find(|names| names.split(' ').any(|name| name == last))?;
    Some(format!("{before}.({})", names.replace(' ', "|")))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projections_by_part() {
        let cases = [
            ("self_attn.q_proj", Part::Attention),
            ("self_attn.kv_a_proj_with_mqa", Part::Attention),
            ("self_attn.indexer.wq_b", Part::Indexer),
            ("self_attn.indexer.wk", Part::Indexer),
            ("mlp.gate_proj", Part::Dense),
            ("mlp.shared_experts.down_proj", Part::Dense),
            ("mlp.experts.17.up_proj", Part::RoutedExpert),
            ("block_sparse_moe.experts.0.w2", Part::RoutedExpert),
        ];
        for (module, wanted) in cases {
            for prefix in ["model.layers.3", "language_model.model.layers.61"] {
                assert_eq!(part_of(&format!("{prefix}.{module}.weight")), Some(wanted), "{prefix} {module}");
            }
        }
    }

    #[test]
    fn what_is_never_quantized() {
        let layer = [
            "mlp.gate.weight",
            "mlp.gate.e_score_correction_bias",
            "mlp.shared_expert_gate.weight",
            "mlp.router.proj.weight",
            "self_attn.q_proj.bias",
            "self_attn.q_proj.weight_scale_inv",
            "self_attn.q_a_layernorm.weight",
            "self_attn.q_norm.weight",
            "self_attn.indexer.weights_proj.weight",
            "self_attn.indexers_proj.weight",
            "self_attn.indexer.k_norm.weight",
            "input_layernorm.weight",
            "eh_proj.weight",
            "embed_tokens.weight",
            "shared_head.head.weight",
        ];
        let names = layer.iter().map(|name| format!("model.layers.4.{name}"));
        let outside = [
            "model.embed_tokens.weight",
            "lm_head.weight",
            "language_model.lm_head.weight",
            "model.norm.weight",
            "vision_tower.encoder.layers.2.self_attn.q_proj.weight",
            "model.visual.layers.2.mlp.up_proj.weight",
            "mm_projector.up_proj.weight",
            "model.layers.x.self_attn.q_proj.weight",
            "model.layers",
            "layers.weight",
            "",
        ];
        for name in names.chain(outside.map(str::to_owned)) {
            assert_eq!(part_of(&name), None, "{name}");
        }
    }

    #[test]
    fn what_is_loaded_as_one() {
        let cases = [
            ("mlp.experts.3.up_proj", Some("mlp.experts")),
            ("mlp.experts.12.down_proj", Some("mlp.experts")),
            ("self_attn.k_proj", Some("self_attn.(q_proj|k_proj|v_proj)")),
            ("mlp.shared_experts.up_proj", Some("mlp.shared_experts.(gate_proj|up_proj)")),
            ("self_attn.q_a_proj", Some("self_attn.(q_a_proj|kv_a_proj_with_mqa)")),
            ("mlp.down_proj", None),
            ("mlp.gate", None),
        ];
        for (module, wanted) in cases {
            let whole = loaded_as_one(&format!("model.layers.0.{module}.weight"));
            assert_eq!(whole, wanted.map(|whole| format!("model.layers.0.{whole}")), "{module}");
        }
    }

    #[test]
    fn layers_by_name() {
        assert_eq!(layer_of("language_model.model.layers.12.mlp.gate.weight"), Some("language_model.model.layers.12"));
        assert_eq!(layer_of("layers.1.x"), Some("layers.1"));
        for name in ["model.norm.weight", "model.layers.x", "sublayers.1.x", ""] {
            assert_eq!(layer_of(name), None, "{name}");
        }
    }
}
