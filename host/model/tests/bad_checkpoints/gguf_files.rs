//! GGUF files: headers, metadata, the tensor directory, values.

use super::common::gguf::{self, Gguf, small_llama};
use super::{Case, refuse};

/// The directory entry of `blk.0.attn_q.weight`.
const Q: usize = 3;

fn bytes(wrong: &'static str, names: &'static [&'static str], bytes: impl Fn() -> Vec<u8> + 'static) -> Case {
    Case::new(wrong, names, move |directory| {
        let path = directory.join("model.gguf");
        std::fs::write(&path, bytes()).unwrap();
        path
    })
}

fn changed(wrong: &'static str, names: &'static [&'static str], change: impl Fn(&mut Gguf) + 'static) -> Case {
    bytes(wrong, names, move || {
        let mut file = small_llama();
        change(&mut file);
        file.bytes()
    })
}

#[test]
fn the_unchanged_file_loads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, small_llama().bytes()).unwrap();
    assert_eq!(super::refusal(&path), None);
}

#[test]
fn headers_and_metadata() {
    refuse(vec![
        bytes("an empty file", &["empty"], Vec::new),
        bytes("a file of four bytes", &["GGUF version", "needs 4 bytes"], || b"GGUF".to_vec()),
        bytes("another magic number", &["does not begin with `GGUF`"], || b"GGU".to_vec()),
        changed("version 1", &["version 1", "convert"], |f| f.version = 1),
        changed("version 4", &["GGUF version at byte 4: 4 does not exist"], |f| f.version = 4),
        changed("version 0", &["GGUF version at byte 4: 0 does not exist"], |f| f.version = 0),
        changed("the other byte order", &["big-endian"], |f| f.version = 3 << 24),
        changed("2^64 pairs", &["count of metadata pairs at byte 16: "], |f| f.pair_count = u64::MAX),
        changed("more pairs than there are", &["the file is damaged"], |f| f.pair_count = 1 << 16),
        changed("no tensors", &["count of tensors at byte 8: "], |f| f.tensors.clear()),
        changed("an alignment of 0", &["general.alignment: it is no power of two"], |f| _ = f.u32("general.alignment", 0)),
        changed("an alignment of 48", &["general.alignment", "power of two"], |f| _ = f.u32("general.alignment", 48)),
        changed("a key that appears twice", &["`llama.block_count` appears twice"], |f| _ = f.u32("llama.block_count", 1)),
        changed("a type that does not exist", &["13 is no type"], |f| _ = f.raw("x", 13, &[])),
        changed("a string of 2^63 bytes", &["needs 9223372036854775808 bytes"], |f| {
            _ = f.raw("x", 8, &(1u64 << 63).to_le_bytes())
        }),
        changed("a list of 2^62 numbers", &["list length"], |f| _ = f.raw("x", 9, &Gguf::list_head(6, 1 << 62))),
        changed("a list of 2^64 strings", &["string of a list"], |f| _ = f.raw("x", 9, &Gguf::list_head(8, u64::MAX))),
        changed("a list of lists", &["lists of lists"], |f| _ = f.raw("x", 9, &Gguf::list_head(9, 1))),
        bytes("no architecture", &["general.architecture"], || Gguf::new(3).tensor("a", (0, 4), gguf::F32, vec![0; 16]).bytes()),
        bytes("an architecture that is not known", &["`mamba` is not known", "LlamaForCausalLM"], || {
            Gguf::new(3).text("general.architecture", "mamba").tensor("a", (0, 4), gguf::F32, vec![0; 16]).bytes()
        }),
        bytes("no sizes", &["`hidden_size (GGUF: embedding_length)` is missing"], || {
            Gguf::new(3).text("general.architecture", "llama").tensor("a", (0, 4), gguf::F32, vec![0; 16]).bytes()
        }),
        changed("fewer token types than tokens", &["tokenizer.ggml.token_type", "1 entries for 5 tokens"], |f| {
            *f = retold(f, |key| key != "tokenizer.ggml.token_type");
            f.integers("tokenizer.ggml.token_type", &[1]);
        }),
    ]);
}

/// What JSON cannot hold must not become a default.
#[test]
fn numbers_at_the_edges() {
    let real = |wrong, says, key: &'static str, number: f32| {
        changed(wrong, says, move |f| {
            *f = retold(f, |key| !["llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"].contains(&key));
            f.f32(key, number);
        })
    };
    let integer = changed("a base that is an integer", &["rope.freq_base"], |f| {
        *f = retold(f, |key| key != "llama.rope.freq_base");
        f.u32("llama.rope.freq_base", 10_000);
    });
    let theta: &[&str] = &["`rope_theta (GGUF: rope.freq_base)`", "not a number above 0"];
    let eps: &[&str] = &["`rms_norm_eps (GGUF: attention.layer_norm_rms_epsilon)`", "not a number above 0"];
    refuse(vec![
        real(
            "a base that is no number",
            &["rope.freq_base)` is `\"NaN\"`, not a number above 0"],
            "llama.rope.freq_base",
            f32::NAN,
        ),
        real("an endless base", theta, "llama.rope.freq_base", f32::INFINITY),
        real("a base of 0", theta, "llama.rope.freq_base", 0.0),
        real("an epsilon that is no number", eps, "llama.attention.layer_norm_rms_epsilon", f32::NAN),
        integer,
        real("a negative epsilon", eps, "llama.attention.layer_norm_rms_epsilon", -1e-5),
    ]);
}

