//! Configs and tensors that are each well formed and do not belong together.

use serde_json::json;

use super::common::hub::Hub;
use super::{Case, refuse};

const Q: &str = "model.layers.0.self_attn.q_proj.weight";

fn llama(wrong: &'static str, names: &'static [&'static str], change: impl Fn(&mut Hub) + 'static) -> Case {
    Case::changed(wrong, names, "llama-bf16", change)
}

#[test]
fn sizes() {
    refuse(vec![
        llama("no heads", &["config.json", "`num_attention_heads` is `0`"], |hub| hub.config["num_attention_heads"] = json!(0)),
        llama("more layers than the file has", &["config.json", "`num_hidden_layers` is 3, but the file has 2 layers"], |hub| {
            hub.config["num_hidden_layers"] = json!(3)
        }),
        llama(
            "fewer layers than the file has",
            &["model.safetensors", "`model.layers.1.", "the file has 2 layers, the config `num_hidden_layers` 1;"],
            |hub| hub.config["num_hidden_layers"] = json!(1),
        ),
        llama(
            "a larger vocabulary",
            &["model.safetensors", "embed_tokens", "[256, 128]", "[300, 128] by `vocab_size` 300;"],
            |hub| hub.config["vocab_size"] = json!(300),
        ),
        llama("a larger hidden size", &["model.safetensors", "[256, 128]", "[256, 160] by `hidden_size` 160;"], |hub| {
            hub.config["hidden_size"] = json!(160);
        }),
        llama(
            "another vocabulary and hidden size",
            &["[256, 128]", "[9, 160] by `vocab_size` 9 and `hidden_size` 160;"],
            |hub| {
                hub.config["vocab_size"] = json!(9);
                hub.config["hidden_size"] = json!(160);
            },
        ),
        llama(
            "another MLP",
            &["model.safetensors", "gate_proj.weight", "[192, 128]", "[224, 128] by `intermediate_size` 224;"],
            |hub| hub.config["intermediate_size"] = json!(224),
        ),
        llama(
            "more KV heads",
            &["k_proj.weight", "[64, 128]", "[128, 128] by `num_key_value_heads` 4 and `head_dim` 32;"],
            |hub| hub.config["num_key_value_heads"] = json!(4),
        ),
        llama("narrower heads", &["q_proj.weight", "[64, 128] by `num_attention_heads` 4 and `head_dim` 16;"], |hub| {
            hub.config["head_dim"] = json!(16);
        }),
        llama("heads that KV heads do not divide", &["config.json", "num_key_value_heads"], |hub| {
            hub.config["num_key_value_heads"] = json!(3);
        }),
        llama("a model class that is not known", &["`MambaForCausalLM` is not known", "LlamaForCausalLM"], |hub| {
            hub.config["architectures"] = json!(["MambaForCausalLM"]);
        }),
        llama("a size that is text", &["config.json", "`hidden_size` is `\"128\"`"], |hub| {
            hub.config["hidden_size"] = json!("128");
        }),
        llama(
            "biases that are not there",
            &[
                "tensor `model.layers.0.self_attn.q_proj.bias` is not in the file, the config asks for it by `attention_bias` true",
            ],
            |hub| hub.config["attention_bias"] = json!(true),
        ),
        llama("a head that is not there", &["no tensor `lm_head.weight`"], |hub| _ = hub.remove("lm_head.weight")),
    ]);
}

/// Sizes of experts, latents and indexers.
#[test]
fn sizes_of_other_architectures() {
    let set = |wrong, names, fixture, key: &'static str, value: serde_json::Value| {
        Case::changed(wrong, names, fixture, move |hub: &mut Hub| hub.config[key] = value.clone())
    };
    const GLM: &str = "glm_moe_dsa-int4";
    refuse(vec![
        set(
            "more experts than the file has",
            &["mlp.gate.weight", "[5, 72], the config asks for [8, 72] by `num_local_experts` 8;"],
            "odd-qwen3_moe",
            "num_local_experts",
            json!(8),
        ),
        set(
            "fewer experts than the file has",
            &["mlp.experts.3.", "is in the file, but the config leaves it out by `num_local_experts` 3;"],
            "odd-qwen3_moe",
            "num_local_experts",
            json!(3),
        ),
        set(
            "more routed experts than the file has",
            &["mlp.gate.weight", "[8, 128], the config asks for [16, 128] by `n_routed_experts` 16;"],
            GLM,
            "n_routed_experts",
            json!(16),
        ),
        set("wider experts", &["experts.0.gate_proj", "by `moe_intermediate_size` 96;"], GLM, "moe_intermediate_size", json!(96)),
        set("two shared experts", &["shared_experts", "by `n_shared_experts` 2 and `moe_int"], GLM, "n_shared_experts", json!(2)),
        set(
            "no shared experts",
            &["shared_experts", "the config leaves it out by `n_shared_experts` 0;"],
            GLM,
            "n_shared_experts",
            json!(0),
        ),
        set(
            "wider latents",
            &["kv_a_proj_with_mqa", "by `kv_lora_rank` 96 and `qk_rope_head_dim` 16;"],
            GLM,
            "kv_lora_rank",
            json!(96),
        ),
        set("wider queries", &["q_a_proj", "by `q_lora_rank` 64;"], GLM, "q_lora_rank", json!(64)),
        set(
            "wider index keys",
            &["indexer.wq_b", "by `index_n_heads` 16 and `index_head_dim` 96;"],
            GLM,
            "index_head_dim",
            json!(96),
        ),
        set("a wrapper's layers", &["`text_config.num_hidden_layers` is 9, but the file has"], "kimi_k25-int4", "text_config", {
            let mut inner = Hub::open(&super::common::fixture("kimi_k25-int4")).config["text_config"].clone();
            inner["num_hidden_layers"] = json!(9);
            inner
        }),
    ]);
}

