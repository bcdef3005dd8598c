//! Numbers of config.json at the edges: each by itself, and those that do not go together.

use serde_json::{Value, json};

use super::common::hub::Hub;
use super::configs::{answer, changed};
use super::{Case, common, refusal, refuse};
use millrace_model::{Checkpoint, spec_of};

const SIZES: [(&str, &[&str]); 5] = [
    (
        "llama-bf16",
        &[
            "hidden_size",
            "vocab_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "max_position_embeddings",
        ],
    ),
    ("odd-qwen3_moe", &["num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"]),
    ("odd-glm4_moe", &["n_routed_experts", "n_group", "topk_group", "num_experts_per_tok"]),
    ("odd-deepseek_v3", &["kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "moe_layer_freq"]),
    ("odd-glm_5_2", &["index_topk", "index_head_dim", "index_n_heads", "q_lora_rank"]),
];
/// Sizes that may be 0.
const COUNTS: [(&str, &[&str]); 2] = [
    ("odd-deepseek_v3", &["first_k_dense_replace", "n_shared_experts", "num_nextn_predict_layers"]),
    ("odd-qwen2", &["max_window_layers"]),
];
const REALS: [(&str, &[&str]); 4] = [
    (
        "llama-bf16",
        &[
            "rms_norm_eps",
            "rope_theta",
            "rope_scaling.factor",
            "rope_scaling.low_freq_factor",
            "rope_scaling.high_freq_factor",
            "rope_scaling.original_max_position_embeddings",
        ],
    ),
    (
        "odd-qwen3",
        &[
            "rope_parameters.rope_theta",
            "rope_parameters.factor",
            "rope_parameters.attention_factor",
            "rope_parameters.beta_fast",
            "rope_parameters.beta_slow",
            "rope_parameters.original_max_position_embeddings",
        ],
    ),
    ("odd-glm4_moe", &["rope_parameters.partial_rotary_factor", "routed_scaling_factor"]),
    ("odd-deepseek_v3", &["routed_scaling_factor"]),
];

/// Numbers that no model has: each is refused by its key, from the configuration alone, in one line.
#[test]
fn numbers_at_the_edges() {
    let sizes =
        [json!(-1), json!(-4), json!(1e30), json!(1u64 << 40), json!(u64::MAX), json!(2.5), json!("4"), json!([4]), json!(true)];
    let reals =
        [json!(0), json!(-1.0), json!(-0.0), json!(1e300), json!(1e-300), json!("NaN"), json!("inf"), json!([1.0]), json!(false)];
    let mut failures = Vec::new();
    let mut check = |fixture: &str, key: &str, value: &Value| {
        let mut hub = changed(fixture, key, Some(value.clone()));
        if key == "num_experts" || key == "n_routed_experts" {
            hub.config.as_object_mut().unwrap().remove("num_local_experts");
        }
        let directory = tempfile::tempdir().unwrap();
        hub.write(directory.path());
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let message = spec_of(checkpoint.config()).err().map_or_else(|| "it was taken".to_owned(), |error| error.to_string());
        if !message.contains(&format!("config `{key}` ")) || message.contains('\n') {
            failures.push(format!("{fixture} {key} {value}: {message}"));
        }
    };
    for (fixture, keys) in SIZES.into_iter().chain(COUNTS) {
        keys.iter().for_each(|key| sizes.iter().for_each(|value| check(fixture, key, value)));
    }
    for (fixture, keys) in SIZES {
        keys.iter().for_each(|key| check(fixture, key, &json!(0)));
    }
    for (fixture, keys) in REALS {
        keys.iter().for_each(|key| reals.iter().for_each(|value| check(fixture, key, value)));
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// A value for a key, `table.key` for one in a table.
fn set(wrong: &'static str, says: &'static [&'static str], fixture: &'static str, key: &'static str, value: Value) -> Case {
    Case::changed(wrong, says, fixture, move |hub: &mut Hub| *hub = changed(fixture, key, Some(value.clone())))
}

/// Values that are numbers each, and none together.
#[test]
fn numbers_that_do_not_go_together() {
    refuse(vec![
        set(
            "more layers than are believed",
            &["`num_hidden_layers` is 1025, more than 1024"],
            "llama-bf16",
            "num_hidden_layers",
            json!(1025),
        ),
        set("an odd head", &["`head_dim` is 31, not an even number"], "llama-bf16", "head_dim", json!(31)),
        set(
            "groups of one expert",
            &["`n_group` is 6 for 6 experts; a group is judged by its best two"],
            "odd-deepseek_v3",
            "n_group",
            json!(6),
        ),
        set(
            "two numbers of experts",
            &["`num_local_experts` is another number than the 6 of `n_routed_experts`"],
            "odd-deepseek_v3",
            "num_local_experts",
            json!(7),
        ),
        Case::changed("windows of a width that is left out", &["sliding-window attention"], "llama-bf16", |hub| {
            hub.config["use_sliding_window"] = json!(true);
            hub.config["max_window_layers"] = json!(1);
        }),
        set(
            "types of fewer layers",
            &["`layer_types` is a list of 1, but `num_hidden_layers` is 2"],
            "odd-qwen2",
            "layer_types",
            json!(["full_attention"]),
        ),
        set(
            "layers that attend to chunks",
            &["attention of the type chunked_attention"],
            "odd-qwen2",
            "layer_types",
            json!(["full_attention", "chunked_attention"]),
        ),
    ]);
}

#[test]
fn numbers_of_rotary_embeddings() {
    refuse(vec![
        set("a base below 1", &["`rope_theta` is 0.5, less than 1"], "llama-bf16", "rope_theta", json!(0.5)),
        set(
            "a factor that makes infinite frequencies",
            &["rope_parameters.factor", "no finite frequencies"],
            "odd-llama",
            "rope_parameters.factor",
            json!(1e-38),
        ),
        set(
            "scores beyond f32",
            &["rope_parameters.factor", "no finite"],
            "odd-deepseek_v3",
            "rope_parameters.mscale_all_dim",
            json!(1e30),
        ),
        set(
            "heads that are rotated in part",
            &["`partial_rotary_factor` is 0.5; heads of LlamaForCausalLM are rotated whole"],
            "llama-bf16",
            "partial_rotary_factor",
            json!(0.5),
        ),
        set(
            "more of a head than there is",
            &["partial_rotary_factor", "is 1.5"],
            "odd-glm4_moe",
            "rope_parameters.partial_rotary_factor",
            json!(1.5),
        ),
        set(
            "two rope tables",
            &["`rope_parameters` says something else than `rope_scaling`"],
            "odd-llama",
            "rope_scaling",
            json!({ "rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0 }),
        ),
        set(
            "two original contexts",
            &["original_max_position_embeddings` is 64, but beside the table it is 32"],
            "llama-bf16",
            "original_max_position_embeddings",
            json!(32),
        ),
        set(
            "DeepSeek's scale beside another scaling",
            &["mscale_all_dim"],
            "llama-bf16",
            "rope_scaling.mscale_all_dim",
            json!(1.0),
        ),
        set(
            "YaRN without its factor",
            &["`rope_parameters.factor` is missing"],
            "odd-qwen3",
            "rope_parameters",
            json!({ "rope_type": "yarn", "rope_theta": 1000.0, "original_max_position_embeddings": 32 }),
        ),
    ]);
}

/// Windows that begin behind the last layer, or that are off.
#[test]
fn windows_that_no_layer_has() {
    for (key, value) in [("max_window_layers", json!(2)), ("sliding_window", Value::Null), ("use_sliding_window", json!(false))] {
        let mut hub = Hub::open(&common::fixture("llama-bf16"));
        let windows = [("use_sliding_window", json!(true)), ("sliding_window", json!(8)), ("max_window_layers", json!(0))];
        for (key, value) in windows.into_iter().chain([(key, value)]) {
            hub.config[key] = value;
        }
        assert_eq!(answer(&hub), None, "{key}");
    }
}

/// JSON as Python writes it where a number is none.
#[test]
fn numbers_that_are_no_json() {
    for word in ["NaN", "Infinity", "-Infinity", "1e400"] {
        let directory = tempfile::tempdir().unwrap();
        let hub = Hub::open(&common::fixture("llama-bf16"));
        hub.write(directory.path());
        let text = hub.config.to_string().replace("500000.0", word);
        assert!(text.contains(word), "{text}");
        std::fs::write(directory.path().join("config.json"), text).unwrap();
        let message = refusal(directory.path()).unwrap();
        assert!(message.contains("config.json") && message.contains("line 1 column"), "{message}");
    }
}
