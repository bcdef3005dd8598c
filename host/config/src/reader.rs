//! A walk over a TOML table that notes every error and goes on: a value that cannot be used is replaced by its default, so that
//! the rest is checked in the same pass. Knows types, ranges and lines; knows no key by name.

use std::collections::BTreeSet;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::suggest::nearest;
use crate::{ConfigError, ErrorKind};

mod scalars;
mod section;
#[cfg(test)]
mod tests;

pub(crate) use section::{Named, Section};

/// The errors of one text and the keys that were asked for.
pub(crate) struct Reader {
    /// Byte offset of the start of each line.
    line_starts: Vec<usize>,
    errors: Vec<ConfigError>,
    known: BTreeSet<String>,
}

impl Reader {
    pub(crate) fn new(text: &str) -> Self {
        let after_newlines = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(index, _)| index + 1);
        let line_starts = std::iter::once(0).chain(after_newlines).collect();
        Self { line_starts, errors: Vec::new(), known: BTreeSet::new() }
    }

    /// Notes what the TOML parser found. False: the keys of the text cannot be told, so that a walk would report what is not there.
    pub(crate) fn take_syntax_errors(&mut self, text: &str, found: &[toml::de::Error]) -> bool {
        let mut readable = true;
        for error in found {
            // A second key or table of one name loses nothing but itself.
            let twice = error.message() == "duplicate key";
            readable &= twice;
            let (kind, message, hint) = if twice {
                let name = error.span().and_then(|span| text.get(span)).unwrap_or_default();
                (ErrorKind::Duplicate, format!("{} is there a second time", shown(name)), "rename or remove one of the two")
            } else {
                (ErrorKind::Syntax, format!("no TOML: {}", error.message()), "text is quoted, tables are `[name]`; see toml.io")
            };
            let line = error.span().map(|span| self.line_of(&span));
            self.errors.push(ConfigError { kind, path: String::new(), line, message, hint: hint.to_owned() });
        }
        readable
    }

    /// The whole document as a section without a name.
    pub(crate) fn root<'r, 't>(&'r mut self, table: &'t DeTable<'t>) -> Section<'r, 't> {
        Section::root(self, table)
    }

    pub(crate) fn push(&mut self, error: ConfigError) {
        self.errors.push(error);
    }

    pub(crate) fn error_count(&self) -> usize {
        self.errors.len()
    }

    pub(crate) fn into_errors(self) -> Vec<ConfigError> {
        self.errors
    }

    pub(crate) fn into_known(self) -> BTreeSet<String> {
        self.known
    }

    /// Lines count from 1.
    fn line_of(&self, span: &Range<usize>) -> u32 {
        let line = self.line_starts.partition_point(|&start| start <= span.start);
        u32::try_from(line.max(1)).unwrap_or(u32::MAX)
    }
}

/// A value as a message shows it: on one line, without control characters, cut.
pub(crate) fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let cut: String = text.chars().take(MAX_CHARS).collect();
    let ellipsis = if cut.len() < text.len() { ".." } else { "" };
    format!("`{}{ellipsis}`", cut.escape_debug())
}

/// A key as TOML would write it.
fn key_text(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if bare { key.to_owned() } else { format!("\"{}\"", shown(key).trim_matches('`')) }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// With article: `an integer`.
fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date-time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// `did you mean X?` or the list, for a name that is not one of `names`.
pub(crate) fn hint_for(typed: &str, names: &[&str]) -> String {
    match (nearest(typed, names.iter().copied()), names) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, []) => "there is none".to_owned(),
        (None, names) => format!("use one of {}", names.join(", ")),
    }
}

/// Where a table or a value stands.
type Entry<'t> = (&'t Spanned<std::borrow::Cow<'t, str>>, &'t Spanned<DeValue<'t>>);