#[test]
fn tensors() {
    refuse(vec![
        llama("a projection that is missing", &["no tensor `model.layers.0.self_attn.q_proj.weight`"], |hub| _ = hub.remove(Q)),
        llama("a norm that is missing", &["no tensor `model.norm.weight`"], |hub| _ = hub.remove("model.norm.weight")),
        llama("a projection turned round", &["model.safetensors", Q, "[64, 256]", "[128, 128]"], |hub| {
            hub.tensor(Q).shape = vec![64, 256];
        }),
        llama("a projection of three dimensions", &["model.safetensors", Q, "[2, 64, 128], no vector or matrix"], |hub| {
            hub.tensor(Q).shape = vec![2, 64, 128];
        }),
        llama(
            "a norm of another length",
            &["model.safetensors", "model.norm.weight", "[64], the config asks for [128]"],
            |hub| {
                let norm = hub.tensor("model.norm.weight");
                (norm.shape, norm.data) = (vec![64], norm.data[..128].to_vec());
            },
        ),
        llama("a projection of no elements", &["model.safetensors", Q, "[0, 128]"], |hub| {
            let tensor = hub.tensor(Q);
            (tensor.shape, tensor.data) = (vec![0, 128], Vec::new());
        }),
        llama("a projection in 16-bit integers", &["model.safetensors", Q, "is I16, no weight"], |hub| {
            hub.tensor(Q).dtype = "I16".to_owned();
        }),
        llama("a projection in F64", &["model.safetensors", Q, "is F64, no weight"], |hub| {
            let tensor = hub.tensor(Q);
            (tensor.dtype, tensor.data) = ("F64".to_owned(), vec![0; 128 * 128 * 8]);
        }),
        llama("a projection in e5m2", &["model.safetensors", Q, "is F8_E5M2, no weight"], |hub| {
            let tensor = hub.tensor(Q);
            (tensor.dtype, tensor.data) = ("F8_E5M2".to_owned(), vec![0; 128 * 128]);
        }),
    ]);
}

/// Layouts of other quantizers are refused by their names, with what is read instead.
#[test]
fn layouts_that_are_not_read() {
    const KNOWN: &str = "FP8 e4m3 with 128x128 blocks or a scale per channel or tensor";
    refuse(vec![
        llama("AWQ by its config", &["config.json", "quantization by AWQ", KNOWN], |hub| {
            hub.config["quantization_config"] = json!({ "quant_method": "awq", "bits": 4, "group_size": 128 });
        }),
        llama("GPTQ by its config", &["config.json", "quantization by GPTQ", KNOWN], |hub| {
            hub.config["quantization_config"] = json!({ "quant_method": "gptq", "bits": 4 });
        }),
        llama("bitsandbytes by its config", &["config.json", "quantization by bitsandbytes", KNOWN], |hub| {
            hub.config["quantization_config"] = json!({ "quant_method": "bitsandbytes", "load_in_4bit": true });
        }),
        llama("MXFP4 by its config", &["config.json", "quantization by MXFP4", KNOWN], |hub| {
            hub.config["quantization_config"] = json!({ "quant_method": "mxfp4" });
        }),
        llama("NVFP4 by its config", &["config.json", "NVFP4", KNOWN], |hub| {
            hub.config["quantization_config"] = json!({ "quant_method": "modelopt", "quant_algo": "NVFP4" });
        }),
        llama("rotated weights by its config", &["config.json", "`transform_config` (rotated weights)", KNOWN], |hub| {
            hub.config["quantization_config"] = json!({
                "quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": { "group_0": { "targets": ["Linear"], "weights": { "num_bits": 4, "group_size": 32 } } },
                "transform_config": { "config_groups": { "R1": { "type": "hadamard" } } },
            });
        }),
        llama("AWQ or GPTQ by its tensors", &["q_proj.qweight` (AWQ or GPTQ)", KNOWN], |hub| {
            hub.remove(Q);
            hub.add("model.layers.0.self_attn.q_proj.qweight", "I32", &[16, 128], vec![0; 16 * 128 * 4]);
        }),
        llama("bitsandbytes by its tensors", &[Q, "(bitsandbytes)", KNOWN], |hub| {
            hub.add(Q, "U8", &[8192, 1], vec![0; 8192]);
            hub.add(&format!("{Q}.absmax"), "F32", &[256], vec![0; 1024]);
        }),
        llama("NVFP4 by its tensors", &[Q, "(NVFP4)", KNOWN], |hub| {
            hub.add(Q, "U8", &[128, 64], vec![0; 8192]);
            hub.add(&format!("{Q}_scale_2"), "F32", &[], vec![0; 4]);
        }),
        llama("bytes of no known layout", &["model.safetensors", Q, "is U8, no weight"], |hub| {
            hub.add(Q, "U8", &[128, 64], vec![0; 8192]);
        }),
    ]);
}
