//! The `quantization_config` of the result, and where it stands in `config.json`. Knows no weights.
//!
//! Sources: transformers (FineGrainedFP8Config: `modules_to_not_convert` holds whole names) and compressed-tensors (config
//! groups with targets, `ignore`, formats `pack-quantized`, `float-quantized` and `mixed-precision`).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::QuantizedFormat;
use super::elsewhere::{Chosen, Container, Elsewhere, Stored, experts_group, of_groups, of_hub_fp8};
use super::names::entries;
use super::plan::{BLOCK, Matrix, Modules, Plan};

const KEY: &str = "quantization_config";
/// Readers build heads of their own even where the checkpoint has none (tied embeddings).
const HEAD: &str = "lm_head";

/// The section, and what is to be said of it.
pub(super) struct Description {
    section: Value,
    /// In words.
    pub(super) stored_as: &'static str,
    pub(super) elsewhere: Vec<Elsewhere>,
}

impl Description {
    pub(super) fn new(plan: &Plan, format: QuantizedFormat) -> Self {
        let modules = &plan.modules;
        if plan.container == Container::HubFp8 {
            let stored_as = "hub FP8 (weight_scale_inv)";
            return Self { section: hub_fp8(modules), stored_as, elsewhere: of_hub_fp8(modules) };
        }
        let groups = groups(modules, format);
        let stored_as = match format {
            QuantizedFormat::Fp8Block => "compressed-tensors float-quantized",
            QuantizedFormat::Int4Group { .. } if modules.fp8.is_empty() => "compressed-tensors pack-quantized",
            QuantizedFormat::Int4Group { .. } => "compressed-tensors mixed-precision",
        };
        let elsewhere = of_groups(modules, format, &chosen(&groups));
        Self { section: section(modules, &groups, stored_as.rsplit(' ').next().unwrap_or_default()), stored_as, elsewhere }
    }

    /// `config.json` with the quantization it now has, in the text model's table where the file wraps one, as Kimi's own do.
    pub(super) fn rewritten(&self, config: &Map<String, Value>) -> Map<String, Value> {
        let mut config = config.clone();
        config.remove(KEY);
        match config.get_mut("text_config") {
            Some(Value::Object(text)) => text.insert(KEY.to_owned(), self.section.clone()),
            _ => config.insert(KEY.to_owned(), self.section.clone()),
        };
        config
    }
}

fn hub_fp8(modules: &Modules) -> Value {
    json!({
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": with_head([names(&modules.floats), experts_in_floats(modules)].concat()),
    })
}

/// The modules of experts that are all floats: transformers asks for these names, not for those of their matrices.
fn experts_in_floats(modules: &Modules) -> Vec<String> {
    let quantized: BTreeSet<String> = modules.quantized.iter().filter_map(Matrix::experts).collect();
    let floats: BTreeSet<String> = modules.floats.iter().filter_map(Matrix::experts).collect();
    floats.difference(&quantized).cloned().collect()
}

/// A group of `config_groups`.
struct Group {
    name: &'static str,
    targets: Vec<String>,
    stored: GroupFormat,
}

enum GroupFormat {
    Int4 { columns: usize },
    Fp8 { activations: Activations },
}

/// What a program may do with activations on their way into FP8 matrices.
#[derive(Clone, Copy)]
enum Activations {
    /// Quantize them to FP8, 128 at a time.
    Fp8,
    /// Leave them: groups of 128 do not divide every matrix's columns.
    Floats,
}

/// In the order of their names, which is that of the file.
fn groups(modules: &Modules, format: QuantizedFormat) -> Vec<Group> {
    let every_linear = vec!["Linear".to_owned()];
    let mut groups = match format {
        QuantizedFormat::Fp8Block => {
            let stored = GroupFormat::Fp8 { activations: activations(&modules.quantized) };
            vec![Group { name: "group_0", targets: every_linear, stored }]
        }
        QuantizedFormat::Int4Group { group } if modules.fp8.is_empty() => {
            vec![Group { name: "group_0", targets: every_linear, stored: GroupFormat::Int4 { columns: group } }]
        }
        // INT4 by name, the FP8 of the source for the rest.
        QuantizedFormat::Int4Group { group } => {
            let others = [names(&modules.fp8), names(&modules.floats)].concat();
            let targets = entries(&names(&modules.quantized), &others);
            let fp8 = GroupFormat::Fp8 { activations: activations(&modules.fp8) };
            vec![
                Group { name: "group_0", targets, stored: GroupFormat::Int4 { columns: group } },
                Group { name: "group_1", targets: every_linear, stored: fp8 },
            ]
        }
    };
    groups.splice(0..0, group_for_floats(modules, &groups));
    groups
}

