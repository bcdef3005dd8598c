//! Where a checkpoint's tokenizer comes from, as plain data. Does not tokenize.

use std::path::PathBuf;

/// The source of a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerSource {
    /// Held by a GGUF file.
    Gguf(GgufVocabData),
    /// Files of a hub directory; they exist, their contents were not looked at.
    Files { tokenizer_json: PathBuf, tokenizer_config: Option<PathBuf> },
    /// The checkpoint has none; token ids can still be run.
    Missing,
}

/// `tokenizer.ggml.*` of a GGUF file. `token_types` has as many entries as `tokens`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufVocabData {
    /// Kind of tokenizer: `gpt2`, `llama` ..
    pub model: String,
    /// Name of the pre-tokenizer: `smollm`, `llama-bpe` ..
    pub pre: String,
    pub tokens: Vec<String>,
    /// 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// `left right`, best first.
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub add_bos: bool,
    pub add_space_prefix: bool,
}
