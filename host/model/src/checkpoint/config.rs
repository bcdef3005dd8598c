//! A checkpoint's configuration under the hub's keys, whichever file it came from, with getters that check every value.
//! Does not know which keys an architecture wants.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::file::read_text;
use crate::CheckpointError;

/// A configuration is a page or a list of a few thousand modules.
pub(super) const MAX_CONFIG: usize = 16 << 20;
/// No size in a configuration may be larger, so that the product of two fits 64 bits.
const MAX_SIZE: u64 = 1 << 28;

/// Values of `config.json`, or of GGUF metadata translated to its keys.
#[derive(Debug, Clone)]
pub struct Config {
    path: PathBuf,
    architecture: String,
    /// What else names the architecture, by key: `model_type`, and both keys of a wrapper's text model.
    also_named: Vec<(String, String)>,
    /// Put before keys in messages: `rope_parameters.`.
    prefix: String,
    /// The values are those of the text model inside a wrapper.
    wrapped: bool,
    values: Map<String, Value>,
    /// A key as the file spells it, for messages.
    spell: fn(&str) -> String,
}

impl Config {
    pub(crate) fn new(path: &Path, architecture: String, values: Map<String, Value>, spell: fn(&str) -> String) -> Self {
        let (path, also_named, prefix) = (path.to_path_buf(), Vec::new(), String::new());
        Self { path, architecture, also_named, prefix, wrapped: false, values, spell }
    }

