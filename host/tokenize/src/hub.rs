//! Tokenizers from the hub's `tokenizer.json` and `tokenizer_config.json`. Does not know checkpoints or directories.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::Value;
use tokenizers::{Encoding, ModelWrapper, Token, Tokenizer as Pipeline};

use crate::alphabet::ByteAlphabet;
use crate::assemble::{Facts, MAX_MERGES, MAX_VOCABULARY, assemble};
use crate::gguf::byte_of;
use crate::token_table::{TokenKind, TokenTable};
use crate::{TokenizeError, Tokenizer};

/// Larger files are refused; the largest in use have about 35 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// How the tokens of a file spell bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// In the byte-level alphabet.
    ByteLevel,
    /// As SentencePiece: U+2581 for a space, `<0xNN>` for a byte.
    SentencePiece,
}

pub(crate) fn build(tokenizer_json: &Path, tokenizer_config: Option<&Path>) -> Result<Tokenizer, TokenizeError> {
    let mut file = read_json(tokenizer_json)?;
    let config = tokenizer_config.map(read_json).transpose()?.unwrap_or(Value::Null);
    let wrong = |why: String| TokenizeError::File { path: tokenizer_json.to_owned(), why };
    let spelling = prepare(&mut file).map_err(wrong)?;
    // The library asserts some facts about a file instead of checking them.
    let pipeline: Pipeline = catch_unwind(AssertUnwindSafe(|| serde_json::from_value(file)))
        .map_err(|_| wrong("the file contradicts itself (the tokenizer library panicked); get it again".to_owned()))?
        .map_err(|error| wrong(format!("not a tokenizer: {error}")))?;
    let ModelWrapper::BPE(_) = pipeline.get_model() else {
        let found = format!("{} in {}", model_name(pipeline.get_model()), tokenizer_json.display());
        return Err(TokenizeError::UnsupportedModel { found, known: "BPE" });
    };
    let table = table(&pipeline, spelling).map_err(wrong)?;
    let bos = special_of(&pipeline, &config, "bos_token").map_err(wrong)?;
    let eos = special_of(&pipeline, &config, "eos_token").map_err(wrong)?;
    let (mut prefix, suffix) = frame(&pipeline).map_err(wrong)?;
    if let Some(adds_bos) = llama_class_adds_bos(&config) {
        prefix = if adds_bos { bos.into_iter().collect() } else { Vec::new() };
    }
    assemble(pipeline, Facts { table, prefix, suffix, bos, eos })
}

fn read_json(path: &Path) -> Result<Value, TokenizeError> {
    let wrong = |why: String| TokenizeError::File { path: path.to_owned(), why };
    let bytes = std::fs::metadata(path).map_err(|error| wrong(format!("cannot be read: {error}")))?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(wrong(format!("has {bytes} bytes, more than the {MAX_FILE_BYTES} of any tokenizer in use")));
    }
    let content = std::fs::read(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    serde_json::from_slice(&content).map_err(|error| wrong(format!("not valid JSON: {error}")))
}

/// Checks sizes, takes out what must not happen when serving, and finds how tokens are spelled.
fn prepare(file: &mut Value) -> Result<Spelling, String> {
    let size =
        |value: Option<&Value>| value.map_or(0, |v| v.as_object().map_or_else(|| v.as_array().map_or(0, Vec::len), |o| o.len()));
    let (vocab, merges) = (size(file.pointer("/model/vocab")), size(file.pointer("/model/merges")));
    if vocab > MAX_VOCABULARY || merges > MAX_MERGES {
        return Err(format!("{vocab} tokens and {merges} merges are beyond {MAX_VOCABULARY} and {MAX_MERGES}"));
    }
    let spelling = spelling(file)?;
    let mut ids = Vec::new();
    if let Some(added) = file.get_mut("added_tokens").and_then(Value::as_array_mut) {
        for token in added.iter_mut().filter_map(Value::as_object_mut) {
            if token.get("special") == Some(&Value::Bool(true)) {
                // A control token is an exact string, never something that a normalizer makes.
                token.insert("normalized".to_owned(), Value::Bool(false));
            }
            ids.extend(token.get("content").and_then(Value::as_str).map(str::to_owned).zip(token.get("id").cloned()));
        }
    }
    keep_added_ids(file, ids)?;
    // Truncation and padding are a caller's; dropout is for training.
    for (parent, name) in [("", "truncation"), ("", "padding"), ("/model", "dropout")] {
        if let Some(object) = file.pointer_mut(parent).and_then(Value::as_object_mut) {
            object.insert(name.to_owned(), Value::Null);
        }
    }
    Ok(spelling)
}

/// Enters added tokens into the model's vocabulary: the library numbers those that are missing there anew, whatever the file says.
fn keep_added_ids(file: &mut Value, ids: Vec<(String, Value)>) -> Result<(), String> {
    let Some(vocab) = file.pointer_mut("/model/vocab").and_then(Value::as_object_mut) else { return Ok(()) };
    for (content, id) in ids {
        let known = vocab.entry(&content).or_insert_with(|| id.clone());
        if *known != id {
            return Err(format!("the added token `{content}` has id {id}, but {known} in the model's vocabulary"));
        }
    }
    Ok(())
}

