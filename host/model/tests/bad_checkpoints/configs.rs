//! Values of config.json: names that contradict each other, and nulls.

use serde_json::{Value, json};

use super::common::hub::Hub;
use super::{Case, common, refusal, refuse};

/// A fixture with another value at `key`, `table.key` for one in a table; `None` takes the key out.
pub(super) fn changed(fixture: &str, key: &str, value: Option<Value>) -> Hub {
    let mut hub = Hub::open(&common::fixture(fixture));
    let (table, key) = key.split_once('.').map_or((None, key), |(table, key)| (Some(table), key));
    let object = match table {
        Some(table) => &mut hub.config[table],
        None => &mut hub.config,
    };
    match value {
        Some(value) => _ = object.as_object_mut().unwrap().insert(key.to_owned(), value),
        None => _ = object.as_object_mut().unwrap().remove(key),
    }
    hub
}

/// Why a changed fixture is refused, if it is.
pub(super) fn answer(hub: &Hub) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    hub.write(directory.path());
    refusal(directory.path())
}

#[test]
fn names_that_contradict_each_other() {
    let llama = |says, key: &'static str, name: &'static str| {
        Case::changed("a name of another architecture", says, "llama-bf16", move |hub| hub.config[key] = json!(name))
    };
    let kimi = |says: &'static [&'static str], key: &'static str, name: &'static str| {
        Case::changed("a text model of another architecture", says, "kimi_k25-int4", move |hub| {
            hub.config["text_config"][key] = if key == "architectures" { json!([name]) } else { json!(name) };
        })
    };
    refuse(vec![
        llama(&["config.json", "`model_type` is `mamba`, but the architecture is `LlamaForCausalLM`"], "model_type", "mamba"),
        llama(&["`model_type` is `qwen2`, but the architecture is `LlamaForCausalLM`"], "model_type", "qwen2"),
        llama(&["`model_type` is `kimi_k2`, but"], "model_type", "kimi_k2"),
        llama(&["`architectures` is `\"LlamaForCausalLM\"`, not a list of strings"], "architectures", "LlamaForCausalLM"),
        Case::changed("a model type that is a number", &["`model_type` is `7`, not a string"], "llama-bf16", |hub| {
            hub.config["model_type"] = json!(7);
        }),
        kimi(&["`text_config.model_type` is `llama`, but the architecture is `KimiK25"], "model_type", "llama"),
        kimi(&["`text_config.architectures` is `LlamaForCausalLM`, but"], "architectures", "LlamaForCausalLM"),
        Case::changed("a wrapper of another type", &["`model_type` is `llava`, but the"], "kimi_k25-int4", |hub| {
            hub.config["model_type"] = json!("llava");
        }),
    ]);
}

#[test]
fn names_that_agree() {
    let cases = [
        ("llama-bf16", "architectures", None),
        ("llama-bf16", "architectures", Some(json!([]))),
        ("llama-bf16", "architectures", Some(Value::Null)),
        ("llama-bf16", "model_type", None),
        ("llama-bf16", "model_type", Some(json!(""))),
        // Kimi K2 as it is published.
        ("odd-deepseek_v3", "model_type", Some(json!("kimi_k2"))),
        ("odd-deepseek_v3", "architectures", Some(json!(["KimiK2ForCausalLM"]))),
        ("kimi_k25-int4", "model_type", None),
        ("kimi_k25-int4", "text_config.model_type", Some(json!("deepseek_v3"))),
        ("kimi_k25-int4", "text_config.architectures", Some(json!(["DeepseekV3ForCausalLM"]))),
        ("kimi_k25-int4", "text_config.model_type", None),
    ];
    for (fixture, key, value) in cases {
        assert_eq!(answer(&changed(fixture, key, value.clone())), None, "{fixture} {key} {value:?}");
    }
}