    /// Reads a `config.json` of at most 16 MiB.
    ///
    /// # Errors
    /// [`CheckpointError::Unreadable`], or [`CheckpointError::Damaged`] and [`CheckpointError::Config`] for what is in it.
    pub fn read(path: &Path) -> Result<Self, CheckpointError> {
        Self::from_json(path, &read_text(path, MAX_CONFIG)?)
    }

    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] where it is no JSON object, [`CheckpointError::Config`] where it names no architecture.
    pub(crate) fn from_json(path: &Path, text: &str) -> Result<Self, CheckpointError> {
        let values: Map<String, Value> =
            serde_json::from_str(text).map_err(|e| CheckpointError::damaged(path, "JSON object", e.to_string()))?;
        let mut config = Self::new(path, String::new(), values, str::to_owned);
        let mut names = config.names()?;
        if names.is_empty() {
            return Err(config.wrong("architectures", "names no model class"));
        }
        config.architecture = names.remove(0).1;
        config.unwrap_text_model();
        if config.wrapped {
            names.extend(config.names()?);
        }
        config.also_named = names;
        Ok(config)
    }

    /// The model class and the model type, as far as they are given, under their keys.
    fn names(&self) -> Result<Vec<(String, String)>, CheckpointError> {
        let class = match self.value("architectures") {
            None => None,
            Some(Value::Array(list)) if list.iter().all(Value::is_string) => list.first().and_then(Value::as_str),
            Some(other) => return Err(self.wrong("architectures", format!("is {}, not a list of strings", brief(other)))),
        };
        let kind = self.text("model_type")?.filter(|kind| !kind.is_empty());
        let names = [("architectures", class), ("model_type", kind)].into_iter();
        Ok(names.filter_map(|(key, name)| Some((self.spelled(key), name?.to_owned()))).collect())
    }

    /// Wrappers of several models keep the text model's values in a table of its own, beside a few of theirs.
    fn unwrap_text_model(&mut self) {
        if let Some(Value::Object(inner)) = self.values.get("text_config") {
            let mut inner = inner.clone();
            for (key, value) in &self.values {
                let ours = !matches!(key.as_str(), "text_config" | "vision_config" | "architectures" | "model_type");
                if ours && inner.get(key).is_none_or(Value::is_null) {
                    inner.insert(key.clone(), value.clone());
                }
            }
            self.values = inner;
            self.wrapped = true;
            self.prefix = "text_config.".to_owned();
        }
    }

    /// Whether the values are those of the text model inside a wrapper.
    pub fn is_wrapped(&self) -> bool {
        self.wrapped
    }

    /// The file that the values came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Model class (`LlamaForCausalLM`) or GGUF architecture (`llama`).
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Whether the key is given, be it as null.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// What else names the architecture, by key.
    pub(crate) fn also_named(&self) -> impl Iterator<Item = (&str, &str)> {
        self.also_named.iter().map(|(key, name)| (key.as_str(), name.as_str()))
    }

    /// A value that is present and not null.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|v| !v.is_null())
    }

    /// For keys with a default that changes what the model computes: they are given or left out, and null is neither.
    ///
    /// # Errors
    /// [`CheckpointError::Config`] with the first that is null.
    pub fn refuse_null(&self, keys: &[&str]) -> Result<(), CheckpointError> {
        match keys.iter().find(|key| self.values.get(**key).is_some_and(Value::is_null)) {
            Some(key) => Err(self.wrong(key, "is null; give the value, or leave the key out for the default")),
            None => Ok(()),
        }
    }

    /// A size, 1 to 2^28.
    ///
    /// # Errors
    /// [`CheckpointError::Config`] where it is missing, no integer or out of range; so for all getters below.
    pub fn size(&self, key: &str) -> Result<usize, CheckpointError> {
        self.optional_size(key)?.ok_or_else(|| self.missing(key))
    }

    /// [`Self::size`], or `default` where the key is left out; null is an error. So for all getters that end in `_or`.
    pub fn size_or(&self, key: &str, default: usize) -> Result<usize, CheckpointError> {
        self.refuse_null(&[key])?;
        Ok(self.optional_size(key)?.unwrap_or(default))
    }

    /// Missing or null: `None`. For keys whose null means something; so for all getters that begin with `optional_`.
    pub fn optional_size(&self, key: &str) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64().filter(|n| (1..=MAX_SIZE).contains(n)).and_then(|n| usize::try_from(n).ok()) {
            Some(size) => Ok(Some(size)),
            None => Err(self.wrong(key, format!("is {}, not an integer from 1 to {MAX_SIZE}", brief(value)))),
        }
    }

    /// A count, 0 to 2^28.
    pub fn optional_count(&self, key: &str) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64().filter(|n| *n <= MAX_SIZE).and_then(|n| usize::try_from(n).ok()) {
            Some(count) => Ok(Some(count)),
            None => Err(self.wrong(key, format!("is {}, not an integer from 0 to {MAX_SIZE}", brief(value)))),
        }
    }

    /// A count, 0 to 2^28.
    pub fn count_or(&self, key: &str, default: usize) -> Result<usize, CheckpointError> {
        self.refuse_null(&[key])?;
        Ok(self.optional_count(key)?.unwrap_or(default))
    }

    /// A list of counts.
    pub fn counts(&self, key: &str) -> Result<Option<Vec<usize>>, CheckpointError> {
        let count = |v: &Value| v.as_u64().filter(|n| *n <= MAX_SIZE).and_then(|n| usize::try_from(n).ok());
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(list)) if list.iter().all(|v| count(v).is_some()) => {
                Ok(Some(list.iter().filter_map(count).collect()))
            }
            Some(other) => Err(self.wrong(key, format!("is {}, not a list of counts", brief(other)))),
        }
    }

    /// A list of strings.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, CheckpointError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(list)) if list.iter().all(Value::is_string) => {
                Ok(Some(list.iter().filter_map(Value::as_str).collect()))
            }
            Some(other) => Err(self.wrong(key, format!("is {}, not a list of strings", brief(other)))),
        }
    }

    /// A finite number.
    pub fn optional_number(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_f64().filter(|n| (*n as f32).is_finite()) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, format!("is {}, not a number", brief(value)))),
        }
    }

    /// A finite number above zero.
    pub fn positive(&self, key: &str) -> Result<f64, CheckpointError> {
        self.optional_positive(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn optional_positive(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        // The computation is in f32, so the value must be a number there too.
        let usable = |n: &f64| *n > 0.0 && (*n as f32).is_finite() && *n as f32 > 0.0;
        match value.as_f64().filter(usable) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, format!("is {}, not a number above 0", brief(value)))),
        }
    }

    /// A finite number above zero.
    pub fn positive_or(&self, key: &str, default: f64) -> Result<f64, CheckpointError> {
        self.refuse_null(&[key])?;
        Ok(self.optional_positive(key)?.unwrap_or(default))
    }

    /// A boolean; `default` where it is left out. Null is an error: to some readers it is false, to some the default.
    pub fn flag(&self, key: &str, default: Flag) -> Result<bool, CheckpointError> {
        self.refuse_null(&[key])?;
        match self.value(key) {
            None => Ok(default == Flag::On),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.wrong(key, format!("is {}, not true or false", brief(other)))),
        }
    }

    pub fn text(&self, key: &str) -> Result<Option<&str>, CheckpointError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, format!("is {}, not a string", brief(other)))),
        }
    }

    /// The table under `key`.
    pub fn section(&self, key: &str) -> Result<Option<Self>, CheckpointError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(values)) => Ok(Some(Self {
                path: self.path.clone(),
                architecture: self.architecture.clone(),
                also_named: Vec::new(),
                prefix: format!("{}{key}.", self.prefix),
                wrapped: self.wrapped,
                values: values.clone(),
                spell: self.spell,
            })),
            Some(other) => Err(self.wrong(key, format!("is {}, not an object", brief(other)))),
        }
    }

    /// Token ids under `key`: one number or a list of at most 64.
    pub(crate) fn token_ids(&self, key: &str) -> Result<Vec<u32>, CheckpointError> {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let ids = match self.value(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() <= 64 => list.iter().map(id).collect(),
            Some(one) => id(one).map(|n| vec![n]),
        };
        ids.ok_or_else(|| self.wrong(key, "is neither a token id nor a list of at most 64"))
    }

    /// Adds what a format says otherwise than through its metadata.
    pub(crate) fn set_missing(&mut self, key: &str, value: Value) {
        self.values.entry(key).or_insert(value);
    }

    /// The error for a value that cannot be used.
    pub fn wrong(&self, key: &str, why: impl Into<String>) -> CheckpointError {
        CheckpointError::Config { path: self.path.clone(), key: self.spelled(key), why: why.into() }
    }

    /// The error for a key that is spelled out already.
    pub(crate) fn contradiction(&self, key: &str, why: String) -> CheckpointError {
        CheckpointError::Config { path: self.path.clone(), key: key.to_owned(), why }
    }

    /// A key as the file spells it, with the tables that it is in.
    pub(crate) fn spelled(&self, key: &str) -> String {
        format!("{}{}", self.prefix, (self.spell)(key))
    }

    /// A value that is given, cut to a line's worth.
    pub(crate) fn shown(&self, key: &str) -> Option<String> {
        self.value(key).map(cut)
    }

    fn missing(&self, key: &str) -> CheckpointError {
        self.wrong(key, "is missing")
    }

    /// The values as canonical JSON (keys sorted), for the digest.
    pub(crate) fn canonical(&self) -> String {
        Value::Object(self.values.clone()).to_string()
    }
}

