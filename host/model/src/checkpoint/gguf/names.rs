//! GGUF's names of tensors and configuration values, and the hub's names for the same. Knows no architecture's needs.

/// (hub key of config.json, GGUF key after `{architecture}.`).
pub(super) const SIZES: [(&str, &str); 8] = [
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("vocab_size", "vocab_size"),
];

pub(super) const REALS: [(&str, &str); 2] =
    [("rms_norm_eps", "attention.layer_norm_rms_epsilon"), ("rope_theta", "rope.freq_base")];

const OUTER: [(&str, &str); 3] = [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

const INNER: [(&str, &str); 9] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// A hub key with GGUF's key for it, for messages.
pub(super) fn spelled(hub: &str) -> String {
    match SIZES.iter().chain(&REALS).find(|(name, _)| *name == hub) {
        Some((_, gguf)) => format!("{hub} (GGUF: {gguf})"),
        None => hub.to_owned(),
    }
}

/// The hub's name of a GGUF tensor; None for one that the hub has no name for (it keeps its own).
pub(super) fn hub_name(gguf: &str) -> Option<String> {
    let (module, part) = gguf.rsplit_once('.')?;
    if part != "weight" && part != "bias" {
        return None;
    }
    if let Some((_, hub)) = OUTER.iter().find(|(name, _)| *name == module) {
        return Some(format!("{hub}.{part}"));
    }
    let (layer, module) = module.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (_, hub) = INNER.iter().find(|(name, _)| *name == module)?;
    Some(format!("model.layers.{layer}.{hub}.{part}"))
}

/// Whether GGUF's `llama` architecture stores this tensor's rows with rotary pairs side by side (other architectures store q
/// and k as the hub does).
pub(super) fn has_rotary_rows(hub: &str) -> bool {
    hub.contains(".self_attn.q_proj.") || hub.contains(".self_attn.k_proj.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_llama_family() {
        let cases = [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output_norm.weight", "model.norm.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
            ("blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
            ("blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"),
            ("blk.3.attn_v.weight", "model.layers.3.self_attn.v_proj.weight"),
            ("blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight"),
            ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
            ("blk.3.ffn_gate.weight", "model.layers.3.mlp.gate_proj.weight"),
            ("blk.3.ffn_up.weight", "model.layers.3.mlp.up_proj.weight"),
            ("blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight"),
        ];
        for (gguf, hub) in cases {
            assert_eq!(hub_name(gguf).as_deref(), Some(hub));
        }
        for odd in ["rope_freqs.weight", "blk.x.attn_q.weight", "blk.1.attn_q", "blk..attn_q.weight", "", "."] {
            assert_eq!(hub_name(odd), None, "{odd}");
        }
    }
}
