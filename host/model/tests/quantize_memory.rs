//! Memory of a quantization is bounded by its workers, not by the checkpoint: a short form of `tests/quantize/bounded_memory.py`,
//! alone in its process because it measures that process.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use millrace_model::quantize::{QuantizeOptions, QuantizedFormat, quantize};
use serde_json::{Map, json};

/// Peak and present resident set in bytes, pages of mapped files included.
fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let bytes = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    (bytes("VmHWM:"), bytes("VmRSS:"))
}

/// 256 MiB of zeros that take no room on the disk: 8 matrices of [2048, 8192] in BF16 in two files, and one vector.
fn write_checkpoint(directory: &Path) {
    let mut files = Map::new();
    for shard in 0..2 {
        let (mut header, mut end) = (Map::new(), 0u64);
        for layer in shard * 4..shard * 4 + 4 {
            let (name, begin) = (format!("model.layers.{layer}.mlp.down_proj.weight"), end);
            end += 2048 * 8192 * 2;
            header.insert(name.clone(), json!({ "dtype": "BF16", "shape": [2048, 8192], "data_offsets": [begin, end] }));
            files.insert(name, format!("{shard}.safetensors").into());
        }
        let header = serde_json::to_vec(&header).unwrap();
        let mut file = File::create(directory.join(format!("{shard}.safetensors"))).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(&header).unwrap();
        file.set_len(8 + header.len() as u64 + end).unwrap();
    }
    std::fs::write(directory.join("model.safetensors.index.json"), json!({ "weight_map": files }).to_string()).unwrap();
    std::fs::write(directory.join("config.json"), json!({ "model_type": "llama" }).to_string()).unwrap();
}

#[test]
fn a_checkpoint_of_256_mib_takes_less_than_48() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    std::fs::create_dir(&source).unwrap();
    write_checkpoint(&source);
    let (_, before) = resident();
    for (name, format) in [("int4", QuantizedFormat::Int4Group { group: 64 }), ("fp8", QuantizedFormat::Fp8Block)] {
        let options = QuantizeOptions { format, preset: None, keep: Vec::new(), shard_bytes: 50 << 20, threads: 2, report: None };
        let report = quantize(&source, &directory.path().join(name), &options, &mut |_| {}).unwrap();
        assert_eq!(report.parameters, 8 * 2048 * 8192);
    }
    // Two workers with 128 rows of 8192 columns, 7 bytes an element: 15 MiB; headers and what the allocator keeps beside that.
    let (peak, _) = resident();
    println!("{} MiB before, at most {} MiB", before >> 20, peak >> 20);
    assert!(peak - before < 48 << 20, "{before} before, {peak} at most");
}
