//! What is quantized and what is kept, and that the result's config says so.

use std::collections::BTreeSet;
use std::path::Path;

use millrace_model::quantize::{Preset, QuantizedFormat};
use regex::bytes::Regex;
use serde_json::{Value, json};

use crate::common::{Lcg, fixture};
use crate::{FP8, QuantizeOptions, Stored, Tensors, config, int4, options, run, stored, write};

/// Modules of a sparse MLA model with every kind of matrix, in BF16: (name, rows, cols).
const LAYER: [(&str, usize, usize); 15] = [
    ("self_attn.q_a_proj", 96, 128),
    ("self_attn.q_b_proj", 64, 96),
    ("self_attn.kv_a_proj_with_mqa", 48, 128),
    ("self_attn.kv_b_proj", 64, 32),
    ("self_attn.o_proj", 128, 64),
    ("self_attn.indexer.wq_b", 64, 96),
    ("self_attn.indexer.wk", 32, 128),
    ("self_attn.indexer.weights_proj", 4, 128),
    ("mlp.gate", 2, 128),
    ("mlp.shared_experts.up_proj", 32, 128),
    ("mlp.experts.0.up_proj", 32, 128),
    ("mlp.experts.0.down_proj", 128, 32),
    ("mlp.experts.1.up_proj", 32, 128),
    ("mlp.experts.1.down_proj", 128, 32),
    ("eh_proj", 128, 256),
];

/// Writes it with `layers` layers, a vision part and every vector.
fn write_model(directory: &Path, layers: usize, prefix: &str) -> Tensors {
    let mut lcg = Lcg(5);
    let mut tensors = Tensors::new();
    let mut add = |name: String, shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| lcg.real() * 0.05).collect();
        tensors.insert(name, Stored::bf16(shape, &values));
    };
    for layer in 0..layers {
        let at = format!("{prefix}model.layers.{layer}");
        LAYER.iter().for_each(|(module, rows, cols)| add(format!("{at}.{module}.weight"), &[*rows, *cols]));
        add(format!("{at}.input_layernorm.weight"), &[128]);
        add(format!("{at}.mlp.gate.e_score_correction_bias"), &[2]);
        add(format!("{at}.self_attn.o_proj.bias"), &[128]);
    }
    add(format!("{prefix}model.embed_tokens.weight"), &[16, 128]);
    add(format!("{prefix}lm_head.weight"), &[16, 128]);
    add("vision_tower.blocks.0.wqkv.weight".to_owned(), &[64, 128]);
    add("vision_tower.patch_embed.proj.weight".to_owned(), &[8, 3, 2, 2]);
    write(directory, &json!({ "model_type": "glm_moe_dsa" }), &tensors);
    tensors
}

/// Modules stored in FP8 and in INT4.
fn quantized(tensors: &Tensors) -> (BTreeSet<String>, BTreeSet<String>) {
    let modules = |suffix: &str| tensors.keys().filter_map(|name| name.strip_suffix(suffix)).map(str::to_owned).collect();
    let fp8 = tensors.iter().filter(|(_, t)| t.dtype == safetensors::Dtype::F8_E4M3);
    (fp8.filter_map(|(name, _)| name.strip_suffix(".weight")).map(str::to_owned).collect(), modules(".weight_packed"))
}

/// As compressed-tensors reads a list: `re:` from the start of the name, other entries whole.
fn lists(list: &Value, module: &str) -> bool {
    list.as_array().unwrap().iter().map(|entry| entry.as_str().unwrap()).any(|entry| match entry.strip_prefix("re:") {
        Some(expression) => Regex::new(&format!("(?-u)^(?:{expression})")).unwrap().is_match(module.as_bytes()),
        None => entry == module,
    })
}

