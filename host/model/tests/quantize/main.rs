//! `quantize`: its results read back by the formats' own definitions and by this crate's reader, run against their dequantized
//! values, and everything that is refused.

#[path = "../common/mod.rs"]
mod common;
mod formats;
mod layouts;
mod places;
mod refusals;
mod selection;

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use millrace_model::quantize::{QuantizeError, QuantizeOptions, QuantizeReport, QuantizedFormat, quantize};
use millrace_ops::e4m3_to_f32;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// A tensor as a file holds it.
#[derive(Debug, Clone, PartialEq)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    fn f32(shape: &[usize], values: &[f32]) -> Self {
        Self { dtype: Dtype::F32, shape: shape.to_vec(), bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect() }
    }

    fn bf16(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        Self { dtype: Dtype::BF16, shape: shape.to_vec(), bytes }
    }

    fn floats(&self) -> Vec<f32> {
        let pairs = || self.bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
        match self.dtype {
            Dtype::F32 => self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            Dtype::BF16 => pairs().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
            Dtype::F16 => pairs().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
            other => panic!("{other:?} holds no floats"),
        }
    }
}

type Tensors = BTreeMap<String, Stored>;

/// Every tensor of a directory's safetensors files.
fn stored(directory: &Path) -> Tensors {
    let mut all = Tensors::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") && path.file_stem().is_some_and(|s| s != "expected") {
            let bytes = std::fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let tensor = Stored { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
                assert!(all.insert(name.clone(), tensor).is_none(), "{name} twice");
            }
        }
    }
    all
}

/// Values of every tensor by the definitions in the fixtures' description: FP8 code x block scale, (nibble - 8) x group scale.
fn decoded(directory: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let all = stored(directory);
    let mut values = BTreeMap::new();
    for (name, tensor) in &all {
        if let Some(scales) = all.get(&format!("{name}_scale_inv")).or_else(|| all.get(&format!("{name}_scale"))) {
            let (cols, scales) = (tensor.shape[1], scales.floats());
            let scale = |i: usize| scales[i / cols / 128 * cols.div_ceil(128) + i % cols / 128];
            let floats = tensor.bytes.iter().enumerate().map(|(i, &code)| e4m3_to_f32(code) * scale(i)).collect();
            values.insert(name.clone(), (tensor.shape.clone(), floats));
        } else if let Some(name) = name.strip_suffix("_packed") {
            let scales = &all[&format!("{name}_scale")];
            let shape =
                all[&format!("{name}_shape")].bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap()) as usize);
            let (shape, per_row, scales): (Vec<usize>, usize, Vec<f32>) = (shape.collect(), scales.shape[1], scales.floats());
            let (cols, group) = (shape[1], shape[1] / per_row);
            let words: Vec<u32> = tensor.bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
            let nibble = |row: usize, col: usize| words[row * (cols / 8) + col / 8] >> (4 * (col % 8)) & 0xf;
            let value = |i: usize| (nibble(i / cols, i % cols) as f32 - 8.0) * scales[i / cols * per_row + i % cols / group];
            values.insert(name.to_owned(), (shape.clone(), (0..shape[0] * cols).map(value).collect()));
        } else if !name.ends_with("_scale_inv") && !name.ends_with("_scale") && !name.ends_with("_shape") {
            values.insert(name.clone(), (tensor.shape.clone(), tensor.floats()));
        }
    }
    values
}

/// Writes a hub directory of one file.
fn write(directory: &Path, config: &Value, tensors: &Tensors) {
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
    let views = tensors.iter().map(|(name, t)| (name.clone(), TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
    std::fs::write(directory.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

fn config(directory: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(directory.join("config.json")).unwrap()).unwrap()
}

/// The same model in F32, without quantization.
fn dequantize(directory: &Path, into: &Path) {
    let mut config = config(directory);
    config.as_object_mut().unwrap().remove("quantization_config");
    if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut) {
        text.remove("quantization_config");
    }
    let values = decoded(directory).into_iter().map(|(name, (shape, values))| (name, Stored::f32(&shape, &values)));
    write(into, &config, &values.collect());
}

const FP8: QuantizedFormat = QuantizedFormat::Fp8Block;

fn int4(group: usize) -> QuantizedFormat {
    QuantizedFormat::Int4Group { group }
}

fn options(format: QuantizedFormat) -> QuantizeOptions {
    QuantizeOptions { format, preset: None, keep: Vec::new(), shard_bytes: 1 << 30, threads: 2, report: None }
}

fn run(source: &Path, destination: &Path, options: &QuantizeOptions) -> Result<QuantizeReport, QuantizeError> {
    quantize(source, destination, options, &mut |_| {})
}
