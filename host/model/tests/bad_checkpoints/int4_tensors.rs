//! Packed INT4 weights whose parts or config do not fit.

use serde_json::json;

use super::common::hub::Hub;
use super::{Case, refuse};

/// The projection that is read first, 64x64.
const Q: &str = "model.layers.0.self_attn.q_proj.weight_packed";
/// 32 rows, 64 columns in groups of 32, with zero points.
const PACKED: &str = "model.layers.0.self_attn.k_proj.weight_packed";
const SCALE: &str = "model.layers.0.self_attn.k_proj.weight_scale";
const ZERO: &str = "model.layers.0.self_attn.k_proj.weight_zero_point";
const SHAPE: &str = "model.layers.0.self_attn.k_proj.weight_shape";

fn int4(wrong: &'static str, names: &'static [&'static str], change: impl Fn(&mut Hub) + 'static) -> Case {
    Case::changed(wrong, names, "formats/int4-zero-point", change)
}

/// Another type, shape or bytes for a tensor.
fn replaced(
    wrong: &'static str,
    names: &'static [&'static str],
    tensor: &'static str,
    (dtype, shape, bytes): (&'static str, &'static [u64], usize),
) -> Case {
    int4(wrong, names, move |hub| hub.add(tensor, dtype, shape, vec![1; bytes]))
}