/// The small Llama again, without the metadata that `keep` refuses.
fn retold(file: &Gguf, keep: fn(&str) -> bool) -> Gguf {
    let mut out = gguf::small_llama_pairs(keep);
    out.tensors = file.tensors.clone();
    out
}

#[test]
fn the_tensor_directory() {
    refuse(vec![
        changed("an offset beyond the end", &["blk.0.attn_q.weight", "claims"], |f| f.tensors[Q].offset = Some(1 << 40)),
        changed("an offset near 2^64", &["blk.0.attn_q.weight", "claims"], |f| f.tensors[Q].offset = Some(u64::MAX - 31)),
        changed("an offset that is not aligned", &["no multiple of the alignment"], |f| f.tensors[Q].offset = Some(8)),
        changed("tensors that overlap", &["model.embed_tokens.weight", "overlaps", "q_proj.weight"], |f| {
            f.tensors[Q].offset = Some(0)
        }),
        changed("a product beyond the file", &["attn_q", "claims"], |f| f.tensors[Q].dimensions = vec![1 << 32, 1 << 32]),
        changed("a product beyond 64 bits", &["attn_q", "cannot have shape"], |f| {
            f.tensors[Q].dimensions = vec![1 << 36, 1 << 36]
        }),
        changed("2^64 rows", &["attn_q", "cannot have shape"], |f| f.tensors[Q].dimensions = vec![32, u64::MAX]),
        changed("a row that is no whole block", &["cannot have shape [33, 32] in Q4_1"], |f| {
            f.tensors[Q].dimensions = vec![33, 32]
        }),
        changed("a dimension of 0", &["attn_q", "has one of 0"], |f| f.tensors[Q].dimensions = vec![32, 0]),
        changed("no dimensions", &["attn_q", "has 0, not 1 to 4"], |f| f.tensors[Q].dimensions = vec![]),
        changed("five dimensions", &["attn_q", "has 5, not 1 to 4"], |f| f.tensors[Q].dimensions = vec![1; 5]),
        changed("rows that are no whole heads", &["heads of 16 do not divide"], |f| f.tensors[Q].dimensions = vec![32, 31]),
        changed("a type that does not exist", &["attn_q", "type 77, which does not exist"], |f| f.tensors[Q].kind = 77),
        changed("a K-quant", &["attn_q", "Q6_K", "use a GGUF file in Q4_0"], |f| f.tensors[Q].kind = 14),
        changed("an IQ quant", &["attn_q", "IQ quant", "use a GGUF file in Q4_0"], |f| f.tensors[Q].kind = 20),
        changed("MXFP4", &["attn_q", "MXFP4", "use a GGUF file in Q4_0"], |f| f.tensors[Q].kind = 39),
        changed("a name that appears twice", &["appears twice"], |f| f.tensors[Q].name = "token_embd.weight".to_owned()),
        changed("a name of 300 bytes", &["300 bytes are more than 256"], |f| f.tensors[Q].name = "x".repeat(300)),
        bytes("data cut short by a byte", &["blk.0.ffn_down.weight", "claims"], || {
            let mut bytes = small_llama().bytes();
            bytes.pop();
            bytes
        }),
    ]);
}

#[test]
fn models() {
    refuse(vec![
        changed("a tensor that is missing", &["mlp.down_proj.weight", "incomplete"], |f| f.tensors.truncate(10)),
        changed("a larger vocabulary", &["embed_tokens", "[5, 32]", "[6, 32]"], |f| _ = f.u32("llama.vocab_size", 6)),
        changed("norms of heads", &["`blk.0.attn_q_norm.weight`", "llama has no such part"], |f| {
            f.tensor("blk.0.attn_q_norm.weight", (0, 16), gguf::F32, 1f32.to_le_bytes().repeat(16));
        }),
        changed("a bias of k alone", &["k_proj.bias`", "by `attention_bias` false"], |f| {
            f.tensor("blk.0.attn_k.bias", (0, 16), gguf::F32, 1f32.to_le_bytes().repeat(16));
        }),
        changed(
            "more blocks than the file has",
            &["`num_hidden_layers (GGUF: block_count)` is 2, but the file has 1 layer;"],
            |f| {
                let tensors = f.tensors.clone();
                *f = gguf::small_llama_pairs(|key| key != "llama.block_count");
                f.u32("llama.block_count", 2);
                f.tensors = tensors;
            },
        ),
        changed("divisors of another rope", &["rope_freqs"], |f| {
            f.tensor("rope_freqs.weight", (0, 8), gguf::F32, vec![0; 32]);
        }),
        changed("a Q4_1 scale of NaN", &["q_proj.weight", "not finite"], |f| f.tensors[Q].data[1] = 0x7e),
        changed("a Q4_1 minimum of infinity", &["q_proj.weight", "not finite"], |f| {
            f.tensors[Q].data[2..4].copy_from_slice(&[0, 0x7c]);
        }),
        changed("a Q8_0 scale of NaN", &["embed_tokens.weight", "not finite"], |f| {
            f.tensors[0].data[..2].copy_from_slice(&[0, 0x7e]);
        }),
        changed("a Q4_0 scale of infinity", &["o_proj.weight", "not finite"], |f| {
            f.tensors[6].data[..2].copy_from_slice(&[0, 0xfc]);
        }),
    ]);
}
