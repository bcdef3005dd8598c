//! GGUF files, versions 2 and 3, little-endian: header, configuration, tokenizer data, tensor directory.
//! Does not know what an architecture needs; names come out as the hub's.
//!
//! ```text
//! "GGUF" version: u32, tensors: u64, pairs: u64
//! [pair; pairs] [entry; tensors]  padding to the alignment  tensor data
//! ```
//! Source: the GGUF specification (ggml project, docs/gguf.md).

mod metadata;
mod names;
mod reader;
mod tensors;
mod vocab;

use serde_json::{Map, Number, Value};

use metadata::{MetaValue, Metadata};
use reader::Cursor;
use tensors::Data;

use super::config::Config;
use super::file::MappedFile;
use super::stored::TensorTable;
use super::vocab::GgufVocabData;
use crate::CheckpointError;

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;

/// What a GGUF file says.
pub(super) struct Gguf {
    pub(super) config: Config,
    pub(super) table: TensorTable,
    pub(super) version: u32,
    metadata: Metadata,
}

impl Gguf {
    pub(super) fn read(file: MappedFile) -> Result<Self, CheckpointError> {
        let (config, entries, version, metadata) = {
            let mut cursor = Cursor::new(file.path(), file.bytes());
            let (version, tensor_count, pair_count) = read_header(&mut cursor)?;
            let metadata = metadata::read_pairs(&mut cursor, pair_count)?;
            let entries = tensors::read_entries(&mut cursor, tensor_count)?;
            let alignment = alignment(&cursor, &metadata)?;
            let start = cursor.at().checked_next_multiple_of(alignment).filter(|&s| s <= file.len());
            let start = start.ok_or_else(|| cursor.damaged("tensor data", cursor.at(), "the file ends before it begins"))?;
            let mut config = read_config(&cursor, &metadata)?;
            let rotary_head = if config.architecture() == "llama" { head_dim(&config)? } else { None };
            let entries = tensors::place(&cursor, entries, &Data { start, end: file.len(), alignment }, rotary_head)?;
            complete_config(&mut config, &entries);
            (config, entries, version, metadata)
        };
        Ok(Self { config, table: TensorTable { files: vec![file], entries }, version, metadata })
    }

    /// Tokens, merges and special ids, decoded now.
    ///
    /// # Errors
    /// [`CheckpointError::Config`] or [`CheckpointError::Damaged`] where they are no vocabulary.
    pub(super) fn vocabulary(&self) -> Result<Option<GgufVocabData>, CheckpointError> {
        let Some(file) = self.table.files.first() else { return Ok(None) };
        vocab::read(&mut Cursor::new(file.path(), file.bytes()), &self.metadata, &self.config)
    }

    pub(super) fn chat_template(&self) -> Option<&str> {
        self.metadata.get("tokenizer.chat_template").and_then(MetaValue::text)
    }

    /// Ids that end a sequence or a turn, without repeats.
    pub(super) fn eos_tokens(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
            if let Some(id) = vocab::token_id(&self.metadata, key)
                && !ids.contains(&id)
            {
                ids.push(id);
            }
        }
        ids
    }
}

fn read_header(cursor: &mut Cursor<'_>) -> Result<(u32, usize, usize), CheckpointError> {
    if cursor.array::<4>("GGUF header")? != MAGIC {
        return Err(cursor.damaged("GGUF header", 0, "the magic number is not `GGUF`"));
    }
    let version_at = cursor.at();
    let version = cursor.u32("GGUF version")?;
    match version {
        2 | 3 => {}
        1 => {
            return Err(CheckpointError::unsupported(
                cursor.path(),
                "GGUF version 1",
                "convert the model again with a current tool",
            ));
        }
        v if (1..=3).contains(&v.swap_bytes()) => {
            return Err(CheckpointError::unsupported(cursor.path(), "big-endian GGUF", "use the little-endian file"));
        }
        v => return Err(cursor.damaged("GGUF version", version_at, format!("{v} does not exist"))),
    }
    let tensors = cursor.size("count of tensors")?;
    let pairs = cursor.size("count of metadata pairs")?;
    Ok((version, tensors, pairs))
}

