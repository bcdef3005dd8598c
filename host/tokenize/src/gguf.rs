//! Tokenizers from GGUF vocabularies of model "gpt2" (byte-level BPE). Knows the named ways of splitting text before BPE.
//! Does not read GGUF files.
//!
//! Meaning of the metadata: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md> (tokenizer.ggml.*). The splitting
//! expressions are those of the models' own `tokenizer.json`, which the names in `tokenizer.ggml.pre` stand for.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer as Pipeline};

use crate::alphabet::ByteAlphabet;
use crate::assemble::{Facts, MAX_MERGES, MAX_VOCABULARY, assemble};
use crate::token_table::{TokenKind, TokenTable};
use crate::{TokenizeError, Tokenizer};

/// The `tokenizer.ggml.*` metadata of a GGUF file.
#[derive(Debug, Clone, Default)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`; "gpt2" is byte-level BPE.
    pub model: String,
    /// `tokenizer.ggml.pre`; how text is split before BPE.
    pub pre: String,
    /// Token texts by id, in the byte-level alphabet; special tokens as they are spelled.
    pub tokens: Vec<String>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; by id, or empty when all are normal.
    pub token_types: Vec<i32>,
    /// "left right", the first is merged first.
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// Not used by byte-level BPE, which can spell every byte.
    pub unknown: Option<u32>,
    /// Whether a raw prompt begins with BOS.
    pub add_bos: bool,
    /// A SentencePiece setting; not used by byte-level BPE.
    pub add_space_prefix: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A way of splitting: digits one by one first or not, then each expression on what the one before left.
struct Splitting {
    names: &'static [&'static str],
    single_digits: bool,
    expressions: &'static [&'static str],
    /// A word that is in the vocabulary is taken whole, whatever the merges say.
    whole_words_first: bool,
}

const SPLITTINGS: [Splitting; 5] = [
    Splitting { names: &["smollm"], single_digits: true, expressions: &[GPT2], whole_words_first: false },
    Splitting { names: &["gpt-2", "gpt2"], single_digits: false, expressions: &[GPT2], whole_words_first: false },
    Splitting {
        names: &["default"],
        single_digits: false,
        expressions: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        whole_words_first: false,
    },
    Splitting {
        names: &["llama-bpe", "llama3", "llama-v3"],
        single_digits: false,
        expressions: &[LLAMA3],
        whole_words_first: true,
    },
    Splitting { names: &["qwen2"], single_digits: false, expressions: &[QWEN2], whole_words_first: false },
];

/// Values of `token_types`.
mod token_type {
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const BYTE: i32 = 6;
}

pub(crate) fn build(vocab: &GgufVocab) -> Result<Tokenizer, TokenizeError> {
    if vocab.model != "gpt2" {
        return Err(TokenizeError::UnsupportedModel {
            found: vocab.model.clone(),
            known: "gpt2 (byte-level BPE); a hub directory with tokenizer.json takes more kinds",
        });
    }
    let splitting = SPLITTINGS.iter().find(|splitting| splitting.names.contains(&vocab.pre.as_str())).ok_or_else(|| {
        let known: Vec<&str> = SPLITTINGS.iter().flat_map(|splitting| splitting.names).copied().collect();
        TokenizeError::UnsupportedPreTokenizer { found: vocab.pre.clone(), known: known.join(", ") }
    })?;
    check_sizes(vocab)?;
    let table = table(vocab)?;
    let mut pipeline = Pipeline::new(model(vocab, splitting)?);
    pipeline.with_pre_tokenizer(Some(pre_tokenizer(splitting)?));
    pipeline.add_tokens(&added_tokens(vocab));
    let prefix = match (vocab.add_bos, vocab.bos) {
        (false, _) => Vec::new(),
        (true, Some(bos)) => vec![bos],
        (true, None) => return Err(broken("add_bos_token", "is set but there is no bos_token_id")),
    };
    assemble(pipeline, Facts { table, prefix, suffix: Vec::new(), bos: vocab.bos, eos: vocab.eos })
}