fn spelling(file: &Value) -> Result<Spelling, String> {
    let mut decoders = Vec::new();
    for part in [file.get("decoder"), file.get("pre_tokenizer")].into_iter().flatten() {
        type_names(part, &mut decoders);
    }
    if decoders.contains(&"ByteLevel") {
        return Ok(Spelling::ByteLevel);
    }
    if decoders.iter().any(|name| matches!(*name, "ByteFallback" | "Metaspace" | "Replace")) {
        return Ok(Spelling::SentencePiece);
    }
    Err(format!("cannot tell how tokens spell text: decoders {decoders:?} are not ByteLevel, ByteFallback, Metaspace or Replace"))
}

/// The `type` of a component and of those in its sequence.
fn type_names<'a>(component: &'a Value, names: &mut Vec<&'a str>) {
    names.extend(component.get("type").and_then(Value::as_str));
    for list in ["decoders", "pretokenizers"] {
        let parts = component.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        names.extend(parts.iter().filter_map(|part| part.get("type").and_then(Value::as_str)));
    }
}

fn model_name(model: &ModelWrapper) -> &'static str {
    match model {
        ModelWrapper::BPE(_) => "BPE",
        ModelWrapper::WordPiece(_) => "WordPiece",
        ModelWrapper::WordLevel(_) => "WordLevel",
        ModelWrapper::Unigram(_) => "Unigram",
    }
}

fn table(pipeline: &Pipeline, spelling: Spelling) -> Result<TokenTable, String> {
    let alphabet = ByteAlphabet::new();
    let vocab = pipeline.get_vocab(true);
    let last = vocab.values().copied().max().ok_or("the vocabulary is empty")?;
    if usize::try_from(last).map_or(true, |last| last >= MAX_VOCABULARY) {
        return Err(format!("the highest id is {last}, over {MAX_VOCABULARY}"));
    }
    let mut texts: Vec<Option<&str>> = vec![None; last as usize + 1];
    for (token, &id) in &vocab {
        if let Some(slot) = texts.get_mut(id as usize) {
            *slot = Some(token);
        }
    }
    let added = pipeline.get_added_vocabulary().get_added_tokens_decoder();
    let mut table = TokenTable::default();
    for (id, text) in (0_u32..).zip(texts) {
        let pushed = match (added.get(&id), text, spelling) {
            (Some(token), ..) if token.special => table.push(TokenKind::Special, token.content.as_bytes()),
            (Some(token), ..) => table.push(TokenKind::Text, token.content.as_bytes()),
            (None, None, _) => table.push(TokenKind::Missing, b""),
            (None, Some(text), Spelling::ByteLevel) => {
                table.push(TokenKind::Text, alphabet.decode(text).as_deref().unwrap_or(text.as_bytes()))
            }
            (None, Some(text), Spelling::SentencePiece) => match byte_of(text) {
                Some(byte) => table.push(TokenKind::Text, &[byte]),
                None => table.push(TokenKind::Text, text.replace('\u{2581}', " ").as_bytes()),
            },
        };
        pushed.ok_or("the token texts exceed 4 GiB")?;
    }
    Ok(table)
}

/// The id of `bos_token` or `eos_token`, written as a string or as an object with `content`.
fn special_of(pipeline: &Pipeline, config: &Value, name: &str) -> Result<Option<u32>, String> {
    let value = config.get(name).unwrap_or(&Value::Null);
    let Some(text) = value.as_str().or_else(|| value.get("content").and_then(Value::as_str)) else { return Ok(None) };
    match pipeline.token_to_id(text) {
        Some(id) => Ok(Some(id)),
        None => Err(format!("tokenizer_config.json names {name} `{text}`, which is not in the vocabulary")),
    }
}

/// What the file's post-processor puts before and after a prompt, found by processing a single token.
fn frame(pipeline: &Pipeline) -> Result<(Vec<u32>, Vec<u32>), String> {
    let probe = Encoding::from_tokens(vec![Token::new(u32::MAX, String::new(), (0, 0))], 0);
    let framed = pipeline.post_process(probe, None, true).map_err(|error| format!("the post-processor failed: {error}"))?;
    let mut parts = framed.get_ids().split(|&id| id == u32::MAX);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(prefix), Some(suffix), None) => Ok((prefix.to_vec(), suffix.to_vec())),
        _ => Err("the post-processor does not keep a single text as it is".to_owned()),
    }
}

/// The Llama tokenizer classes take BOS from this setting and override the file's post-processor.
fn llama_class_adds_bos(config: &Value) -> Option<bool> {
    let class = config.get("tokenizer_class").and_then(Value::as_str)?;
    if class.starts_with("LlamaTokenizer") { config.get("add_bos_token").and_then(Value::as_bool) } else { None }
}
