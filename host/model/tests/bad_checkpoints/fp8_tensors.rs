//! FP8 weights whose scales, codes or config do not fit.

use serde_json::json;

use super::common::hub::Hub;
use super::{Case, refuse};

/// In the fixture with 128x128 blocks: 128 rows and columns.
const Q: &str = "model.layers.0.self_attn.q_proj.weight";
const Q_SCALE: &str = "model.layers.0.self_attn.q_proj.weight_scale_inv";
/// In the fixture with a scale per channel: 20 rows.
const K: &str = "model.layers.0.self_attn.k_proj.weight";
const K_SCALE: &str = "model.layers.0.self_attn.k_proj.weight_scale";

fn blocks(wrong: &'static str, names: &'static [&'static str], change: impl Fn(&mut Hub) + 'static) -> Case {
    Case::changed(wrong, names, "llama-fp8", change)
}

fn channels(wrong: &'static str, names: &'static [&'static str], change: impl Fn(&mut Hub) + 'static) -> Case {
    Case::changed(wrong, names, "formats/fp8-channel", change)
}

/// Scale `at` of q_proj becomes `value`.
fn scale(wrong: &'static str, names: &'static [&'static str], value: f32) -> Case {
    blocks(wrong, names, move |hub| hub.tensor(Q_SCALE).data[..4].copy_from_slice(&value.to_le_bytes()))
}

#[test]
fn scales() {
    const RANGE: &str = "not a number from 0 to 65504";
    refuse(vec![
        scale("a scale of NaN", &["model.safetensors", Q_SCALE, "scale 0 is NaN", RANGE], f32::NAN),
        scale("an infinite scale", &["model.safetensors", Q_SCALE, "scale 0 is inf", RANGE], f32::INFINITY),
        scale("a negative scale", &["model.safetensors", Q_SCALE, "scale 0 is -0.5", RANGE], -0.5),
        scale("an absurd scale", &["model.safetensors", Q_SCALE, "scale 0 is 1e30", RANGE], 1e30),
        scale("scales that were never written", &["model.safetensors", Q_SCALE, "every scale is 0", "never written"], 0.0),
        blocks("scales that are missing", &["no tensor `model.layers.0.self_attn.q_proj.weight_scale_inv`"], |hub| {
            hub.remove(Q_SCALE);
        }),
        blocks("two kinds of scales", &["model.safetensors", Q, "`weight_scale_inv` and a `weight_scale`"], |hub| {
            hub.add(&format!("{Q}_scale"), "F32", &[1], vec![0; 4]);
        }),
        blocks("scales in integers", &["model.safetensors", Q_SCALE, "is I32, not F32, BF16 or F16"], |hub| {
            hub.tensor(Q_SCALE).dtype = "I32".to_owned();
        }),
        blocks("scales in powers of two", &["model.safetensors", Q_SCALE, "is F8_E8M0, not F32, BF16 or F16"], |hub| {
            let scales = hub.tensor(Q_SCALE);
            (scales.dtype, scales.data) = ("F8_E8M0".to_owned(), vec![127]);
        }),
        blocks("scales of another tensor", &["model.safetensors", Q_SCALE, "has shape [2, 1], not [1, 1]"], |hub| {
            hub.add(Q_SCALE, "F32", &[2, 1], [0.01f32.to_le_bytes(); 2].concat());
        }),
        channels("a channel too few", &["model.safetensors", K_SCALE, "has shape [19, 1], not [20, 1] or [20]"], |hub| {
            let scales = hub.tensor(K_SCALE);
            (scales.shape, scales.data) = (vec![19, 1], scales.data[..38].to_vec());
        }),
        channels("a channel's scale of NaN", &["model.safetensors", K_SCALE, "scale 7 is NaN", RANGE], |hub| {
            hub.tensor(K_SCALE).data[14..16].copy_from_slice(&[0xc0, 0x7f]);
        }),
        channels("zero points", &["model.safetensors", "k_proj.weight_zero_point", "which FP8 does not have"], |hub| {
            hub.add("model.layers.0.self_attn.k_proj.weight_zero_point", "I8", &[20, 1], vec![1; 20]);
        }),
    ]);
}

#[test]
fn codes_and_configs() {
    refuse(vec![
        blocks("a code of NaN", &["model.safetensors", Q, "not finite"], |hub| hub.tensor(Q).data[5] = 0x7f),
        blocks("FP8 without quantization_config", &["model.safetensors", Q, "the config has no quantization_config"], |hub| {
            hub.config["quantization_config"] = json!(null);
        }),
        blocks("FP8 that the config keeps", &["model.safetensors", Q, "lists its module as not converted"], |hub| {
            hub.quantization()["modules_to_not_convert"] = json!(["lm_head", "model.layers.0.self_attn"]);
        }),
        blocks("FP8 that the config ignores", &["model.safetensors", Q, "lists its module as not converted"], |hub| {
            hub.quantization()["ignored_layers"] = json!(["self_attn.q_proj"]);
        }),
        blocks(
            "an expression in `modules_to_not_convert` that is none",
            &["config.json", "`quantization_config.modules_to_not_convert` holds `mlp.[a`, which is no regular expression"],
            |hub| {
                hub.quantization()["modules_to_not_convert"] = json!(["lm_head", "mlp.[a"]);
            },
        ),
        blocks("blocks of another size", &["config.json", "FP8 with weight_block_size [64,64]"], |hub| {
            hub.quantization()["weight_block_size"] = json!([64, 64]);
        }),
        blocks("e5m2 by the config", &["config.json", "FP8 of the type e5m2"], |hub| hub.quantization()["fmt"] = json!("e5m2")),
        channels(
            "channels where the config says tensor",
            &["model.safetensors", "q_proj.weight_scale", "has shape [40, 1], not one scale"],
            |hub| {
                weights(hub)["strategy"] = json!("tensor");
            },
        ),
        channels(
            "channels where the config says blocks",
            &["model.safetensors", "q_proj.weight_scale", "[40, 1], not [1, 1]"],
            |hub| {
                weights(hub)["strategy"] = json!("block");
                weights(hub)["block_structure"] = json!([128, 128]);
            },
        ),
        channels(
            "FP8 where the config says INT4",
            &["model.safetensors", "q_proj.weight", "but the config says INT4 in groups of 32"],
            |hub| {
                hub.quantization()["format"] = json!("mixed-precision");
                group(hub)["format"] = json!("pack-quantized");
                *weights(hub) = json!({ "num_bits": 4, "type": "int", "group_size": 32 });
            },
        ),
        channels("FP8 in a module that `ignore` lists", &["model.safetensors", K, "`ignore` lists its module"], |hub| {
            hub.quantization()["ignore"] = json!(["lm_head", "re:.*self_attn.k_proj"]);
        }),
        channels(
            "FP8 that no group targets",
            &["model.safetensors", "q_proj.weight", "no group of the config's `config_groups` targets"],
            |hub| {
                group(hub)["targets"] = json!(["re:.*mlp.*"]);
            },
        ),
        channels("values saved before they were quantized", &["model.safetensors", K, "saved before it was quantized"], |hub| {
            let codes = hub.tensor(K);
            (codes.dtype, codes.data) = ("BF16".to_owned(), vec![0; codes.data.len() * 2]);
        }),
    ]);
}

fn group(hub: &mut Hub) -> &mut serde_json::Value {
    &mut hub.quantization()["config_groups"]["group_0"]
}

fn weights(hub: &mut Hub) -> &mut serde_json::Value {
    &mut group(hub)["weights"]
}