/// Each module is quantized exactly where the config says so.
fn check_config(section: &Value, tensors: &Tensors) {
    let (fp8, int4) = quantized(tensors);
    let matrices = tensors.iter().filter(|(_, t)| t.shape.len() == 2 && t.dtype == safetensors::Dtype::BF16);
    let floats: Vec<&str> =
        matrices.filter_map(|(name, _)| name.strip_suffix(".weight")).filter(|n| !n.contains("embed")).collect();
    assert!(floats.len() > 4, "{floats:?}");
    if section["quant_method"] == "fp8" {
        let kept: BTreeSet<&str> =
            section["modules_to_not_convert"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
        let wanted: BTreeSet<&str> = floats.iter().copied().chain(["lm_head"]).collect();
        assert_eq!(kept, wanted);
        return;
    }
    let groups = &section["config_groups"];
    for module in &floats {
        assert!(lists(&section["ignore"], module), "{module} is in floats, {section:#}");
    }
    for module in fp8.iter().chain(&int4) {
        assert!(!lists(&section["ignore"], module), "{module} is quantized, {section:#}");
    }
    if !fp8.is_empty() {
        assert!(int4.iter().all(|module| lists(&groups["group_0"]["targets"], module)), "{section:#}");
        assert!(!fp8.iter().any(|module| lists(&groups["group_0"]["targets"], module)), "{section:#}");
        assert_eq!(groups["group_1"]["targets"], json!(["Linear"]));
    }
}

/// The quantized modules of layer 0, without what is common to their names.
fn first_layer(modules: &BTreeSet<String>) -> Vec<&str> {
    modules.iter().filter_map(|module| module.strip_prefix("model.layers.0.")).collect()
}

/// Format, preset, keep, and the modules of layer 0 that are quantized.
type Case<'a> = (QuantizedFormat, Option<Preset>, &'a [&'a str], Vec<&'a str>);

#[test]
fn presets_and_keep_choose() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    write_model(&source, 3, "");
    let experts = ["mlp.experts.0.down_proj", "mlp.experts.0.up_proj", "mlp.experts.1.down_proj", "mlp.experts.1.up_proj"];
    let rest = [
        "mlp.shared_experts.up_proj",
        "self_attn.indexer.wk",
        "self_attn.indexer.wq_b",
        "self_attn.kv_a_proj_with_mqa",
        "self_attn.kv_b_proj",
        "self_attn.o_proj",
        "self_attn.q_a_proj",
        "self_attn.q_b_proj",
    ];
    let all = [&experts[..], &rest[..]].concat();
    let cases: [Case<'_>; 7] = [
        (int4(32), None, &[], all.clone()),
        (FP8, None, &[], all.clone()),
        (int4(32), Some(Preset::Kimi), &[], experts.to_vec()),
        (int4(32), Some(Preset::Glm), &[], experts.to_vec()),
        (FP8, Some(Preset::Glm), &[], all.clone()),
        (FP8, None, &["self_attn", r"experts\.\d+\.up"], vec![experts[0], experts[2], rest[0]]),
        (int4(32), None, &[r"^model\.layers\.0\.", "nothing like it"], vec![]),
    ];
    for (index, (format, preset, keep, wanted)) in cases.into_iter().enumerate() {
        let path = directory.path().join(index.to_string());
        let keep: Vec<String> = keep.iter().map(|pattern| (*pattern).to_owned()).collect();
        let report = run(&source, &path, &QuantizeOptions { preset, keep, ..options(format) }).unwrap();
        let tensors = stored(&path);
        let (fp8, int4) = quantized(&tensors);
        let modules = if format == FP8 { fp8 } else { int4 };
        assert_eq!(first_layer(&modules), wanted, "case {index}");
        assert_eq!(report.tensors.len(), modules.len());
        check_config(&config(&path)["quantization_config"], &tensors);
        // q_a_proj and kv_a_proj_with_mqa are kept both, up_proj of experts without their down_proj.
        assert_eq!(
            report.notes.iter().any(|note| note.starts_with("3 groups of tensors")
                && note.ends_with("the first model.layers.0.mlp.experts; they may refuse that")),
            index == 5,
            "{:?}",
            report.notes
        );
        if index == 6 {
            assert_eq!(report.notes, ["--keep `nothing like it` matches no tensor"]);
            assert_eq!(
                report.layers.iter().map(|layer| layer.name.as_str()).collect::<Vec<_>>(),
                ["model.layers.1", "model.layers.2"]
            );
        }
    }
}

