//! The `quantization_config` of the result, and where it stands in `config.json`. Knows no weights.
//!
//! Sources: transformers (FineGrainedFP8Config: `modules_to_not_convert` holds whole names) and compressed-tensors (config
//! groups with targets, `ignore`, formats `pack-quantized`, `float-quantized` and `mixed-precision`).

use serde_json::{Map, Value, json};

use super::QuantizedFormat;
use super::names::entries;
use super::plan::Modules;

const KEY: &str = "quantization_config";
/// Readers build heads of their own even where the checkpoint has none (tied embeddings).
const HEAD: &str = "lm_head";

/// `config.json` with the quantization it now has, in the text model's table where the file wraps one, as Kimi's own do.
pub(super) fn rewritten(config: &Map<String, Value>, modules: &Modules, format: QuantizedFormat) -> Map<String, Value> {
    let mut config = config.clone();
    config.remove(KEY);
    let section = section(modules, format);
    match config.get_mut("text_config") {
        Some(Value::Object(text)) => text.insert(KEY.to_owned(), section),
        _ => config.insert(KEY.to_owned(), section),
    };
    config
}

fn section(modules: &Modules, format: QuantizedFormat) -> Value {
    match format {
        QuantizedFormat::Fp8Block => json!({
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": with_head(modules.floats.clone()),
        }),
        QuantizedFormat::Int4Group { group } if modules.fp8.is_empty() => json!({
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "ignore": with_head(entries(&modules.floats, &modules.quantized)),
            "config_groups": { "group_0": int4(group, &["Linear".to_owned()]) },
        }),
        QuantizedFormat::Int4Group { group } => mixed(modules, group),
    }
}

/// INT4 by name, the FP8 of the source for the rest.
fn mixed(modules: &Modules, group: usize) -> Value {
    let others = [modules.fp8.as_slice(), modules.floats.as_slice()].concat();
    let quantized = [modules.quantized.as_slice(), modules.fp8.as_slice()].concat();
    json!({
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "quantization_status": "compressed",
        "ignore": with_head(entries(&modules.floats, &quantized)),
        "config_groups": {
            "group_0": int4(group, &entries(&modules.quantized, &others)),
            "group_1": {
                "targets": ["Linear"],
                "format": "float-quantized",
                "weights": {
                    "num_bits": 8, "type": "float", "symmetric": true, "strategy": "block", "block_structure": [128, 128],
                    "dynamic": false,
                },
                "input_activations": {
                    "num_bits": 8, "type": "float", "symmetric": true, "strategy": "group", "group_size": 128, "dynamic": true,
                },
                "output_activations": null,
            },
        },
    })
}

fn int4(group: usize, targets: &[String]) -> Value {
    json!({
        "targets": targets,
        "format": "pack-quantized",
        "weights": {
            "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": group, "dynamic": false,
        },
        "input_activations": null,
        "output_activations": null,
    })
}

fn with_head(mut list: Vec<String>) -> Vec<String> {
    if !list.iter().any(|entry| entry == HEAD) {
        list.insert(0, HEAD.to_owned());
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules() -> Modules {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Modules {
            quantized: list(&["model.layers.1.mlp.experts.0.up_proj", "model.layers.1.mlp.experts.1.up_proj"]),
            fp8: Vec::new(),
            floats: list(&["model.layers.0.self_attn.o_proj", "model.layers.1.mlp.gate", "lm_head"]),
        }
    }

    #[test]
    fn the_old_section_goes_and_the_new_one_stands_with_the_text_model() {
        let config = json!({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}});
        let config = config.as_object().unwrap();
        let plain = rewritten(config, &modules(), QuantizedFormat::Int4Group { group: 32 });
        assert_eq!(plain["model_type"], "llama");
        assert_eq!(plain[KEY]["format"], "pack-quantized");
        let wrapper = json!({"quantization_config": 1, "text_config": {"x": 2, "quantization_config": 3}, "vision_config": {}});
        let wrapped = rewritten(wrapper.as_object().unwrap(), &modules(), QuantizedFormat::Fp8Block);
        assert!(!wrapped.contains_key(KEY));
        assert_eq!(wrapped["text_config"][KEY]["weight_block_size"], json!([128, 128]));
        assert_eq!(wrapped["text_config"]["x"], 2);
        let kept = ["model.layers.0.self_attn.o_proj", "model.layers.1.mlp.gate", "lm_head"];
        assert_eq!(wrapped["text_config"][KEY]["modules_to_not_convert"], json!(kept));
    }

    #[test]
    fn fp8_that_stays_has_a_group_of_its_own() {
        let mut modules = modules();
        modules.fp8 = vec![modules.floats.remove(0)];
        let section = section(&modules, QuantizedFormat::Int4Group { group: 64 });
        assert_eq!(section["format"], "mixed-precision");
        assert_eq!(section["config_groups"]["group_0"]["targets"], json!([r"re:.*layers\.\d+\.mlp\.experts\.\d+\.up_proj$"]));
        assert_eq!(section["config_groups"]["group_0"]["weights"]["group_size"], 64);
        assert_eq!(section["config_groups"]["group_1"]["targets"], json!(["Linear"]));
        assert_eq!(section["ignore"], json!(["lm_head", r"re:.*layers\.\d+\.mlp\.gate$", r"re:.*lm_head$"]));
    }
}