fn broken(at: impl Into<String>, why: impl Into<String>) -> TokenizeError {
    TokenizeError::Vocabulary { at: at.into(), why: why.into() }
}

fn check_sizes(vocab: &GgufVocab) -> Result<(), TokenizeError> {
    let (tokens, types, merges) = (vocab.tokens.len(), vocab.token_types.len(), vocab.merges.len());
    if tokens == 0 || tokens > MAX_VOCABULARY {
        return Err(broken("tokens", format!("there are {tokens}, not 1 to {MAX_VOCABULARY}")));
    }
    if types != 0 && types != tokens {
        return Err(broken("token_type", format!("there are {types} types for {tokens} tokens")));
    }
    if merges > MAX_MERGES {
        return Err(broken("merges", format!("there are {merges}, over {MAX_MERGES}")));
    }
    Ok(())
}

fn type_of(vocab: &GgufVocab, index: usize) -> i32 {
    vocab.token_types.get(index).copied().unwrap_or(1)
}

fn table(vocab: &GgufVocab) -> Result<TokenTable, TokenizeError> {
    let alphabet = ByteAlphabet::new();
    let mut table = TokenTable::default();
    for (index, token) in vocab.tokens.iter().enumerate() {
        let pushed = match type_of(vocab, index) {
            token_type::UNKNOWN | token_type::CONTROL => table.push(TokenKind::Special, token.as_bytes()),
            token_type::USER_DEFINED => table.push(TokenKind::Text, token.as_bytes()),
            token_type::BYTE => match byte_of(token) {
                Some(byte) => table.push(TokenKind::Text, &[byte]),
                None => return Err(broken(format!("token {index}"), format!("`{token}` has type byte but is not <0xNN>"))),
            },
            _ => match alphabet.decode(token) {
                Some(bytes) => table.push(TokenKind::Text, &bytes),
                None => table.push(TokenKind::Text, token.as_bytes()),
            },
        };
        pushed.ok_or_else(|| broken(format!("token {index}"), "the token texts exceed 4 GiB"))?;
    }
    Ok(table)
}

/// The byte that a byte token `<0xNN>` stands for.
pub(crate) fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

fn model(vocab: &GgufVocab, splitting: &Splitting) -> Result<BPE, TokenizeError> {
    let mut ids = Vocab::with_capacity(vocab.tokens.len());
    for (id, token) in (0_u32..).zip(&vocab.tokens) {
        // A text that occurs twice (padding up to a round number) keeps its first id.
        ids.entry(token.clone()).or_insert(id);
    }
    let mut merges = Vec::with_capacity(vocab.merges.len());
    for (rank, merge) in vocab.merges.iter().enumerate() {
        match merge.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                merges.push((left.to_owned(), right.to_owned()));
            }
            _ => return Err(broken(format!("merge {rank}"), format!("`{merge}` is not two tokens and a space"))),
        }
    }
    let builder = BPE::builder().vocab_and_merges(ids, merges).ignore_merges(splitting.whole_words_first);
    builder.build().map_err(|error| broken("merges", error.to_string()))
}

fn pre_tokenizer(splitting: &Splitting) -> Result<PreTokenizerWrapper, TokenizeError> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    if splitting.single_digits {
        steps.push(Digits::new(true).into());
    }
    for expression in splitting.expressions {
        let pattern = SplitPattern::Regex((*expression).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map_err(|error| broken(format!("pre-tokenizer `{expression}`"), error.to_string()))?;
        steps.push(split.into());
    }
    steps.push(ByteLevel::new(false, false, false).into());
    Ok(Sequence::new(steps).into())
}

/// Tokens that are found in text before it is split; control tokens are special, user-defined ones are not.
fn added_tokens(vocab: &GgufVocab) -> Vec<AddedToken> {
    let added = vocab.tokens.iter().enumerate().filter_map(|(index, token)| match type_of(vocab, index) {
        token_type::UNKNOWN | token_type::CONTROL => Some(AddedToken::from(token.clone(), true)),
        token_type::USER_DEFINED => Some(AddedToken::from(token.clone(), false).normalized(false)),
        _ => None,
    });
    added.filter(|token| !token.content.is_empty()).collect()
}