/// Where all experts are floats and would be read as INT4: a group that has them read as FP8 without scales, which are floats.
/// `ignore` lists them, so that they belong to no group for every program that asks it.
fn group_for_floats(modules: &Modules, groups: &[Group]) -> Option<Group> {
    let is_expert = |matrix: &&Matrix| matrix.is_expert();
    let quantized = || modules.quantized.iter().chain(&modules.fp8);
    let experts: Vec<Matrix> = modules.floats.iter().filter(is_expert).cloned().collect();
    let all = !experts.is_empty() && !quantized().any(|matrix| matrix.is_expert());
    if !all || experts_group(&chosen(groups)) != Some(Stored::Int4) {
        return None;
    }
    let others: Vec<Matrix> = quantized().chain(modules.floats.iter().filter(|matrix| !matrix.is_expert())).cloned().collect();
    let targets = entries(&names(&experts), &names(&others));
    // Before `group_0` in the file.
    Some(Group { name: "experts_in_floats", targets, stored: GroupFormat::Fp8 { activations: Activations::Floats } })
}

fn activations(fp8: &[Matrix]) -> Activations {
    if fp8.iter().all(|matrix| matrix.cols.is_multiple_of(BLOCK)) { Activations::Fp8 } else { Activations::Floats }
}

fn chosen(groups: &[Group]) -> Vec<Chosen<'_>> {
    let stored = |group: &Group| match group.stored {
        GroupFormat::Int4 { .. } => Stored::Int4,
        GroupFormat::Fp8 { .. } => Stored::Fp8,
    };
    groups.iter().map(|group| Chosen { targets: &group.targets, stored: stored(group) }).collect()
}

fn section(modules: &Modules, groups: &[Group], format: &str) -> Value {
    let quantized = [names(&modules.quantized), names(&modules.fp8)].concat();
    let groups: Map<String, Value> = groups.iter().map(|group| (group.name.to_owned(), group.json())).collect();
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "ignore": with_head(entries(&names(&modules.floats), &quantized)),
        "config_groups": groups,
    })
}

impl Group {
    fn json(&self) -> Value {
        let (format, weights, inputs) = match self.stored {
            GroupFormat::Int4 { columns } => ("pack-quantized", int4(columns), Value::Null),
            GroupFormat::Fp8 { activations: Activations::Floats } => ("float-quantized", fp8_blocks(), Value::Null),
            GroupFormat::Fp8 { activations: Activations::Fp8 } => ("float-quantized", fp8_blocks(), fp8_activations()),
        };
        json!({
            "targets": self.targets,
            "format": format,
            "weights": weights,
            "input_activations": inputs,
            "output_activations": null,
        })
    }
}

fn int4(columns: usize) -> Value {
    json!({ "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": columns, "dynamic": false })
}

fn fp8_blocks() -> Value {
    json!({
        "num_bits": 8, "type": "float", "symmetric": true, "strategy": "block", "block_structure": [128, 128], "dynamic": false,
    })
}

fn fp8_activations() -> Value {
    json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "group", "group_size": 128, "dynamic": true })
}