#[test]
fn columns_that_the_group_does_not_divide_are_kept_and_said() {
    let directory = tempfile::tempdir().unwrap();
    let (source, path) = (directory.path().join("source"), directory.path().join("out"));
    write_model(&source, 2, "");
    let report = run(&source, &path, &options(int4(128))).unwrap();
    let tensors = stored(&path);
    let (_, int4) = quantized(&tensors);
    let wanted = ["mlp.shared_experts.up_proj", "self_attn.indexer.wk", "self_attn.kv_a_proj_with_mqa", "self_attn.q_a_proj"];
    assert_eq!(first_layer(&int4), wanted);
    let kept: Vec<(&str, usize)> = report.kept.iter().map(|kept| (&kept.why[..29], kept.count)).collect();
    // Experts' down_proj has 32 columns; their up_proj has 128, but every expert of a layer has one format.
    assert_eq!(kept, [("their columns are no multiple", 12), ("other experts' matrices of th", 4)]);
    assert!(report.kept[0].example.starts_with("model.layers.0."), "{:?}", report.kept);
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    check_config(&config(&path)["quantization_config"], &tensors);
}

/// FP8 of the source stays, code for code, under the names that it has beside INT4.
#[test]
fn fp8_stays_beside_int4() {
    let directory = tempfile::tempdir().unwrap();
    let [source, fp8, path] = ["source", "fp8", "out"].map(|name| directory.path().join(name));
    write_model(&source, 2, "language_model.");
    run(&source, &fp8, &options(FP8)).unwrap();
    let report = run(&fp8, &path, &QuantizeOptions { preset: Some(Preset::Glm), ..options(int4(32)) }).unwrap();
    assert_eq!(report.tensors.len(), 8);
    let (before, after) = (stored(&fp8), stored(&path));
    let (left, packed) = quantized(&after);
    assert_eq!((left.len(), packed.len()), (16, 8));
    for module in &left {
        assert_eq!(after[&format!("{module}.weight")], before[&format!("{module}.weight")], "{module}");
        assert_eq!(after[&format!("{module}.weight_scale")], before[&format!("{module}.weight_scale_inv")], "{module}");
    }
    assert!(!after.keys().any(|name| name.ends_with("_scale_inv")));
    let section = &config(&path)["quantization_config"];
    assert_eq!(section["format"], "mixed-precision");
    assert_eq!(section["config_groups"]["group_1"]["weights"]["block_structure"], json!([128, 128]));
    check_config(section, &after);
}

#[test]
fn small_files_come_along() {
    let directory = tempfile::tempdir().unwrap();
    let (source, path) = (directory.path().join("source"), directory.path().join("out"));
    write_model(&source, 1, "");
    for name in ["tokenizer.json", "generation_config.json", "chat_template.jinja"] {
        std::fs::write(source.join(name), name).unwrap();
    }
    std::fs::write(source.join("generation_config.json"), "{}").unwrap();
    run(&source, &path, &options(FP8)).unwrap();
    let mut names: Vec<String> =
        std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let wanted = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"];
    assert_eq!(names, wanted);
    assert_eq!(std::fs::read_to_string(path.join("tokenizer.json")).unwrap(), "tokenizer.json");
    // A fixture's expected values are no part of it.
    run(&fixture("llama-bf16"), &directory.path().join("llama"), &options(FP8)).unwrap();
    assert!(!directory.path().join("llama/expected.safetensors").exists());
}
