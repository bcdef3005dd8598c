//! Two directories for one lane: checkpoints of one model in two formats agree, others say what differs.

mod common;

use std::fs;

use common::fixture;
use millrace_model::{AgreementError, Checkpoint, Disagreement, TokenizerAgreement, check_agreement};
use serde_json::{Value, json};
use tempfile::TempDir;

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&fixture(name)).unwrap()
}

/// A copy of a fixture, its configuration changed.
fn changed(name: &str, change: impl Fn(&mut Value)) -> (TempDir, Checkpoint) {
    let directory = tempfile::tempdir().unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(fixture(name).join("config.json")).unwrap()).unwrap();
    change(&mut config);
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    fs::copy(fixture(name).join("model.safetensors"), directory.path().join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    (directory, checkpoint)
}

fn disagreement(first: &Checkpoint, second: &Checkpoint) -> Disagreement {
    match check_agreement(first, second) {
        Err(AgreementError::Disagreement(disagreement)) => *disagreement,
        other => panic!("{other:?}"),
    }
}

#[test]
fn formats_of_one_model_agree() {
    for (first, second) in [("llama-bf16", "llama-fp8"), ("llama-int4", "llama-bf16"), ("glm_moe_dsa-int4", "glm_moe_dsa-int4")] {
        assert_eq!(check_agreement(&open(first), &open(second)).unwrap(), TokenizerAgreement::Same, "{first} {second}");
    }
    // A longer context and another name for the same computation are no other model.
    let (_directory, other) = changed("llama-bf16", |config| {
        config["max_position_embeddings"] = json!(1024);
        config["architectures"] = json!(["llama"]);
    });
    assert_eq!(check_agreement(&open("llama-bf16"), &other).unwrap(), TokenizerAgreement::Same);
}

#[test]
fn what_differs_is_named_with_both_values() {
    let original = open("llama-bf16");
    let cases = [
        ("hidden_size", json!(64), "hidden size", "64"),
        ("vocab_size", json!(255), "vocabulary size", "255"),
        ("num_hidden_layers", json!(1), "number of layers", "1"),
        ("num_attention_heads", json!(2), "number of attention heads", "2"),
        ("num_key_value_heads", json!(1), "number of KV heads", "1"),
        ("head_dim", json!(16), "width of a head", "16"),
        ("intermediate_size", json!(8), "layer 0's feed-forward part", "8"),
        ("rms_norm_eps", json!(0.5), "norm epsilon", "0.5"),
        ("tie_word_embeddings", json!(true), "sharing of head and embedding", "yes"),
        ("attention_bias", json!(true), "bias of q, k and v", "yes"),
    ];
    for (key, value, what, shown) in cases {
        let (directory, other) = changed("llama-bf16", |config| config[key] = value.clone());
        let found = disagreement(&original, &other);
        assert_eq!(found.what, what, "{key}: {found}");
        assert!(found.second.contains(shown), "{key}: {found}");
        let message = found.to_string();
        let path = directory.path().display().to_string();
        assert!(message.contains("llama-bf16") && message.contains(&path) && message.contains("not the same model"), "{message}");
    }
    let (_directory, other) = changed("llama-bf16", |config| match config.get_mut("rope_parameters") {
        Some(rope) => rope["rope_theta"] = json!(1234.0),
        None => config["rope_theta"] = json!(1234.0),
    });
    assert_eq!(disagreement(&original, &other).what, "rotary embedding");
}

#[test]
fn latents_and_experts_are_compared_too() {
    let cases = [
        ("kv_lora_rank", json!(16), "width of latents"),
        ("q_lora_rank", json!(16), "width of compressed queries"),
        ("qk_nope_head_dim", json!(16), "widths of a head (plain, rotary, value)"),
        ("num_experts_per_tok", json!(1), "'s experts"),
        ("index_topk", json!(8), "indexer"),
    ];
    for (key, value, what) in cases {
        let (_directory, other) = changed("glm_moe_dsa-int4", |config| config[key] = value.clone());
        let found = disagreement(&open("glm_moe_dsa-int4"), &other);
        assert!(found.what.contains(what), "{key}: {found}");
    }
}

