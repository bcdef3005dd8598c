//! Writes GGUF files, right and wrong ones.

/// GGUF type codes.
pub(crate) const F32: u32 = 0;
pub(crate) const F16: u32 = 1;
pub(crate) const Q4_0: u32 = 2;
pub(crate) const Q4_1: u32 = 3;
pub(crate) const Q8_0: u32 = 8;
pub(crate) const BF16: u32 = 30;

/// A file in the making. Fields may be changed before [`Gguf::bytes`] to tell lies.
pub(crate) struct Gguf {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pairs: Vec<u8>,
    /// Pairs of other keys are left out.
    keep: fn(&str) -> bool,
    pub(crate) pair_count: u64,
    pub(crate) tensors: Vec<Tensor>,
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Innermost first.
    pub(crate) dimensions: Vec<u64>,
    pub(crate) kind: u32,
    pub(crate) data: Vec<u8>,
    /// Written instead of the true offset.
    pub(crate) offset: Option<u64>,
}

impl Gguf {
    pub(crate) fn new(version: u32) -> Self {
        Self { version, alignment: 32, pairs: Vec::new(), keep: |_| true, pair_count: 0, tensors: Vec::new() }
    }

    pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    pub(crate) fn raw(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        if !(self.keep)(key) {
            return self;
        }
        Self::string(&mut self.pairs, key);
        self.pairs.extend(kind.to_le_bytes());
        self.pairs.extend(value);
        self.pair_count += 1;
        self
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        let mut bytes = Vec::new();
        Self::string(&mut bytes, value);
        self.raw(key, 8, &bytes)
    }

    pub(crate) fn texts(&mut self, key: &str, values: &[&str]) -> &mut Self {
        let mut bytes = Self::list_head(8, values.len() as u64);
        values.iter().for_each(|value| Self::string(&mut bytes, value));
        self.raw(key, 9, &bytes)
    }

    pub(crate) fn integers(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let mut bytes = Self::list_head(5, values.len() as u64);
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self.raw(key, 9, &bytes)
    }

    pub(crate) fn list_head(kind: u32, count: u64) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(count.to_le_bytes());
        bytes
    }

    /// `rows` 0: a vector of `cols`.
    pub(crate) fn tensor(&mut self, name: &str, (rows, cols): (usize, usize), kind: u32, data: Vec<u8>) -> &mut Self {
        let mut dimensions = vec![cols as u64];
        if rows > 0 {
            dimensions.push(rows as u64);
        }
        self.tensors.push(Tensor { name: name.to_owned(), dimensions, kind, data, offset: None });
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.pair_count.to_le_bytes());
        out.extend(&self.pairs);
        let mut data: Vec<u8> = Vec::new();
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            Self::string(&mut out, &tensor.name);
            out.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(data);
        out
    }
}

/// Sizes of the small Llama that [`small_llama`] writes.
pub(crate) const HIDDEN: usize = 32;
pub(crate) const VOCAB: usize = 5;

/// A valid one-layer Llama with a tokenizer, in several types.
pub(crate) fn small_llama() -> Gguf {
    let mut file = small_llama_pairs(|_| true);
    add_tensors(&mut file);
    file
}

/// Its metadata alone, of the keys that `keep` accepts.
pub(crate) fn small_llama_pairs(keep: fn(&str) -> bool) -> Gguf {
    let mut file = Gguf { keep, ..Gguf::new(3) };
    file.text("general.architecture", "llama")
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", HIDDEN as u32)
        .u32("llama.block_count", 1)
        .u32("llama.feed_forward_length", 64)
        .u32("llama.attention.head_count", 2)
        .u32("llama.attention.head_count_kv", 1)
        .u32("llama.rope.dimension_count", 16)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .f32("llama.rope.freq_base", 10_000.0)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "smollm")
        .texts("tokenizer.ggml.tokens", &["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b"])
        .integers("tokenizer.ggml.token_type", &[3, 3, 3, 1, 1])
        .texts("tokenizer.ggml.merges", &["a b"])
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0)
        .flag("tokenizer.ggml.add_bos_token", false)
        .text("tokenizer.chat_template", "{{ messages[0].content }}");
    file.keep = |_| true;
    file
}

fn add_tensors(file: &mut Gguf) {
    let bytes = |rows: usize, row: usize| (0..rows * row).map(|i| (i * 37 % 61) as u8).collect::<Vec<u8>>();
    let ones = |n: usize| std::iter::repeat_n(1f32.to_le_bytes(), n).flatten().collect::<Vec<u8>>();
    file.tensor("token_embd.weight", (VOCAB, HIDDEN), Q8_0, bytes(VOCAB, 34))
        .tensor("output_norm.weight", (0, HIDDEN), F32, ones(HIDDEN))
        .tensor("blk.0.attn_norm.weight", (0, HIDDEN), F32, ones(HIDDEN))
        .tensor("blk.0.attn_q.weight", (32, HIDDEN), Q4_1, bytes(32, 20))
        .tensor("blk.0.attn_k.weight", (16, HIDDEN), Q4_1, bytes(16, 20))
        .tensor("blk.0.attn_v.weight", (16, HIDDEN), Q8_0, bytes(16, 34))
        .tensor("blk.0.attn_output.weight", (HIDDEN, 32), Q4_0, bytes(HIDDEN, 18))
        .tensor("blk.0.ffn_norm.weight", (0, HIDDEN), F32, ones(HIDDEN))
        .tensor("blk.0.ffn_gate.weight", (64, HIDDEN), BF16, bytes(64, 64))
        .tensor("blk.0.ffn_up.weight", (64, HIDDEN), F16, bytes(64, 64))
        .tensor("blk.0.ffn_down.weight", (HIDDEN, 64), F32, bytes(HIDDEN, 256));
}
