//! Tensors that are in the file and not in the model: parts that the config denies are errors, what changes nothing is quiet,
//! the rest is one line for the log.

use serde_json::{Value, json};

use super::common::hub::{Hub, Tensor};
use super::{Case, common, refusal, refuse};
use millrace_model::{Checkpoint, unused_tensors};

/// A fixture with tensors of ones under more names.
fn with(fixture: &'static str, names: &[&str]) -> Hub {
    let mut hub = Hub::open(&common::fixture(fixture));
    for name in names {
        hub.add(name, "BF16", &[4], [0x80, 0x3f].repeat(4));
    }
    hub
}

/// A fixture whose file has one tensor more, or whose config has another value for a key that is no null.
fn denied(
    fixture: &'static str,
    says: &'static [&'static str],
    tensor: &'static str,
    change: Option<(&'static str, Value)>,
) -> Case {
    Case::new("a part that the config denies", says, move |directory| {
        let mut hub = with(fixture, if tensor.is_empty() { &[] } else { std::slice::from_ref(&tensor) });
        if let Some((key, value)) = &change {
            hub.config[*key] = value.clone();
        }
        hub.write(directory);
        directory.to_path_buf()
    })
}

#[test]
fn biases_and_norms_that_the_config_denies() {
    const BIAS: &str = "the config leaves it out by `attention_bias` false;";
    let added = |fixture, says, tensor| denied(fixture, says, tensor, None);
    refuse(vec![
        added(
            "llama-bf16",
            &["model.safetensors", "`model.layers.0.self_attn.q_proj.bias`", BIAS],
            "model.layers.0.self_attn.q_proj.bias",
        ),
        added("llama-bf16", &["o_proj.bias`", BIAS], "model.layers.1.self_attn.o_proj.bias"),
        added("llama-int4", &["v_proj.bias`", BIAS], "model.layers.1.self_attn.v_proj.bias"),
        added("llama-bf16", &["up_proj.bias`", "by `mlp_bias` false;"], "model.layers.0.mlp.up_proj.bias"),
        added("llama-bf16", &["q_norm.weight`", "LlamaForCausalLM has no such part;"], "model.layers.0.self_attn.q_norm.weight"),
        added("llama-bf16", &["`model.norm.bias`", "LlamaForCausalLM has no such part;"], "model.norm.bias"),
        added("llama-bf16", &["`lm_head.bias`", "LlamaForCausalLM has no such part;"], "lm_head.bias"),
        added(
            "llama-bf16",
            &["indexer.wk.weight`", "LlamaForCausalLM has no such part;"],
            "model.layers.0.self_attn.indexer.wk.weight",
        ),
        added("odd-qwen2", &["o_proj.bias`", "Qwen2ForCausalLM has no such part;"], "model.layers.0.self_attn.o_proj.bias"),
        added("odd-qwen2", &["k_norm.weight`", "Qwen2ForCausalLM has no such part;"], "model.layers.1.self_attn.k_norm.weight"),
        added(
            "odd-qwen3_moe",
            &["e_score_correction_bias`", "has no such part;"],
            "model.layers.0.mlp.gate.e_score_correction_bias",
        ),
        added("odd-qwen3_moe", &["mlp.gate.bias`", "has no such part;"], "model.layers.0.mlp.gate.bias"),
        added("odd-glm4_moe", &["q_norm.weight`", "by `use_qk_norm` false;"], "model.layers.0.self_attn.q_norm.weight"),
        added("odd-glm4_moe", &["o_proj.bias`", "Glm4MoeForCausalLM has no such part;"], "model.layers.0.self_attn.o_proj.bias"),
        added("odd-deepseek_v3", &["q_a_proj.weight`", "which it does not give"], "model.layers.0.self_attn.q_a_proj.weight"),
        added(
            "odd-deepseek_v3",
            &["kv_b_proj.bias`", "DeepseekV3ForCausalLM has no such part;"],
            "model.layers.0.self_attn.kv_b_proj.bias",
        ),
        added(
            "kimi_k25-int4",
            &["`language_model.model.layers.0.self_attn.o_proj.bias`", "by `text_config.attention_bias` false;"],
            "language_model.model.layers.0.self_attn.o_proj.bias",
        ),
    ]);
}

