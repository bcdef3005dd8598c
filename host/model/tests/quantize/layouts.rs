//! In which of the layouts that say the same a result is written, so that other programs load it, and what is said where none helps.
//! `tests/quantize/loads_elsewhere.py` loads such results with transformers.

use millrace_core::StageRecipe;
use millrace_cpu::CpuCompute;
use millrace_model::eval::{EvalOptions, logits};
use millrace_model::quantize::{Detail, QuantizedFormat};
use millrace_model::{Checkpoint, WeightCache, load};
use serde_json::{Value, json};

use crate::common::{cpu, distance, expected, fixture};
use crate::{FP8, QuantizeOptions, Stored, Tensors, config, decoded, dequantize, int4, options, run, stored, write};

fn matrix(rows: usize, cols: usize) -> Stored {
    Stored::bf16(&[rows, cols], &(0..rows * cols).map(|i| (i % 251) as f32 * 0.01 - 1.2).collect::<Vec<f32>>())
}

/// Quantizes a model of these modules; gives its `quantization_config`, names and report.
fn quantized(modules: &[(&str, usize, usize)], format: QuantizedFormat, keep: &[&str]) -> (Value, Vec<String>, Value) {
    let directory = tempfile::tempdir().unwrap();
    let (source, path) = (directory.path().join("source"), directory.path().join("out"));
    let tensors = modules.iter().map(|(module, rows, cols)| (format!("model.layers.{module}.weight"), matrix(*rows, *cols)));
    write(&source, &json!({ "model_type": "llama" }), &tensors.collect::<Tensors>());
    let keep = keep.iter().map(|pattern| (*pattern).to_owned()).collect();
    let report = run(&source, &path, &QuantizeOptions { keep, ..options(format) }).unwrap();
    let names = stored(&path).into_keys().collect();
    (config(&path)["quantization_config"].take(), names, report.to_json(Detail::Layers))
}

/// Sizes of more than 128 that 128 does not divide: hub FP8 of them is loaded wrong or not at all, compressed-tensors is.
#[test]
fn fp8_of_odd_sizes_is_compressed_tensors() {
    let (section, names, report) = quantized(&[("0.mlp.up_proj", 192, 256), ("0.mlp.down_proj", 256, 192)], FP8, &[]);
    assert_eq!((&section["quant_method"], &section["format"]), (&json!("compressed-tensors"), &json!("float-quantized")));
    assert_eq!(section["config_groups"]["group_0"]["weights"]["block_structure"], json!([128, 128]));
    assert!(names.contains(&"model.layers.0.mlp.up_proj.weight_scale".to_owned()), "{names:?}");
    assert_eq!((&report["stored_as"], &report["loads_elsewhere"]), (&json!("compressed-tensors float-quantized"), &json!([])));
    for even in [[128, 256], [96, 64], [1, 384]] {
        let (section, names, report) = quantized(&[("0.mlp.up_proj", even[0], even[1])], FP8, &[]);
        assert_eq!(section["quant_method"], "fp8", "{even:?}");
        assert!(names.contains(&"model.layers.0.mlp.up_proj.weight_scale_inv".to_owned()), "{names:?}");
        assert_eq!(report["loads_elsewhere"], json!([]));
    }
}

/// Experts of more than one block are read in no layout but the hub's: what is loaded wrong there is named.
#[test]
fn fp8_that_no_layout_helps_is_said() {
    let modules =
        [("1.mlp.experts.0.up_proj", 256, 128), ("1.self_attn.kv_a_proj_with_mqa", 576, 256), ("1.self_attn.o_proj", 192, 128)];
    let (section, _, report) = quantized(&modules, FP8, &[]);
    assert_eq!(section["quant_method"], "fp8");
    let said = report["loads_elsewhere"].as_array().unwrap();
    let found = |words: &str| said.iter().find(|note| note["why"].as_str().unwrap().contains(words)).unwrap();
    let wrong = found("loads other values than these and does not say so");
    assert_eq!((&wrong["count"], &wrong["example"]), (&json!(1), &json!("model.layers.1.self_attn.o_proj")));
    assert_eq!(found("refuses the checkpoint for these")["example"], "model.layers.1.self_attn.kv_a_proj_with_mqa");
    let (_, _, report) = quantized(&modules, FP8, &["kv_a_proj", "o_proj"]);
    assert_eq!(report["loads_elsewhere"], json!([]), "--keep helps");
}

