//! Hub directories: config.json, one model.safetensors or several with an index, and the small files beside them.
//! Does not know what an architecture needs, nor how tensors are quantized.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::config::{Config, MAX_CONFIG};
use super::file::{MappedFile, read_text};
use super::safetensors::read_header;
use super::stored::TensorTable;
use super::vocab::TokenizerSource;
use crate::CheckpointError;

const MAX_INDEX: usize = 64 << 20;
const MAX_SHARDS: usize = 4096;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// What a hub directory says.
pub(super) struct Hub {
    pub(super) config: Config,
    pub(super) table: TensorTable,
    pub(super) chat_template: Option<String>,
    pub(super) eos_tokens: Vec<u32>,
    directory: PathBuf,
}

impl Hub {
    pub(super) fn read(directory: &Path) -> Result<Self, CheckpointError> {
        let path = directory.join("config.json");
        if !path.exists() {
            let found = "a directory without config.json".to_owned();
            return Err(CheckpointError::NotACheckpoint { path: directory.to_path_buf(), found });
        }
        let config = Config::read(&path)?;
        let table = if directory.join(SINGLE).exists() {
            read_single(&directory.join(SINGLE))?
        } else if directory.join(INDEX).exists() {
            read_sharded(directory)?
        } else {
            let found = format!("it holds neither {SINGLE} nor {INDEX}");
            return Err(CheckpointError::NotACheckpoint { path: directory.to_path_buf(), found });
        };
        let eos_tokens = eos_tokens(directory, &config)?;
        let chat_template = chat_template(directory)?;
        Ok(Self { config, table, chat_template, eos_tokens, directory: directory.to_path_buf() })
    }

    pub(super) fn tokenizer(&self) -> TokenizerSource {
        let existing = |name: &str| Some(self.directory.join(name)).filter(|p| p.is_file());
        match existing("tokenizer.json") {
            Some(tokenizer_json) => {
                TokenizerSource::Files { tokenizer_json, tokenizer_config: existing("tokenizer_config.json") }
            }
            None => TokenizerSource::Missing,
        }
    }
}

fn read_single(path: &Path) -> Result<TensorTable, CheckpointError> {
    let file = MappedFile::open(path)?;
    let entries = read_header(&file, 0)?;
    Ok(TensorTable { files: vec![file], entries })
}

fn read_sharded(directory: &Path) -> Result<TensorTable, CheckpointError> {
    let path = directory.join(INDEX);
    let damaged = |why: &str| CheckpointError::damaged(&path, "index", why);
    let index: Map<String, Value> = serde_json::from_str(&read_text(&path, MAX_INDEX)?).map_err(|e| damaged(&e.to_string()))?;
    let Some(Value::Object(map)) = index.get("weight_map") else { return Err(damaged("it has no object `weight_map`")) };
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in map {
        let shard = shard.as_str().filter(|name| is_plain_name(name));
        let shard =
            shard.ok_or_else(|| damaged(&format!("`{tensor}` lies in something that is no file name of this directory")))?;
        shards.entry(shard).or_default().push(tensor);
    }
    if shards.is_empty() || shards.len() > MAX_SHARDS {
        return Err(damaged(&format!("it names {} files, not 1 to {MAX_SHARDS}", shards.len())));
    }
    let mut table = TensorTable { files: Vec::new(), entries: BTreeMap::new() };
    for (shard, tensors) in shards {
        let shard_path = directory.join(shard);
        if !shard_path.exists() {
            return Err(CheckpointError::MissingFile { path: shard_path, named_by: INDEX.to_owned() });
        }
        let file = MappedFile::open(&shard_path)?;
        let mut found = read_header(&file, table.files.len())?;
        for tensor in tensors {
            let Some(entry) = found.remove(tensor) else {
                let why = format!("is not in the file that {INDEX} names for it");
                return Err(CheckpointError::tensor(&shard_path, tensor, why));
            };
            table.entries.insert(tensor.to_owned(), entry);
        }
        // What the index does not know is not used; what it puts elsewhere would be here a second time.
        if let Some((tensor, elsewhere)) = found.keys().find_map(|tensor| Some((tensor, map.get(tensor)?.as_str()?))) {
            let why = format!("is here and, as {INDEX} has it, in {elsewhere}");
            return Err(CheckpointError::tensor(&shard_path, tensor, why));
        }
        table.files.push(file);
    }
    Ok(table)
}

/// A file name without any path, so that an index cannot point outside its directory.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && Path::new(name).file_name().is_some_and(|last| last == name)
}

/// generation_config.json decides, else config.json.
fn eos_tokens(directory: &Path, config: &Config) -> Result<Vec<u32>, CheckpointError> {
    let path = directory.join("generation_config.json");
    if path.exists() {
        let generation = read_object(&path)?;
        let ids = Config::new(&path, String::new(), generation, str::to_owned).token_ids("eos_token_id")?;
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    config.token_ids("eos_token_id")
}

/// chat_template.jinja decides, else the `chat_template` of tokenizer_config.json: a text, or a list of named ones of which
/// `default` is meant.
fn chat_template(directory: &Path) -> Result<Option<String>, CheckpointError> {
    let own = directory.join("chat_template.jinja");
    if own.exists() {
        return read_text(&own, MAX_CONFIG).map(Some);
    }
    let path = directory.join("tokenizer_config.json");
    if !path.exists() {
        return Ok(None);
    }
    let values = read_object(&path)?;
    Ok(match values.get("chat_template") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(list)) => {
            let default = list.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"));
            default.and_then(|t| t.get("template")).and_then(Value::as_str).map(str::to_owned)
        }
        _ => None,
    })
}

fn read_object(path: &Path) -> Result<Map<String, Value>, CheckpointError> {
    serde_json::from_str(&read_text(path, MAX_CONFIG)?).map_err(|e| CheckpointError::damaged(path, "JSON object", e.to_string()))
}