/// The same the other way round: the file as it was, the config changed.
#[test]
fn parts_that_a_changed_config_denies() {
    let changed = |fixture, says, key, value| denied(fixture, says, "", Some((key, value)));
    refuse(vec![
        changed("odd-llama", &["self_attn.k_proj.bias`", "by `attention_bias` false;"], "attention_bias", json!(false)),
        changed("odd-llama", &["mlp.down_proj.bias`", "by `mlp_bias` false;"], "mlp_bias", json!(false)),
        changed("odd-deepseek_v3", &["kv_a_proj_with_mqa.bias`", "by `attention_bias` false;"], "attention_bias", json!(false)),
        changed("odd-deepseek_v3", &["layers.2.mlp.", "by `first_k_dense_replace` 3;"], "first_k_dense_replace", json!(3)),
        changed("odd-deepseek_v3", &["layers.1.mlp.", "by `first_k_dense_replace` 1;"], "first_k_dense_replace", json!(1)),
        changed("odd-deepseek_v3", &["self_attn.q_proj.weight`", "by `q_lora_rank` 56;"], "q_lora_rank", json!(56)),
        changed("odd-qwen3_moe", &["layers.1.mlp.", "`mlp_only_layers` []"], "mlp_only_layers", json!([])),
        changed(
            "odd-qwen3_moe",
            &["layers.0.mlp.", "by `decoder_sparse_step` 2 and `mlp_only_layers` [1];"],
            "decoder_sparse_step",
            json!(2),
        ),
        changed(
            "odd-glm_5_2",
            &["layers.5.self_attn.indexer.", r#"by `indexer_types` ["full","shared","#],
            "indexer_types",
            json!(["full", "shared", "full", "shared", "shared", "shared"]),
        ),
        changed(
            "odd-glm_5_2",
            &["layers.2.mlp.", "by `mlp_layer_types`"],
            "mlp_layer_types",
            json!(["dense", "dense", "dense", "sparse", "sparse", "sparse"]),
        ),
    ]);
}

/// A layer counted as the model's that is one for prediction, and the other way round.
#[test]
fn prediction_layers() {
    refuse(vec![
        denied(
            "odd-deepseek_v3",
            &["`model.layers.2.eh_proj.weight`", "by `num_hidden_layers` 3 and `num_nextn_predict_layers` 1;"],
            "model.layers.2.eh_proj.weight",
            Some(("num_nextn_predict_layers", json!(1))),
        ),
        Case::changed(
            "the last layer left to prediction",
            &["`num_hidden_layers` is 2, but layer 2 of the file is none for prediction: it has no `eh_proj`;"],
            "odd-deepseek_v3",
            |hub| {
                hub.config["num_hidden_layers"] = json!(2);
                hub.config["num_nextn_predict_layers"] = json!(1);
            },
        ),
    ]);
}

/// What there is to say about a fixture with more tensors.
fn line(fixture: &'static str, names: &[&str]) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    with(fixture, names).write(directory.path());
    assert_eq!(refusal(directory.path()), None, "{names:?}");
    unused_tensors(&Checkpoint::open(directory.path()).unwrap()).unwrap()
}

#[test]
fn what_changes_nothing_is_quiet() {
    let attention = "model.layers.0.self_attn";
    let names = [
        &format!("{attention}.rotary_emb.inv_freq"),
        "model.rotary_emb.inv_freq",
        &format!("{attention}.k_scale"),
        &format!("{attention}.v_scale"),
        &format!("{attention}.k_proj.k_scale"),
        &format!("{attention}.q_proj.input_scale"),
        &format!("{attention}.q_proj.output_scale"),
        &format!("{attention}.q_proj.g_idx"),
        &format!("{attention}.q_proj.weight_g_idx"),
        &format!("{attention}.q_proj.weight_zero_point"),
        "mtp.layers.0.eh_proj.weight",
        "model.mtp.fc.weight",
        "vision_tower.layers.0.wq.weight",
        "model.visual.patch_embed.proj.weight",
        "mm_projector.linear_1.bias",
    ];
    assert_eq!(line("llama-bf16", &names), None);
    let wrapped = ["vision_tower.encoder.blocks.0.wo.bias", "mm_projector.proj.0.weight"];
    assert_eq!(line("kimi_k25-int4", &wrapped), None);
}

/// Some converters write biases of zeros; those that are not zero were refused above.
#[test]
fn biases_of_zeros_are_quiet() {
    for (fixture, module, rows) in [("llama-bf16", "self_attn.q_proj", 128), ("odd-qwen2", "self_attn.o_proj", 72)] {
        let mut hub = Hub::open(&common::fixture(fixture));
        hub.tensors.insert(
            format!("model.layers.0.{module}.bias"),
            Tensor { dtype: "F16".to_owned(), shape: vec![rows], data: vec![0; 2 * rows as usize] },
        );
        let directory = tempfile::tempdir().unwrap();
        hub.write(directory.path());
        assert_eq!(refusal(directory.path()), None, "{fixture}");
        assert_eq!(unused_tensors(&Checkpoint::open(directory.path()).unwrap()).unwrap(), None, "{fixture}");
    }
}

#[test]
fn the_rest_is_one_line() {
    let one = line("llama-bf16", &["model.layers.0.self_attn.sinks"]).unwrap();
    assert_eq!(one, "1 tensor of the checkpoint is not used: `model.layers.0.self_attn.sinks`");
    let names = ["a.weight", "b.weight", "model.layers.0.mlp.router.weight", "model.layers.1.post_mlp_layernorm.weight", "z"];
    let five = line("llama-bf16", &names).unwrap();
    let wanted =
        "5 tensors of the checkpoint are not used: `a.weight`, `b.weight`, `model.layers.0.mlp.router.weight` and 2 more";
    assert_eq!(five, wanted);
}

#[test]
fn fixtures_have_no_unused_tensors() {
    let mut seen = 0;
    for path in common::fixtures() {
        let line = unused_tensors(&Checkpoint::open(&path).unwrap());
        assert!(matches!(line, Ok(None)), "{}: {line:?}", path.display());
        seen += 1;
    }
    assert!(seen >= 14, "{seen}");
}