#[test]
fn experts_in_two_formats_are_said() {
    let experts = [0, 1].map(|layer| [format!("{layer}.mlp.experts.0.up_proj"), format!("{layer}.mlp.experts.0.down_proj")]);
    let modules: Vec<(&str, usize, usize)> = experts.iter().flatten().map(|module| (module.as_str(), 128, 128)).collect();
    let cases: [(QuantizedFormat, &str, usize, &str); 4] = [
        (int4(32), r"layers\.0", 2, "reads the experts of all layers in one format, here INT4"),
        (int4(32), "down_proj", 2, "reads the experts of all layers in one format, here INT4"),
        (FP8, "down_proj", 2, "experts of a layer are FP8 and floats"),
        (FP8, r"layers\.0", 0, ""),
    ];
    for (format, keep, count, words) in cases {
        let (_, _, report) = quantized(&modules, format, &[keep]);
        let said = report["loads_elsewhere"].as_array().unwrap();
        assert_eq!(said.len(), usize::from(count > 0), "{format:?} {keep}: {said:?}");
        for note in said {
            assert_eq!(note["count"], count, "{note}");
            assert!(note["why"].as_str().unwrap().contains(words), "{note}");
        }
    }
}

/// Columns of 72 and 40 leave all but o_proj in floats, experts among them.
#[test]
fn experts_in_floats_beside_int4_run_as_before() {
    let directory = tempfile::tempdir().unwrap();
    let [path, floats] = ["out", "floats"].map(|name| directory.path().join(name));
    let source = fixture("odd-qwen3_moe");
    let report = run(&source, &path, &options(int4(32))).unwrap();
    assert!(report.tensors.iter().all(|loss| loss.name.ends_with("o_proj.weight")) && report.loads_elsewhere.is_empty());
    let groups = &config(&path)["quantization_config"]["config_groups"];
    assert!(groups["experts_in_floats"]["targets"][0].as_str().unwrap().starts_with(r"re:.*layers\.\d+\.mlp\.experts\."));
    dequantize(&path, &floats);
    let (backend, wanted) = (cpu(CpuCompute::Reference), expected(&source));
    let run_model = |path| {
        let model = load(&Checkpoint::open(path).unwrap(), &backend, StageRecipe::Stored, &mut WeightCache::new()).unwrap();
        logits(&*model, &backend, &wanted.ids, EvalOptions::default()).unwrap()
    };
    assert!(distance(&run_model(&path), &run_model(&floats)) <= 2e-5);
}

/// FP8 in either layout is a source: the same values come of both.
#[test]
fn both_layouts_of_fp8_can_be_quantized_again() {
    let directory = tempfile::tempdir().unwrap();
    let [fp8, hub, first, second] = ["fp8", "hub", "first", "second"].map(|name| directory.path().join(name));
    run(&fixture("llama-bf16"), &fp8, &options(FP8)).unwrap();
    let mut tensors = stored(&fp8);
    for name in tensors.keys().filter(|name| name.ends_with("_scale")).cloned().collect::<Vec<_>>() {
        let scales = tensors.remove(&name).unwrap();
        tensors.insert(format!("{name}_inv"), scales);
    }
    let mut other = config(&fp8);
    assert_eq!(other["quantization_config"]["format"], "float-quantized");
    other["quantization_config"] = json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
    write(&hub, &other, &tensors);
    let keep = QuantizeOptions { keep: vec!["self_attn".to_owned()], ..options(int4(32)) };
    for (source, path) in [(&fp8, &first), (&hub, &second)] {
        run(source, path, &keep).unwrap();
    }
    assert_eq!((stored(&first), decoded(&first)), (stored(&second), decoded(&second)));
    assert_eq!(config(&first), config(&second));
    other["quantization_config"] = json!({ "quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": { "a": { "targets": ["Linear"], "weights": { "num_bits": 8, "type": "float", "strategy": "channel" } } } });
    std::fs::write(hub.join("config.json"), other.to_string()).unwrap();
    let error = run(&hub, &directory.path().join("third"), &keep).unwrap_err().to_string();
    assert!(error.contains("FP8 without blocks of 128x128"), "{error}");
}