fn names(matrices: &[Matrix]) -> Vec<String> {
    matrices.iter().map(|matrix| matrix.module.clone()).collect()
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

    fn matrices(list: &[&str]) -> Vec<Matrix> {
        list.iter().map(|module| Matrix { module: (*module).to_owned(), rows: 128, cols: 128 }).collect()
    }

    fn modules() -> Modules {
        Modules {
            quantized: matrices(&["model.layers.1.mlp.experts.0.up_proj", "model.layers.1.mlp.experts.1.up_proj"]),
            fp8: Vec::new(),
            floats: matrices(&["model.layers.0.self_attn.o_proj", "model.layers.1.mlp.gate", "lm_head"]),
        }
    }

    const INT4: QuantizedFormat = QuantizedFormat::Int4Group { group: 64 };

    fn described(modules: Modules, container: Container, format: QuantizedFormat) -> Description {
        let nothing = (Vec::new(), Vec::new(), std::collections::BTreeMap::new(), Vec::new());
        let (steps, outputs, kept, notes) = nothing;
        Description::new(&Plan { steps, outputs, modules, container, kept, notes }, format)
    }

    #[test]
    fn the_old_section_goes_and_the_new_one_stands_with_the_text_model() {
        let config = json!({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}});
        let plain = described(modules(), Container::CompressedTensors, INT4).rewritten(config.as_object().unwrap());
        assert_eq!(plain["model_type"], "llama");
        assert_eq!(plain[KEY]["format"], "pack-quantized");
        let wrapper = json!({"quantization_config": 1, "text_config": {"x": 2, "quantization_config": 3}, "vision_config": {}});
        let fp8 = described(modules(), Container::HubFp8, QuantizedFormat::Fp8Block);
        let wrapped = fp8.rewritten(wrapper.as_object().unwrap());
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
        let section = described(modules, Container::CompressedTensors, INT4).section;
        assert_eq!(section["format"], "mixed-precision");
        assert_eq!(section["config_groups"]["group_0"]["targets"], json!([r"re:.*layers\.\d+\.mlp\.experts\.\d+\.up_proj$"]));
        assert_eq!(section["config_groups"]["group_0"]["weights"]["group_size"], 64);
        assert_eq!(section["config_groups"]["group_1"]["targets"], json!(["Linear"]));
        assert_eq!(section["config_groups"]["group_1"]["input_activations"]["group_size"], 128);
        assert_eq!(section["ignore"], json!(["lm_head", r"re:.*layers\.\d+\.mlp\.gate$", r"re:.*lm_head$"]));
    }

    #[test]
    fn activations_are_left_where_groups_of_128_do_not_divide_columns() {
        let mut modules = modules();
        modules.fp8 = vec![Matrix { module: "model.layers.0.mlp.down_proj".to_owned(), rows: 128, cols: 192 }];
        let section = described(modules, Container::CompressedTensors, INT4).section;
        assert_eq!(section["config_groups"]["group_1"]["input_activations"], Value::Null);
    }

    #[test]
    fn experts_in_floats_beside_int4_have_a_group_that_ignore_overrules() {
        let turned = Modules { quantized: modules().floats, fp8: Vec::new(), floats: modules().quantized };
        let description = described(turned, Container::CompressedTensors, INT4);
        let (groups, expression) = (&description.section["config_groups"], r"re:.*layers\.\d+\.mlp\.experts\.\d+\.up_proj$");
        assert_eq!(groups["experts_in_floats"]["targets"], json!([expression]));
        assert_eq!(groups["experts_in_floats"]["format"], "float-quantized");
        assert_eq!(groups["group_0"]["targets"], json!(["Linear"]));
        assert_eq!(description.section["ignore"], json!(["lm_head", expression]));
        assert_eq!(description.elsewhere, []);
    }

    #[test]
    fn experts_in_floats_in_some_layers_are_named() {
        let mut modules = modules();
        modules.floats.extend(matrices(&["model.layers.0.mlp.experts.0.up_proj", "model.layers.0.mlp.experts.1.up_proj"]));
        let description = described(modules, Container::CompressedTensors, INT4);
        assert!(description.section["config_groups"].get("experts_in_floats").is_none());
        let [elsewhere] = description.elsewhere.as_slice() else { panic!("{:?}", description.elsewhere) };
        assert_eq!((elsewhere.count, elsewhere.example.as_str()), (2, "model.layers.0.mlp.experts.0.up_proj"));
        assert!(elsewhere.why.contains("in one format, here INT4"), "{elsewhere}");
    }

    #[test]
    fn experts_in_floats_beside_hub_fp8_are_named_by_their_module_too() {
        let mut turned = Modules { quantized: modules().floats, fp8: Vec::new(), floats: modules().quantized };
        let list = |modules| {
            let section = described(modules, Container::HubFp8, QuantizedFormat::Fp8Block).section;
            section["modules_to_not_convert"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|name| *name == "model.layers.1.mlp.experts")
                .count()
        };
        turned.quantized.truncate(2);
        assert_eq!(list(Modules { quantized: turned.quantized.clone(), fp8: Vec::new(), floats: turned.floats.clone() }), 1);
        // Not where some of the layer's are FP8.
        turned.quantized.extend(turned.floats.pop());
        assert_eq!(list(turned), 0);
    }
}
