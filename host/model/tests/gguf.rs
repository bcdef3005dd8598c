//! GGUF files that say the same as a hub directory must give the same model: names, row order, rope divisors, formats.

mod common;

use common::gguf::{self, Gguf};
use common::{Lcg, cpu, distance, expected, fixture};
use half::f16;
use millrace_core::{KvFormat, StageRecipe};
use millrace_cpu::CpuCompute;
use millrace_model::eval::{EvalOptions, logits};
use millrace_model::{Checkpoint, TokenizerSource, WeightCache, load};
use millrace_ops::{RowOrder, TensorFormat};

const OPTIONS: EvalOptions = EvalOptions { kv: KvFormat::F32, page_tokens: 16, chunk: 48 };

/// The fixture's tensors as a GGUF file would hold them.
fn as_gguf(name: &str, version: u32) -> Gguf {
    let bytes = std::fs::read(fixture(name).join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut file = Gguf::new(version);
    let kv_heads = if name == "llama-tied-bf16" { 1 } else { 2 };
    file.text("general.architecture", "llama")
        .u32("llama.context_length", 512)
        .u32("llama.embedding_length", 128)
        .u32("llama.block_count", 2)
        .u32("llama.feed_forward_length", 192)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", kv_heads)
        .u32("llama.attention.key_length", 32)
        .u32("llama.attention.value_length", 32)
        .u32("llama.rope.dimension_count", 32)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-6)
        .f32("llama.rope.freq_base", if name == "llama-tied-bf16" { 10_000.0 } else { 500_000.0 });
    for (hub, view) in tensors.tensors() {
        let (rows, cols) = if let [rows, cols] = *view.shape() { (rows, cols) } else { (0, view.shape()[0]) };
        let rotary = hub.contains("q_proj") || hub.contains("k_proj");
        let data = if rotary { pairs_together(view.data(), rows, cols * 2, 32) } else { view.data().to_vec() };
        file.tensor(&gguf_name(&hub), (rows, cols), gguf::BF16, data);
    }
    if name != "llama-tied-bf16" {
        let divisors: Vec<u8> = llama3_divisors().iter().flat_map(|d| d.to_le_bytes()).collect();
        file.tensor("rope_freqs.weight", (0, 16), gguf::F32, divisors);
    }
    file
}

/// Within a head, the hub's rows i and i + half become rows 2i and 2i + 1.
fn pairs_together(data: &[u8], rows: usize, row: usize, head: usize) -> Vec<u8> {
    let mut out = vec![0; data.len()];
    for hub in 0..rows {
        let (start, within) = (hub / head * head, hub % head);
        let stored = start + 2 * (within % (head / 2)) + within / (head / 2);
        out[stored * row..(stored + 1) * row].copy_from_slice(&data[hub * row..(hub + 1) * row]);
    }
    out
}

/// What converters write for the fixtures' `llama3` scaling (factor 8, low 1, high 4, 64 original tokens), in f64.
fn llama3_divisors() -> Vec<f32> {
    let divisor = |i: usize| {
        let wavelength = 2.0 * std::f64::consts::PI * 500_000f64.powf(2.0 * i as f64 / 32.0);
        if wavelength < 64.0 / 4.0 {
            1.0
        } else if wavelength > 64.0 {
            8.0
        } else {
            let smooth = (64.0 / wavelength - 1.0) / (4.0 - 1.0);
            1.0 / ((1.0 - smooth) / 8.0 + smooth)
        }
    };
    (0..16).map(|i| divisor(i) as f32).collect()
}

fn gguf_name(hub: &str) -> String {
    let parts = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    parts.iter().fold(hub.to_owned(), |name, (hub, gguf)| name.replace(hub, gguf))
}

fn opened(file: &Gguf) -> (tempfile::TempDir, Checkpoint) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    (directory, checkpoint)
}

#[test]
fn a_gguf_of_the_same_weights_gives_the_same_logits() {
    let backend = cpu(CpuCompute::Reference);
    for (name, version) in [("llama-bf16", 3), ("llama-bf16", 2), ("llama-tied-bf16", 3)] {
        let wanted = expected(&fixture(name));
        let (_directory, checkpoint) = opened(&as_gguf(name, version));
        assert_eq!(checkpoint.config().size("vocab_size").unwrap(), 256);
        let model = load(&checkpoint, &backend, StageRecipe::Stored, &mut WeightCache::new()).unwrap();
        let out = logits(&*model, &backend, &wanted.ids, OPTIONS).unwrap();
        let far = distance(&out, &wanted.logits);
        assert!(far <= 2e-5, "{name} v{version}: {far:e}");
    }
}

