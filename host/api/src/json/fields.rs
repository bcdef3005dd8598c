//! The fields of a JSON object, each kept as the text it came in until somebody asks for it with a type.
//!
//! Unknown fields are skipped without being stored, a known field that comes twice is an error, and every error names the field.
//! It does not know which fields there are: callers give the list.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::ApiError;

/// The known fields of one object. `null` counts as absent.
pub(crate) struct Fields<'a> {
    /// Where the object stands, as `messages[3]`; empty for the body itself.
    at: Cow<'static, str>,
    entries: Vec<(&'static str, &'a str)>,
}

impl<'a> Fields<'a> {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// 400 where it is no JSON object or names a known field twice.
    pub(crate) fn of_body(body: &'a str, known: &'static [&'static str]) -> Result<Self, ApiError> {
        Self::parse(body, known, Cow::Borrowed(""))
    }

    /// Reads an object inside the body.
    ///
    /// # Errors
    /// As [`Fields::of_body`], with `at` as the field.
    pub(crate) fn of_value(text: &'a str, known: &'static [&'static str], at: String) -> Result<Self, ApiError> {
        Self::parse(text, known, Cow::Owned(at))
    }

    fn parse(text: &'a str, known: &'static [&'static str], at: Cow<'static, str>) -> Result<Self, ApiError> {
        let mut twice = None;
        let mut entries = Vec::new();
        let mut source = serde_json::Deserializer::from_str(text);
        let read =
            ObjectSeed { known, entries: &mut entries, twice: &mut twice }.deserialize(&mut source).and_then(|()| source.end());
        match (read, twice) {
            (Ok(()), None) => Ok(Self { at, entries }),
            (Ok(()), Some(name)) => {
                let fields = Self { at, entries: Vec::new() };
                Err(fields.error(name, "appears twice; send it once"))
            }
            (Err(error), _) if at.is_empty() => Err(ApiError::bad_request(body_fault(text, &error))),
            (Err(_), _) => Err(ApiError::field(at.clone(), format!("`{at}` must be a JSON object"))),
        }
    }

    /// The full name of a field of this object.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// An error about a field: its name and what is wrong with it.
    pub(crate) fn error(&self, name: &str, wrong: &str) -> ApiError {
        let path = self.path(name);
        let message = format!("`{path}` {wrong}");
        ApiError::field(path, message)
    }

    /// The text of a field, unless it is absent or null.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a str> {
        self.entries.iter().find(|(n, _)| *n == name).map(|(_, raw)| *raw).filter(|raw| *raw != "null")
    }

    /// # Errors
    /// Where the field is there and no boolean.
    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.raw(name) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => Err(self.error(name, &format!("must be true or false, not {}", kind_of(other)))),
        }
    }

    /// # Errors
    /// Where the field is there and no string, holds half a surrogate pair, or is longer than `limit` bytes.
    pub(crate) fn string(&self, name: &str, limit: usize) -> Result<Option<String>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let text = parse_string(raw).map_err(|wrong| self.error(name, &wrong))?;
        if text.len() > limit {
            return Err(self.error(name, &format!("is longer than {limit} bytes")));
        }
        Ok(Some(text))
    }

    /// # Errors
    /// Where the field is there and no number within `range`.
    pub(crate) fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let must = format!("must be a number from {} to {}", range.start(), range.end());
        let value: f64 = serde_json::from_str(raw).map_err(|_| self.error(name, &wrong_kind(&must, raw)))?;
        if value.is_finite() && range.contains(&value) { Ok(Some(value)) } else { Err(self.error(name, &must)) }
    }

    /// # Errors
    /// Where the field is there and no whole number within `range`.
    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let must = format!("must be a whole number from {} to {}", range.start(), range.end());
        let value: i64 = serde_json::from_str(raw).map_err(|_| self.error(name, &wrong_kind(&must, raw)))?;
        if range.contains(&value) { Ok(Some(value)) } else { Err(self.error(name, &must)) }
    }

    /// The elements of an array, each as its text.
    ///
    /// # Errors
    /// Where the field is there and no array, or has more than `limit` elements.
    pub(crate) fn array(&self, name: &str, limit: usize) -> Result<Option<Vec<&'a str>>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let items = parse_array(raw).ok_or_else(|| self.error(name, &wrong_kind("must be an array", raw)))?;
        if items.len() > limit {
            return Err(self.error(name, &format!("has {} elements; this server takes at most {limit}", items.len())));
        }
        Ok(Some(items))
    }

    /// An array of whole numbers.
    ///
    /// # Errors
    /// Where the field is there and something else, or has more than `limit` elements.
    pub(crate) fn token_ids(&self, name: &str, limit: usize) -> Result<Option<Vec<u32>>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let ids = parse_ids(raw).ok_or_else(|| self.error(name, &wrong_kind("must be an array of token ids", raw)))?;
        if ids.len() > limit {
            return Err(self.error(name, &format!("has {} elements; this server takes at most {limit}", ids.len())));
        }
        Ok(Some(ids))
    }
}

/// A JSON string.
///
/// # Errors
/// What is wrong, to stand after the field's name.
pub(crate) fn parse_string(raw: &str) -> Result<String, String> {
    if !raw.starts_with('"') {
        return Err(wrong_kind("must be a string", raw));
    }
    serde_json::from_str(raw)
        .map_err(|_| "is no valid string: an escape in it is half a surrogate pair or no character".to_owned())
}

/// The elements of a JSON array, each as its text. Nesting is not followed, so depth costs nothing.
pub(crate) fn parse_array(raw: &str) -> Option<Vec<&str>> {
    let items: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
    Some(items.into_iter().map(RawValue::get).collect())
}

pub(crate) fn parse_ids(raw: &str) -> Option<Vec<u32>> {
    serde_json::from_str(raw).ok()
}

/// What a JSON text is, in words.
pub(crate) fn kind_of(raw: &str) -> &'static str {
    match raw.as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'[') => "an array",
        Some(b'{') => "an object",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ if raw.contains(['.', 'e', 'E']) => "a fraction or a number out of range",
        _ => "a number",
    }
}

fn wrong_kind(must: &str, raw: &str) -> String {
    match kind_of(raw) {
        "a number" => must.to_owned(),
        kind => format!("{must}, not {kind}"),
    }
}

fn body_fault(body: &str, error: &serde_json::Error) -> String {
    if body.trim_ascii().is_empty() {
        return "The request body is empty: send a JSON object.".to_owned();
    }
    if error.is_data() {
        return "The request body must be a JSON object.".to_owned();
    }
    format!("The request body is no valid JSON: it goes wrong at line {}, column {}.", error.line(), error.column())
}

struct ObjectSeed<'v, 'a> {
    known: &'static [&'static str],
    entries: &'v mut Vec<(&'static str, &'a str)>,
    twice: &'v mut Option<&'static str>,
}

impl<'a> DeserializeSeed<'a> for ObjectSeed<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for ObjectSeed<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(KeySeed { known: self.known })? {
            let Some(name) = key else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let value: &'a RawValue = map.next_value()?;
            if self.entries.iter().any(|(n, _)| *n == name) {
                *self.twice = Some(name);
            } else {
                self.entries.push((name, value.get()));
            }
        }
        Ok(())
    }
}

/// Finds a key among the known ones without keeping it.
struct KeySeed {
    known: &'static [&'static str],
}

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Option<&'static str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.known.iter().copied().find(|k| *k == name))
    }
}