/// What a missing boolean means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    Off,
    On,
}

/// A value for a message, cut to a line's worth.
fn brief(value: &Value) -> String {
    format!("`{}`", cut(value))
}

fn cut(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 40 { text } else { text.chars().take(37).collect::<String>() + "..." }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::from_json(Path::new("config.json"), text).unwrap()
    }

    #[test]
    fn values_of_the_wrong_type_or_range_are_errors_with_the_key() {
        let config = config(
            r#"{"model_type":"llama","zero":0,"huge":268435457,"half":0.5,"text":"x","eps":-1e-6,"tiny":1e-60,"s":{"factor":"8"}}"#,
        );
        for key in ["zero", "huge", "half", "text", "absent"] {
            assert!(config.size(key).unwrap_err().to_string().contains(key));
        }
        for key in ["zero", "eps", "tiny", "text", "absent"] {
            assert!(config.positive(key).unwrap_err().to_string().contains(key));
        }
        assert!(config.flag("zero", Flag::Off).is_err());
        assert!(config.flag("absent", Flag::On).unwrap());
        assert_eq!((config.size_or("absent", 3).unwrap(), config.count_or("zero", 3).unwrap()), (3, 0));
        assert!(config.size_or("zero", 3).is_err() && config.positive_or("eps", 1.0).is_err());
        let section = config.section("s").unwrap().unwrap();
        assert!(section.positive("factor").unwrap_err().to_string().contains("`s.factor`"));
    }

    #[test]
    fn null_is_absent_unless_it_is_refused() {
        let config = config(r#"{"model_type":"llama","eps":null,"one":1}"#);
        assert_eq!(config.optional_positive("eps").unwrap(), None);
        for error in [config.size_or("eps", 1).err(), config.count_or("eps", 1).err(), config.positive_or("eps", 1.0).err()] {
            assert!(error.unwrap().to_string().contains("`eps` is null"));
        }
        assert!(config.flag("eps", Flag::On).unwrap_err().to_string().contains("`eps` is null"));
        assert!(config.refuse_null(&["one", "absent"]).is_ok());
        assert!(config.refuse_null(&["one", "eps"]).unwrap_err().to_string().contains("`eps` is null"));
    }

    #[test]
    fn token_ids_are_one_or_a_short_list() {
        let config = config(r#"{"model_type":"llama","one":2,"many":[1,2],"bad":[-1],"null":null}"#);
        assert_eq!(config.token_ids("one").unwrap(), [2]);
        assert_eq!(config.token_ids("many").unwrap(), [1, 2]);
        assert!(config.token_ids("null").unwrap().is_empty());
        assert!(config.token_ids("bad").is_err());
    }

    #[test]
    fn a_config_without_architecture_is_an_error() {
        assert!(Config::from_json(Path::new("c"), "{}").is_err());
        assert!(Config::from_json(Path::new("c"), "[]").is_err());
        assert!(Config::from_json(Path::new("c"), &"[".repeat(100_000)).is_err());
    }
}