/// Keys whose null transformers 5.24 refuses, or takes for something else than a missing key.
const NULLS: [&str; 11] = [
    "hidden_size",
    "vocab_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "tie_word_embeddings",
    "rope_theta",
    "use_sliding_window",
    "max_window_layers",
];
/// Likewise of architectures with attention over latents.
const LATENT_NULLS: [&str; 18] = [
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "n_routed_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "intermediate_size",
    "n_group",
    "topk_group",
    "n_shared_experts",
    "routed_scaling_factor",
    "norm_topk_prob",
    "first_k_dense_replace",
    "scoring_func",
    "topk_method",
    "rope_interleave",
];
/// Likewise of one architecture, by fixture.
const OWN_NULLS: [(&str, &[&str]); 7] = [
    (
        "llama-bf16",
        &[
            "attention_bias",
            "intermediate_size",
            "mlp_bias",
            "rope_scaling.rope_type",
            "rope_scaling.factor",
            "rope_scaling.low_freq_factor",
            "rope_scaling.original_max_position_embeddings",
        ],
    ),
    ("odd-qwen2", &["head_dim", "intermediate_size", "rope_parameters.rope_theta", "rope_parameters.rope_type"]),
    (
        "odd-qwen3",
        &["attention_bias", "head_dim", "rope_parameters.truncate", "rope_parameters.original_max_position_embeddings"],
    ),
    (
        "odd-qwen3_moe",
        &[
            "head_dim",
            "num_key_value_heads",
            "num_experts",
            "num_local_experts",
            "num_experts_per_tok",
            "norm_topk_prob",
            "decoder_sparse_step",
            "moe_intermediate_size",
        ],
    ),
    (
        "odd-glm4_moe",
        &[
            "head_dim",
            "num_key_value_heads",
            "use_qk_norm",
            "n_group",
            "topk_group",
            "n_shared_experts",
            "routed_scaling_factor",
            "norm_topk_prob",
            "first_k_dense_replace",
            "partial_rotary_factor",
            "rope_parameters.partial_rotary_factor",
        ],
    ),
    ("odd-deepseek_v3", &["attention_bias", "moe_layer_freq"]),
    (
        "odd-glm_5_2",
        &["num_key_value_heads", "index_topk", "index_head_dim", "index_n_heads", "q_lora_rank", "indexer_rope_interleave"],
    ),
];

#[test]
fn nulls_that_say_nothing() {
    let mut failures = Vec::new();
    for (fixture, own) in OWN_NULLS {
        let latent = LATENT_NULLS.iter().filter(|_| ["odd-deepseek_v3", "odd-glm_5_2"].contains(&fixture));
        for key in NULLS.iter().chain(own).chain(latent) {
            let mut hub = changed(fixture, key, Some(Value::Null));
            if let ("rope_theta" | "partial_rotary_factor", Some(table)) = (*key, hub.config.get_mut("rope_parameters")) {
                // Said beside the table, it counts where the table says nothing.
                table.as_object_mut().unwrap().remove(*key);
            }
            let message = answer(&hub).unwrap_or_default();
            if !(message.contains(&format!("`{key}` is null")) || message.contains(&format!("`{key}` is missing"))) {
                failures.push(format!("{fixture} {key}: {message}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // The schedule of indexers is read where no list says more.
    for key in ["index_topk_freq", "index_skip_topk_offset"] {
        let mut hub = changed("odd-glm_5_2", key, Some(Value::Null));
        hub.config["indexer_types"] = Value::Null;
        let message = answer(&hub).unwrap();
        assert!(message.contains(&format!("`{key}` is null")), "{message}");
    }
}

/// Nulls by which transformers means that a value follows from others or that a feature is off.
#[test]
fn nulls_that_mean_the_default() {
    let cases = [
        ("llama-bf16", "rope_scaling"),
        ("llama-bf16", "sliding_window"),
        ("llama-bf16", "layer_types"),
        ("llama-bf16", "head_dim"),
        ("llama-bf16", "quantization_config"),
        ("llama-bf16", "partial_rotary_factor"),
        ("odd-qwen2", "num_key_value_heads"),
        ("odd-qwen3", "rope_parameters.attention_factor"),
        ("odd-qwen3", "rope_parameters.beta_fast"),
        ("odd-qwen3", "rope_parameters.beta_slow"),
        ("odd-qwen3", "rope_parameters.mscale"),
        ("odd-qwen3", "rope_parameters.factor"),
        ("odd-deepseek_v3", "q_lora_rank"),
        ("odd-deepseek_v3", "num_key_value_heads"),
        ("odd-deepseek_v3", "num_nextn_predict_layers"),
        ("odd-glm_5_2", "mlp_layer_types"),
        ("odd-glm_5_2", "index_topk_pattern"),
    ];
    for (fixture, key) in cases {
        assert_eq!(answer(&changed(fixture, key, Some(Value::Null))), None, "{fixture} {key}");
    }
}