#[test]
fn biases_of_rotated_rows_come_apart_like_their_weights() {
    let mut file = gguf::small_llama();
    let bias: Vec<u8> = (0..32u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
    file.tensor("blk.0.attn_q.bias", (0, 32), gguf::F32, bias);
    let (_directory, checkpoint) = opened(&file);
    let bias = checkpoint.vector("model.layers.0.self_attn.q_proj.bias", 32).unwrap();
    let wanted: Vec<f32> = (0..32).map(|r| (r / 16 * 16 + 2 * (r % 8) + r % 16 / 8) as f32).collect();
    assert_eq!(bias, wanted);
    let query = checkpoint.tensor("model.layers.0.self_attn.q_proj.weight").unwrap();
    assert_eq!(query.order, RowOrder::RotaryPairs { head_dim: 16 });
    assert!(checkpoint.vector("model.layers.0.self_attn.q_proj.bias", 31).is_err());
}

#[test]
fn every_stored_type_is_read_exactly() {
    let mut lcg = Lcg(1);
    let mut file = gguf::small_llama();
    let f16_row: Vec<f16> = (0..32).map(|_| f16::from_f32(lcg.real())).collect();
    file.tensor("own.f16", (1, 32), gguf::F16, f16_row.iter().flat_map(|v| v.to_le_bytes()).collect());
    let mut q8 = f16::from_f32(0.25).to_le_bytes().to_vec();
    q8.extend((0..32).map(|i| (i * 7 % 256) as u8));
    file.tensor("own.q8", (1, 32), gguf::Q8_0, q8);
    let (_directory, checkpoint) = opened(&file);
    let mut row = [0.0; 32];
    checkpoint.tensor("own.f16").unwrap().row_values(0, &mut row);
    assert!(row.iter().zip(&f16_row).all(|(a, b)| *a == b.to_f32()));
    checkpoint.tensor("own.q8").unwrap().row_values(0, &mut row);
    assert_eq!((row[1], row[31]), (1.75, 0.25 * f32::from(217u8 as i8)));
    let formats = [
        ("model.embed_tokens.weight", TensorFormat::Q8_0),
        ("model.layers.0.self_attn.q_proj.weight", TensorFormat::Q4_1),
        ("model.layers.0.self_attn.o_proj.weight", TensorFormat::Q4_0),
        ("model.layers.0.mlp.gate_proj.weight", TensorFormat::Bf16),
        ("model.layers.0.mlp.down_proj.weight", TensorFormat::F32),
    ];
    for (name, format) in formats {
        assert_eq!(checkpoint.tensor(name).unwrap().format(), format);
    }
    assert!(checkpoint.is_quantized());
}

#[test]
fn tokenizer_template_and_special_ids() {
    let (_directory, checkpoint) = opened(&gguf::small_llama());
    let TokenizerSource::Gguf(vocab) = checkpoint.tokenizer().unwrap() else { panic!("it has one") };
    assert_eq!((vocab.model.as_str(), vocab.pre.as_str(), vocab.tokens.len()), ("gpt2", "smollm", 5));
    assert_eq!((vocab.bos, vocab.eos, vocab.unknown, vocab.add_bos), (Some(1), Some(2), Some(0), false));
    assert_eq!((vocab.token_types[0], vocab.merges[0].as_str()), (3, "a b"));
    assert_eq!(checkpoint.eos_tokens(), [2]);
    assert_eq!(checkpoint.chat_template(), Some("{{ messages[0].content }}"));
    assert!(checkpoint.summary().contains("GGUF v3, llama, 11 tensors (1 BF16, 1 F16, 4 F32"), "{}", checkpoint.summary());
}

#[test]
fn the_digest_names_content() {
    let first = opened(&gguf::small_llama());
    assert_eq!(first.1.digest().len(), 64);
    assert_eq!(first.1.digest(), opened(&gguf::small_llama()).1.digest());
    let mut weight = gguf::small_llama();
    weight.tensors[3].data.iter_mut().for_each(|b| *b ^= 1);
    let mut name = gguf::small_llama();
    name.tensor("more.weight", (0, 32), gguf::F32, vec![0; 128]);
    let mut config = gguf::small_llama();
    config.f32("llama.unused", 1.0).u32("llama.vocab_size", 5);
    let mut head_dim = gguf::small_llama();
    head_dim.u32("llama.attention.key_length", 16);
    for other in [weight, name, head_dim] {
        assert_ne!(first.1.digest(), opened(&other).1.digest());
    }
    // Says what the tensors said already.
    assert_eq!(first.1.config().size("vocab_size").unwrap(), 5);
}
