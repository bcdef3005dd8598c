//! What is refused: each by an error that names it, and with nothing left behind.

use std::path::Path;

use millrace_model::quantize::Preset;
use serde_json::json;

use crate::common::{fixture, gguf};
use crate::{FP8, QuantizeOptions, Stored, Tensors, int4, options, run, write};

/// A model of one layer with these tensors.
fn model(directory: &Path, tensors: &[(&str, Stored)]) {
    let config = json!({ "model_type": "llama" });
    write(directory, &config, &tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect::<Tensors>());
}

const UP: &str = "model.layers.0.mlp.up_proj.weight";
const NORM: &str = "model.norm.weight";

fn matrix(rows: usize, cols: usize) -> Stored {
    Stored::bf16(&[rows, cols], &vec![0.5; rows * cols])
}

#[test]
fn values_that_are_no_numbers_are_found_in_every_type() {
    for (bad, what) in [(f32::NAN, "NaN or infinite"), (f32::NEG_INFINITY, "NaN or infinite"), (1e9, "larger than 65504")] {
        for format in [int4(32), FP8] {
            let mut values = vec![0.5; 300 * 64];
            values[259 * 64 + 7] = bad;
            let tensors = [(UP, Stored::f32(&[300, 64], &values)), (NORM, matrix(1, 64))];
            let directory = tempfile::tempdir().unwrap();
            let (source, path) = (directory.path().join("source"), directory.path().join("out"));
            model(&source, &tensors);
            let error = run(&source, &path, &options(format)).unwrap_err().to_string();
            let wanted = format!("model.safetensors: tensor `{UP}` is {what}");
            assert!(error.contains(&wanted) && error.contains("row 259, column 7"), "{error}");
            let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(left, ["source"], "nothing is left");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    model(&source, &[(UP, matrix(4, 64)), (NORM, Stored::bf16(&[4], &[1.0, 1.0, f32::INFINITY, 1.0]))]);
    let error = run(&source, &directory.path().join("out"), &options(FP8)).unwrap_err().to_string();
    assert!(error.contains(&format!("tensor `{NORM}` is NaN or infinite in row 0, column 2")), "{error}");
}

#[test]
fn sources_of_other_kinds_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let refused = |source: &Path, wanted: &str| {
        let error = run(source, &path, &options(int4(32))).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert!(!path.exists());
    };
    refused(&fixture("llama-int4"), "INT4 already (compressed-tensors pack-quantized)");
    refused(&fixture("kimi_k25-int4"), "INT4 already");
    let file = directory.path().join("model.gguf");
    std::fs::write(&file, gguf::small_llama().bytes()).unwrap();
    refused(&file, "a GGUF file");
    refused(&directory.path().join("nowhere"), "cannot be read");
    let undeclared = directory.path().join("undeclared");
    let fp8 = Stored { dtype: safetensors::Dtype::F8_E4M3, shape: vec![2, 32], bytes: vec![0; 64] };
    model(&undeclared, &[(UP, fp8.clone())]);
    refused(&undeclared, "is FP8, but the config names no FP8");
    let packed = directory.path().join("packed");
    model(&packed, &[("model.layers.0.mlp.up_proj.weight_packed", matrix(1, 8))]);
    refused(&packed, "is packed already");
    let config =
        json!({ "model_type": "llama", "quantization_config": { "quant_method": "fp8", "weight_block_size": [128, 128] } });
    let scales = |shape: &[usize]| Stored::f32(shape, &vec![1.0; shape.iter().product()]);
    for (scales, wanted) in
        [(None, "there is no `model.layers.0.mlp.up_proj.weight_scale_inv`"), (Some(scales(&[2, 1])), "F32 [1, 1] are needed")]
    {
        let mut tensors = Tensors::from([(UP.to_owned(), fp8.clone())]);
        tensors.extend(scales.map(|scales| (format!("{UP}_scale_inv"), scales)));
        write(&directory.path().join("scales"), &config, &tensors);
        refused(&directory.path().join("scales"), wanted);
    }
}

#[test]
fn nothing_to_quantize_is_an_error_that_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let refused = |source: &Path, options: QuantizeOptions, wanted: &str| {
        let error = run(source, &path, &options).unwrap_err().to_string();
        assert!(error.contains("nothing to quantize") && error.contains(wanted), "{error}");
    };
    refused(&fixture("llama-fp8"), options(FP8), "14 matrices stay because they are FP8 already");
    refused(&fixture("llama-bf16"), QuantizeOptions { preset: Some(Preset::Kimi), ..options(FP8) }, "routed experts only");
    refused(&fixture("odd-llama"), options(int4(128)), "no multiple of the group");
    refused(&fixture("llama-bf16"), QuantizeOptions { keep: vec!["layers".to_owned()], ..options(FP8) }, "--keep names them");
    let source = directory.path().join("source");
    model(&source, &[(NORM, matrix(1, 64))]);
    refused(&source, options(FP8), "no tensor has the name of a layer's projection");
    // The widest matrix that is quantized has 65,536 columns.
    model(&source, &[(UP, matrix(1, (1 << 16) + 32))]);
    refused(&source, options(int4(32)), "more than 65,536 columns");
    model(&source, &[(UP, matrix(1, 1 << 16))]);
    run(&source, &path, &options(int4(32))).unwrap();
}

#[test]
fn options_outside_of_their_range_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |options: QuantizeOptions, wanted: &str| {
        let error = run(&fixture("llama-bf16"), &directory.path().join("out"), &options).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    };
    refused(options(int4(16)), "group 16: is no group of INT4; use 32, 64 or 128");
    refused(QuantizeOptions { threads: 0, ..options(FP8) }, "threads 0");
    refused(QuantizeOptions { threads: 1025, ..options(FP8) }, "threads 1025");
    refused(QuantizeOptions { shard_bytes: 0, ..options(FP8) }, "shard size 0");
    refused(QuantizeOptions { keep: vec!["a(".to_owned()], ..options(FP8) }, "keep `a(`");
    refused(QuantizeOptions { keep: vec!["(a{1000}){1000}".to_owned()], ..options(FP8) }, "keep `(a{1000}){1000}`");
    refused(QuantizeOptions { keep: vec!["a".to_owned(); 257], ..options(FP8) }, "more than 256 patterns");
    let most = QuantizeOptions { keep: vec!["norm".to_owned(); 256], threads: 1024, ..options(FP8) };
    run(&fixture("llama-bf16"), &directory.path().join("out"), &most).unwrap();
}

#[test]
fn nothing_that_exists_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    std::fs::create_dir(&path).unwrap();
    let error = run(&fixture("llama-bf16"), &path, &options(FP8)).unwrap_err().to_string();
    assert!(error.contains("out: exists already"), "{error}");
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
    std::fs::remove_dir(&path).unwrap();
    std::fs::create_dir(directory.path().join("out.partial")).unwrap();
    let error = run(&fixture("llama-bf16"), &path, &options(FP8)).unwrap_err().to_string();
    assert!(error.contains("out.partial: exists already; another run writes it, or one was killed"), "{error}");
    assert!(directory.path().join("out.partial").exists() && !path.exists());
}
