//! Named ways in which a checkpoint can be wrong, each with the message that must name it.

mod common;

use std::path::{Path, PathBuf};

use common::gguf::{self, Gguf, small_llama};
use common::{cpu, fixture};
use millrace_core::StageRecipe;
use millrace_cpu::CpuCompute;
use millrace_model::{Checkpoint, CheckpointError, WeightCache, load};
use tempfile::TempDir;

fn refused(path: &Path) -> CheckpointError {
    match Checkpoint::open(path) {
        Ok(checkpoint) => panic!("{} opened", checkpoint.summary()),
        Err(error) => error,
    }
}

/// The message for a file of these bytes.
fn message(bytes: &[u8]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let text = refused(&path).to_string();
    assert!(text.contains("model.gguf"), "{text}");
    text
}

fn changed(change: impl FnOnce(&mut Gguf)) -> String {
    let mut file = small_llama();
    change(&mut file);
    message(&file.bytes())
}

fn expect(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` not in: {text}");
    }
}

#[test]
fn gguf_headers() {
    expect(&message(b""), &["empty"]);
    expect(&message(b"GGUF"), &["GGUF version", "needs 4 bytes"]);
    expect(&message(b"GGU"), &["does not begin with `GGUF`"]);
    expect(&changed(|f| f.version = 1), &["version 1", "convert"]);
    expect(&changed(|f| f.version = 4), &["version", "does not exist"]);
    expect(&changed(|f| f.version = 3 << 24), &["big-endian"]);
    expect(&changed(|f| f.pair_count = u64::MAX), &["count of metadata pairs"]);
    expect(&changed(|f| f.pair_count = 1 << 16), &["the file is damaged"]);
    expect(&changed(|f| f.tensors.clear()), &["count of tensors"]);
    expect(&changed(|f| _ = f.u32("general.alignment", 0)), &["general.alignment", "power of two"]);
    expect(&changed(|f| _ = f.u32("general.alignment", 48)), &["general.alignment", "power of two"]);
    expect(&changed(|f| _ = f.u32("llama.block_count", 1)), &["`llama.block_count` appears twice"]);
    expect(&changed(|f| _ = f.raw("x", 13, &[])), &["13 is no type"]);
    expect(&changed(|f| _ = f.raw("x", 8, &(1u64 << 63).to_le_bytes())), &["needs 9223372036854775808 bytes"]);
    expect(&changed(|f| _ = f.raw("x", 9, &Gguf::list_head(6, 1 << 62))), &["list length"]);
    expect(&changed(|f| _ = f.raw("x", 9, &Gguf::list_head(8, u64::MAX))), &["string of a list"]);
    expect(&changed(|f| _ = f.raw("x", 9, &Gguf::list_head(9, 1))), &["lists of lists"]);
    expect(&message(&Gguf::new(3).tensor("a", (0, 4), gguf::F32, vec![0; 16]).bytes()), &["general.architecture"]);
}

#[test]
fn gguf_tensors() {
    let q = 3;
    expect(&changed(|f| f.tensors[q].offset = Some(1 << 40)), &["blk.0.attn_q.weight", "claims"]);
    expect(&changed(|f| f.tensors[q].offset = Some(u64::MAX - 31)), &["blk.0.attn_q.weight", "claims"]);
    expect(&changed(|f| f.tensors[q].offset = Some(8)), &["no multiple of the alignment"]);
    expect(&changed(|f| f.tensors[q].offset = Some(0)), &["two tensors overlap"]);
    expect(&changed(|f| f.tensors[q].dimensions = vec![1 << 32, 1 << 32]), &["attn_q", "claims"]);
    expect(&changed(|f| f.tensors[q].dimensions = vec![1 << 36, 1 << 36]), &["cannot have shape"]);
    expect(&changed(|f| f.tensors[q].dimensions = vec![32, u64::MAX]), &["cannot have shape"]);
    expect(&changed(|f| f.tensors[q].dimensions = vec![33, 32]), &["cannot have shape [33, 32] in Q4_1"]);
    expect(&changed(|f| f.tensors[q].dimensions = vec![32, 0]), &["has one of 0"]);
    expect(&changed(|f| f.tensors[q].dimensions = vec![]), &["has 0, not 1 to 4"]);
    expect(&changed(|f| f.tensors[q].dimensions = vec![1; 5]), &["has 5, not 1 to 4"]);
    expect(&changed(|f| f.tensors[q].dimensions = vec![32, 31]), &["heads of 16 do not divide"]);
    expect(&changed(|f| f.tensors[q].kind = 77), &["type 77, which does not exist"]);
    expect(&changed(|f| f.tensors[q].kind = 14), &["Q6_K", "use a GGUF file in Q4_0"]);
    expect(&changed(|f| f.tensors[q].name = "token_embd.weight".to_owned()), &["appears twice"]);
    expect(&changed(|f| f.tensors[q].name = "x".repeat(300)), &["300 bytes are more than 256"]);
    let mut truncated = small_llama().bytes();
    truncated.truncate(truncated.len() - 1);
    expect(&message(&truncated), &["blk.0.ffn_down.weight", "claims"]);
}

/// The message for a GGUF file that opens but does not load.
fn not_loaded(change: impl FnOnce(&mut Gguf)) -> String {
    let mut file = small_llama();
    change(&mut file);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    load_error(&path)
}

fn load_error(path: &Path) -> String {
    let checkpoint = Checkpoint::open(path).unwrap();
    let backend = cpu(CpuCompute::Reference);
    match load(&checkpoint, &backend, StageRecipe::Stored, &mut WeightCache::new()) {
        Ok(_) => panic!("it loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn models_that_contradict_their_config() {
    expect(&not_loaded(|f| f.tensors.truncate(10)), &["mlp.down_proj.weight", "incomplete"]);
    expect(&not_loaded(|f| _ = f.u32("llama.vocab_size", 6)), &["embed_tokens", "[5, 32]", "[6, 32]"]);
    expect(&not_loaded(|f| _ = f.text("llama.rope.scaling.type", "yarn")), &["rope scaling `yarn`"]);
    expect(&not_loaded(|f| _ = f.f32("llama.rope.scale_linear", 4.0)), &["rope scaling `linear`"]);
    expect(&not_loaded(|f| _ = f.tensor("rope_freqs.weight", (0, 8), gguf::F32, vec![0; 32])), &["rope_freqs"]);
    let other = |text: &str| {
        let mut file = Gguf::new(3);
        file.text("general.architecture", text).tensor("a", (0, 4), gguf::F32, vec![0; 16]);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.gguf");
        std::fs::write(&path, file.bytes()).unwrap();
        load_error(&path)
    };
    expect(&other("mamba"), &["`mamba` is not known", "LlamaForCausalLM, llama"]);
    expect(&other("llama"), &["`hidden_size (GGUF: embedding_length)` is missing"]);
}

/// A hub directory of the fixture's files, some replaced.
fn hub(name: &str, files: &[(&str, &[u8])]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture(name).join(file), directory.path().join(file)).unwrap();
    }
    for (file, bytes) in files {
        std::fs::write(directory.path().join(file), bytes).unwrap();
    }
    let path = directory.path().to_path_buf();
    (directory, path)
}

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn safetensors_headers() {
    let text = |bytes: &[u8]| refused(&hub("llama-bf16", &[("model.safetensors", bytes)]).1).to_string();
    expect(&text(b"1234"), &["only 4 bytes"]);
    expect(&text(&u64::MAX.to_le_bytes()), &["claims 18446744073709551615 bytes"]);
    expect(&text(&(100u64 << 20).to_le_bytes()), &["claims 104857600 bytes"]);
    expect(&text(&safetensors("{", 0)), &["safetensors header"]);
    let one = |shape: &str, offsets: &str| {
        safetensors(&format!(r#"{{"a":{{"dtype":"U8","shape":{shape},"data_offsets":{offsets}}}}}"#), 4)
    };
    expect(&text(&one("[4]", "[0,8]")), &["tensor `a`", "needs 4 bytes"]);
    expect(&text(&one("[8]", "[0,8]")), &["tensor `a`", "claims bytes 0 to 8, the file holds 4"]);
    expect(&text(&one("[2]", "[0,2]")), &["describes 2 bytes, the file holds 4"]);
    expect(&text(&one("[4]", "[4,0]")), &["tensor `a`", "offsets are 4 to 0"]);
    expect(&text(&one("[4294967296,4294967296]", "[0,0]")), &["tensor `a`", "no whole number of bytes that fits"]);
    expect(&text(&safetensors(r#"{"a":{"dtype":"Q9","shape":[4],"data_offsets":[0,4]}}"#, 4)), &["Q9"]);
    // Sizes that each fit 64 bits and whose sum with the header does not.
    let step = (1u64 << 61) - 1;
    let tensor = |i: u64, bytes: u64| {
        let (begin, end) = (i * step, i * step + bytes);
        format!(r#""t{i}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[{begin},{end}]}}"#)
    };
    let mut tensors: Vec<String> = (0..8).map(|i| tensor(i, step)).collect();
    tensors.push(tensor(8, 7));
    expect(&text(&safetensors(&format!("{{{}}}", tensors.join(",")), 4)), &["tensor `t0`", "the file holds 4"]);
}

#[test]
fn hub_directories() {
    let (directory, path) = hub("llama-bf16", &[]);
    std::fs::remove_file(path.join("model.safetensors")).unwrap();
    expect(&refused(&path).to_string(), &["neither model.safetensors nor"]);
    let index = |text: &str| {
        std::fs::write(path.join("model.safetensors.index.json"), text).unwrap();
        refused(&path).to_string()
    };
    expect(&index(r#"{"weight_map":{"a":"gone.safetensors"}}"#), &["gone.safetensors: missing", "index.json names it"]);
    expect(&index(r#"{"weight_map":{"a":"../config.json"}}"#), &["no file name of this directory"]);
    expect(&index(r#"{"weight_map":{"a":"/etc/passwd"}}"#), &["no file name of this directory"]);
    expect(&index(r#"{"weight_map":{"a":".."}}"#), &["no file name of this directory"]);
    expect(&index(r#"{"weight_map":{"a":3}}"#), &["no file name of this directory"]);
    expect(&index(r#"{"weight_map":{}}"#), &["names 0 files"]);
    expect(&index("{}"), &["weight_map"]);
    std::fs::copy(fixture("llama-bf16").join("model.safetensors"), path.join("one.safetensors")).unwrap();
    expect(&index(r#"{"weight_map":{"absent":"one.safetensors"}}"#), &["`absent` is not in the file"]);
    std::fs::remove_file(path.join("config.json")).unwrap();
    expect(&refused(&path).to_string(), &["without config.json"]);
    drop(directory);
    expect(&refused(&path).to_string(), &["cannot be read"]);
}

#[test]
fn things_that_are_no_files() {
    expect(&refused(Path::new("/dev/zero")).to_string(), &["neither a regular file"]);
    let (_directory, path) = hub("llama-bf16", &[]);
    std::fs::remove_file(path.join("config.json")).unwrap();
    std::fs::create_dir(path.join("config.json")).unwrap();
    expect(&refused(&path).to_string(), &["a directory where a file is expected"]);
    expect(&refused(&path.join("model.safetensors")).to_string(), &["give its directory"]);
    let fifo = path.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    expect(&refused(&fifo).to_string(), &["neither a regular file"]);
}

/// The fixture's config with text replaced.
fn with_config(name: &str, from: &str, to: &str) -> (TempDir, PathBuf) {
    let config = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
    assert!(config.contains(from), "{from}");
    hub(name, &[("config.json", config.replace(from, to).as_bytes())])
}

#[test]
fn configs() {
    let zero = with_config("llama-bf16", r#""num_attention_heads": 4"#, r#""num_attention_heads": 0"#);
    expect(&load_error(&zero.1), &["num_attention_heads", "config.json"]);
    let layers = with_config("llama-bf16", r#""num_hidden_layers": 2"#, r#""num_hidden_layers": 1024"#);
    expect(&load_error(&layers.1), &["model.layers.2."]);
    let other = with_config("llama-bf16", "LlamaForCausalLM", "MambaForCausalLM");
    expect(&load_error(&other.1), &["`MambaForCausalLM` is not known"]);
    let awq = with_config("llama-fp8", r#""quant_method": "fp8""#, r#""quant_method": "awq""#);
    expect(&refused(&awq.1).to_string(), &["AWQ"]);
    let group = with_config("llama-int4", r#""group_size": 32"#, r#""group_size": 64"#);
    expect(&load_error(&group.1), &["q_proj.weight_packed", "the config says INT4 in groups of 64"]);
    let unquantized = with_config("llama-fp8", "quantization_config", "something_else");
    expect(&load_error(&unquantized.1), &["is FP8, but the config has no quantization_config"]);
    let huge = hub("llama-bf16", &[("config.json", &vec![b' '; (16 << 20) + 1])]);
    expect(&refused(&huge.1).to_string(), &["longer than"]);
}
