//! Decodes `tokenizer.ggml.*` lists. Does not tokenize.

use super::metadata::{List, MetaValue, Metadata, code};
use super::reader::Cursor;
use crate::CheckpointError;
use crate::checkpoint::config::Config;
use crate::checkpoint::vocab::GgufVocabData;

/// The vocabulary, or None where the file has no tokens.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    metadata: &Metadata,
    config: &Config,
) -> Result<Option<GgufVocabData>, CheckpointError> {
    let Some(tokens) = strings(cursor, metadata, "tokenizer.ggml.tokens")? else { return Ok(None) };
    let text = |key: &str| metadata.get(key).and_then(MetaValue::text).unwrap_or_default().to_owned();
    let flag = |key: &str| matches!(metadata.get(key), Some(MetaValue::Flag(true)));
    let token_types = token_types(cursor, metadata)?.unwrap_or_else(|| vec![1; tokens.len()]);
    if token_types.len() != tokens.len() {
        let why = format!("has {} entries for {} tokens", token_types.len(), tokens.len());
        return Err(config.wrong("tokenizer.ggml.token_type", why));
    }
    let id = |key: &str| match token_id(metadata, key) {
        Some(id) if id as usize >= tokens.len() => Err(config.wrong(key, format!("is {id}, beyond {} tokens", tokens.len()))),
        other => Ok(other),
    };
    let (bos, eos) = (id("tokenizer.ggml.bos_token_id")?, id("tokenizer.ggml.eos_token_id")?);
    let unknown = id("tokenizer.ggml.unknown_token_id")?;
    let model = text("tokenizer.ggml.model");
    // SentencePiece vocabularies add BOS and a space unless the file says otherwise; byte-level ones do not.
    let sentence_piece = model == "llama";
    let said = |key: &str| if metadata.contains_key(key) { flag(key) } else { sentence_piece };
    Ok(Some(GgufVocabData {
        pre: text("tokenizer.ggml.pre"),
        merges: strings(cursor, metadata, "tokenizer.ggml.merges")?.unwrap_or_default(),
        add_bos: said("tokenizer.ggml.add_bos_token"),
        add_space_prefix: said("tokenizer.ggml.add_space_prefix"),
        model,
        tokens,
        token_types,
        bos,
        eos,
        unknown,
    }))
}

pub(super) fn token_id(metadata: &Metadata, key: &str) -> Option<u32> {
    metadata.get(key).and_then(MetaValue::unsigned).and_then(|id| u32::try_from(id).ok())
}

fn list(cursor: &Cursor<'_>, metadata: &Metadata, key: &str) -> Result<Option<List>, CheckpointError> {
    match metadata.get(key) {
        None => Ok(None),
        Some(MetaValue::List(list)) => Ok(Some(*list)),
        Some(_) => Err(CheckpointError::damaged(cursor.path(), key, "it is no list")),
    }
}

fn strings(cursor: &mut Cursor<'_>, metadata: &Metadata, key: &str) -> Result<Option<Vec<String>>, CheckpointError> {
    let Some(list) = list(cursor, metadata, key)? else { return Ok(None) };
    if list.element != code::TEXT {
        return Err(cursor.damaged(key, list.start, "it is no list of strings"));
    }
    cursor.seek(list.start);
    // `count` was walked when the header was read, so it is no more than the file can hold.
    (0..list.count).map(|_| cursor.string(key).map(str::to_owned)).collect::<Result<Vec<_>, _>>().map(Some)
}

fn token_types(cursor: &mut Cursor<'_>, metadata: &Metadata) -> Result<Option<Vec<i32>>, CheckpointError> {
    let key = "tokenizer.ggml.token_type";
    let Some(list) = list(cursor, metadata, key)? else { return Ok(None) };
    if list.element != code::I32 && list.element != code::U32 {
        return Err(cursor.damaged(key, list.start, "it is no list of 32-bit integers"));
    }
    cursor.seek(list.start);
    (0..list.count).map(|_| cursor.array(key).map(i32::from_le_bytes)).collect::<Result<Vec<_>, _>>().map(Some)
}