/// The bits of k_proj's scale 3 (BF16) replaced.
fn scale(wrong: &'static str, names: &'static [&'static str], bits: u16) -> Case {
    int4(wrong, names, move |hub| hub.tensor(SCALE).data[6..8].copy_from_slice(&bits.to_le_bytes()))
}

#[test]
fn scales() {
    const RANGE: &str = "not a number from -65504 to 65504";
    refuse(vec![
        scale("a scale of NaN", &["model.safetensors", SCALE, "scale 3 is NaN", RANGE], 0x7fc0),
        scale("an infinite scale", &["model.safetensors", SCALE, "scale 3 is -inf", RANGE], 0xff80),
        scale("an absurd scale", &["model.safetensors", SCALE, "scale 3 is", RANGE], 0x7e00),
        int4("scales that were never written", &["model.safetensors", SCALE, "every scale is 0", "never written"], |hub| {
            hub.tensor(SCALE).data.fill(0);
        }),
        int4("scales that are missing", &["no tensor `model.layers.0.self_attn.k_proj.weight_scale`"], |hub| {
            hub.remove(SCALE);
        }),
        replaced("scales in bytes", &["model.safetensors", SCALE, "is U8, not F32, BF16 or F16"], SCALE, ("U8", &[32, 2], 64)),
        replaced(
            "scales of fewer rows",
            &["model.safetensors", SCALE, "[31, 2], not [32, groups]"],
            SCALE,
            ("BF16", &[31, 2], 124),
        ),
        replaced(
            "groups that divide no row",
            &["model.safetensors", SCALE, "that divide 64 columns"],
            SCALE,
            ("BF16", &[32, 3], 192),
        ),
        replaced("no groups", &["model.safetensors", SCALE, "[32, 0]"], SCALE, ("BF16", &[32, 0], 0)),
    ]);
}

#[test]
fn codes_shapes_and_zero_points() {
    refuse(vec![
        replaced("codes in bytes", &["k_proj.weight_packed` in U8", "MXFP4"], PACKED, ("U8", &[32, 32], 1024)),
        replaced("codes in F32", &["model.safetensors", PACKED, "is F32, not I32"], PACKED, ("F32", &[32, 8], 1024)),
        replaced(
            "codes of fewer columns",
            &["model.safetensors", PACKED, "[32, 7]", "needs [32, 8]"],
            PACKED,
            ("I32", &[32, 7], 896),
        ),
        replaced(
            "codes of more dimensions",
            &["model.safetensors", PACKED, "no vector or matrix"],
            PACKED,
            ("I32", &[1, 32, 8], 1024),
        ),
        int4("a shape that is missing", &["no tensor `model.layers.0.self_attn.k_proj.weight_shape`"], |hub| {
            hub.remove(SHAPE);
        }),
        replaced("a shape of three sizes", &["model.safetensors", SHAPE, "is I64 [3], not two sizes"], SHAPE, ("I64", &[3], 24)),
        replaced("a shape in F32", &["model.safetensors", SHAPE, "is F32 [2], not two sizes"], SHAPE, ("F32", &[2], 8)),
        int4("a negative shape", &["model.safetensors", SHAPE, "not two sizes"], |hub| hub.tensor(SHAPE).data[15] = 0x80),
        int4("a shape of another tensor", &["model.safetensors", PACKED, "`weight_shape` [33, 64] needs [33, 8]"], |hub| {
            hub.tensor(SHAPE).data[0] = 33;
        }),
        int4("zero points that are missing", &["model.safetensors", PACKED, "without zero points, but the config says"], |hub| {
            hub.remove(ZERO);
        }),
        int4("zero points that the config denies", &["model.safetensors", Q, "with zero points, but the config says"], |hub| {
            weights(hub)["symmetric"] = json!(true);
        }),
        replaced(
            "zero points not packed",
            &["model.safetensors", ZERO, "is I8 [32, 2], not I32 [4, 2]"],
            ZERO,
            ("I8", &[32, 2], 64),
        ),
        replaced(
            "zero points packed along the row",
            &["model.safetensors", ZERO, "[32, 1], not I32 [4, 2]"],
            ZERO,
            ("I32", &[32, 1], 128),
        ),
        replaced(
            "an order of activations",
            &["`model.layers.0.self_attn.k_proj.weight` with activation ordering"],
            "model.layers.0.self_attn.k_proj.weight_g_idx",
            ("I32", &[64], 256),
        ),
        replaced(
            "a scale for the whole tensor",
            &["k_proj.weight` (NVFP4)"],
            "model.layers.0.self_attn.k_proj.weight_global_scale",
            ("F32", &[1], 4),
        ),
    ]);
}

#[test]
fn configs() {
    refuse(vec![
        int4(
            "groups of another size",
            &["model.safetensors", Q, "has groups of 32", "the config says INT4 in groups of 64"],
            |hub| {
                weights(hub)["group_size"] = json!(64);
            },
        ),
        int4("eight bits", &["config.json", "pack-quantized weights with 8 bits of type int"], |hub| {
            weights(hub)["num_bits"] = json!(8);
        }),
        int4(
            "a group size of zero",
            &["config.json", "`quantization_config.config_groups.group_0.weights.group_size` is `0`"],
            |hub| {
                weights(hub)["group_size"] = json!(0);
            },
        ),
        int4("packed codes in a module that `ignore` lists", &["model.safetensors", Q, "`ignore` lists its module"], |hub| {
            hub.quantization()["ignore"] = json!(["re:.*self_attn.*"]);
        }),
        int4("packed codes that no group targets", &["model.safetensors", Q, "no group of the config's"], |hub| {
            hub.quantization()["config_groups"]["group_0"]["targets"] = json!(["model.layers.0.mlp.up_proj"]);
        }),
        int4("packed codes under an FP8 config", &["model.safetensors", Q, "the config says FP8 with 128x128 blocks"], |hub| {
            *hub.quantization() = json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
        }),
        int4("packed codes without quantization_config", &["model.safetensors", Q, "has no quantization_config"], |hub| {
            hub.config["quantization_config"] = json!(null);
        }),
        int4("a config without groups", &["config.json", "`quantization_config.config_groups` is missing"], |hub| {
            hub.quantization()["config_groups"] = json!(null);
        }),
        int4("targets that are no list", &["config.json", "group_0.targets` is no list of strings"], |hub| {
            hub.quantization()["config_groups"]["group_0"]["targets"] = json!("Linear");
        }),
        int4(
            "an expression in `ignore` that is none",
            &[
                "config.json",
                "`quantization_config.ignore` holds `re:[`, which is no regular expression: unclosed character class",
            ],
            |hub| {
                hub.quantization()["ignore"] = json!(["lm_head", "re:["]);
            },
        ),
        int4(
            "an expression in `targets` that is none",
            &["config.json", "group_0.targets` holds `re:.*mlp)`, which is no regular expression: unopened group"],
            |hub| {
                hub.quantization()["config_groups"]["group_0"]["targets"] = json!(["Linear", "re:.*mlp)"]);
            },
        ),
        int4("an expression of a gigabyte", &["config.json", "bytes compiled"], |hub| {
            hub.quantization()["ignore"] = json!(["re:((a{1000}){1000}){1000}"]);
        }),
        int4(
            "codes stored as floats as well",
            &["model.safetensors", "k_proj.weight` is stored both as it is and packed"],
            |hub| {
                hub.add("model.layers.0.self_attn.k_proj.weight", "BF16", &[32, 64], vec![0; 4096]);
            },
        ),
    ]);
}

fn weights(hub: &mut Hub) -> &mut serde_json::Value {
    &mut hub.quantization()["config_groups"]["group_0"]["weights"]
}