fn alignment(cursor: &Cursor<'_>, metadata: &Metadata) -> Result<usize, CheckpointError> {
    let value = metadata.get("general.alignment").map_or(Some(DEFAULT_ALIGNMENT), MetaValue::unsigned);
    let usable = value.filter(|a| a.is_power_of_two() && *a <= MAX_ALIGNMENT).and_then(|a| usize::try_from(a).ok());
    let why = || format!("it is no power of two up to {MAX_ALIGNMENT}");
    usable.ok_or_else(|| CheckpointError::damaged(cursor.path(), "general.alignment", why()))
}

/// Metadata translated to the hub's keys; what is missing stays missing for the architecture to complain about.
fn read_config(cursor: &Cursor<'_>, metadata: &Metadata) -> Result<Config, CheckpointError> {
    let Some(architecture) = metadata.get("general.architecture").and_then(MetaValue::text) else {
        return Err(CheckpointError::damaged(cursor.path(), "metadata", "`general.architecture` is missing"));
    };
    let lookup = |key: &str| metadata.get(&format!("{architecture}.{key}"));
    let mut values = Map::new();
    for (hub, key) in names::SIZES {
        if let Some(value) = lookup(key) {
            // A list (a value per layer) or a negative number becomes text, which the getters refuse and quote.
            let number = value.unsigned().map_or_else(|| Value::from(format!("GGUF {key}")), Value::from);
            values.insert(hub.to_owned(), number);
        }
    }
    for (hub, key) in names::REALS {
        if let Some(value) = lookup(key) {
            // JSON has no NaN and no infinity; as text they are refused and quoted, and so is another type.
            let text = value.real().map_or_else(|| format!("GGUF {key}"), |number| number.to_string());
            let number = value.real().and_then(Number::from_f64);
            values.insert(hub.to_owned(), number.map_or_else(|| Value::from(text), Value::Number));
        }
    }
    let said = lookup("rope.scaling.type").map(|kind| kind.text().unwrap_or("of no name")).filter(|kind| *kind != "none");
    // Older files give only the factor of linear scaling.
    let linear = lookup("rope.scale_linear").is_some_and(|factor| factor.real() != Some(1.0));
    if let Some(kind) = said.or(linear.then_some("linear")) {
        values.insert("rope_scaling".to_owned(), serde_json::json!({ "rope_type": kind }));
    }
    let config = Config::new(cursor.path(), architecture.to_owned(), values, names::spelled);
    for key in ["rope.dimension_count", "attention.value_length"] {
        let wanted = head_dim(&config)?.map(|d| d as u64);
        if let (Some(found), Some(wanted)) = (lookup(key).and_then(MetaValue::unsigned), wanted)
            && found != wanted
        {
            let what = format!("{architecture}.{key} {found} with heads of {wanted}");
            return Err(CheckpointError::unsupported(cursor.path(), what, "use a model whose heads are rotated whole"));
        }
    }
    Ok(config)
}

/// Elements of a head: said, or hidden size over heads.
fn head_dim(config: &Config) -> Result<Option<usize>, CheckpointError> {
    if let Some(said) = config.optional_size("head_dim")? {
        return Ok(Some(said));
    }
    let hidden = config.optional_size("hidden_size")?;
    let heads = config.optional_size("num_attention_heads")?;
    Ok(hidden.zip(heads).map(|(hidden, heads)| hidden / heads).filter(|&d| d > 0))
}

/// What GGUF says through the tensors it holds rather than through metadata.
fn complete_config(config: &mut Config, entries: &std::collections::BTreeMap<String, super::stored::StoredTensor>) {
    config.set_missing("tie_word_embeddings", Value::from(!entries.contains_key("lm_head.weight")));
    config.set_missing("attention_bias", Value::from(entries.contains_key("model.layers.0.self_attn.q_proj.bias")));
    config.set_missing("mlp_bias", Value::from(entries.contains_key("model.layers.0.mlp.gate_proj.bias")));
    if let Some(rows) = entries.get("model.embed_tokens.weight").and_then(|t| t.matrix()).map(|(rows, _)| rows) {
        config.set_missing("vocab_size", Value::from(rows));
    }
}