/// No value is written as Rust writes it: no `Some(..)`, no names of structures.
#[test]
fn values_are_plain_words() {
    let yarn = json!({ "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 500000.0 });
    let cases = [
        ("llama-bf16", "rope_theta", json!(1234.0), ["base 500000", "base 1234"]),
        ("llama-bf16", "rope_scaling", Value::Null, ["llama3 scaling by 8 (low 1, high 4, 64 tokens)", "no scaling"]),
        (
            "llama-bf16",
            "rope_scaling",
            json!({ "rope_type": "linear", "factor": 2 }),
            ["(low 1, high 4, 64 tokens)", "linear scaling by 2"],
        ),
        ("llama-bf16", "rope_scaling", yarn, ["llama3 scaling by 8", "yarn scaling by 8 (channels"]),
        ("llama-bf16", "attention_bias", json!(true), ["no", "yes"]),
        ("llama-bf16", "intermediate_size", json!(8), ["192 wide", "8 wide"]),
        ("llama-bf16", "mlp_bias", json!(true), ["without biases", "with biases"]),
        ("odd-deepseek_v3", "q_lora_rank", json!(24), ["none (they are not compressed)", "24"]),
        ("odd-deepseek_v3", "qk_nope_head_dim", json!(16), ["20, 8 and 24", "16, 8 and 24"]),
        ("odd-deepseek_v3", "rope_interleave", json!(false), ["neighbours paired", "halves paired"]),
        ("odd-deepseek_v3", "routed_scaling_factor", json!(1.5), ["weights times 2.5", "weights times 1.5"]),
        ("odd-deepseek_v3", "n_shared_experts", json!(0), ["a shared one 40 wide", "none shared"]),
        ("odd-deepseek_v3", "topk_group", json!(3), ["2 of 3 groups", "3 of 3 groups"]),
        ("odd-deepseek_v3", "norm_topk_prob", json!(false), ["weights normalized", "weights not normalized"]),
        (
            "odd-deepseek_v3",
            "first_k_dense_replace",
            json!(1),
            ["dense, 104 wide, without biases", "6 experts, 2 per token, 40 wide"],
        ),
        ("odd-glm_5_2", "index_topk", json!(8), ["27 tokens chosen", "8 tokens chosen"]),
    ];
    for (name, key, value, [first, second]) in cases {
        let (_directory, other) = changed(name, |config| config[key] = value.clone());
        let found = disagreement(&open(name), &other);
        assert!(found.first.contains(first) && found.second.contains(second), "{key}: {found}");
        for debug in ["Some", "None", "Spec", " {", "[", "true", "false", "_"] {
            assert!(!found.first.contains(debug) && !found.second.contains(debug), "{key}: {found}");
        }
    }
}

#[test]
fn another_architecture_is_named_first() {
    let found = disagreement(&open("llama-bf16"), &open("glm_moe_dsa-int4"));
    assert!(found.what.starts_with("the architecture"), "{found}");
    assert!(found.first.contains("LlamaForCausalLM") && found.second.contains("GlmMoeDsaForCausalLM"), "{found}");
    let found = disagreement(&open("qwen3_moe-int4"), &open("odd-qwen3_moe"));
    assert!(!found.what.contains("architecture"), "{found}");
}

#[test]
fn tokenizers_are_compared_and_said_to_differ() {
    let (first_directory, first) = changed("llama-bf16", |_| {});
    let (second_directory, second) = changed("llama-bf16", |_| {});
    let file = |directory: &TempDir, text: &str| fs::write(directory.path().join("tokenizer.json"), text).unwrap();
    file(&first_directory, "{}");
    assert_eq!(check_agreement(&first, &second).unwrap(), TokenizerAgreement::OneMissing);
    file(&second_directory, "{}");
    assert_eq!(check_agreement(&first, &second).unwrap(), TokenizerAgreement::Same);
    file(&second_directory, "{ }");
    assert_eq!(check_agreement(&first, &second).unwrap(), TokenizerAgreement::Different);
}
