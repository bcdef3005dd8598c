//! One table of the text: asks for keys by name, reports those that nobody asked for.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::{Entry, Reader, hint_for, join, key_text, shown, type_of};
use crate::{ConfigError, ErrorKind};

/// An open table. A section that the text lacks is an empty one, so that its defaults come from the same lines of code.
pub(crate) struct Section<'r, 't> {
    pub(super) reader: &'r mut Reader,
    table: Option<&'t DeTable<'t>>,
    /// `pool.fast`
    path: String,
    /// `pool.*`
    pattern: String,
    line: Option<u32>,
    asked: Vec<&'static str>,
    /// Errors of the reader when this section was opened.
    errors_before: usize,
}

/// A table whose name the operator chose.
pub(crate) struct Named<'t> {
    pub(crate) name: String,
    span: Range<usize>,
    table: Option<&'t DeTable<'t>>,
}

impl<'r, 't> Section<'r, 't> {
    pub(super) fn root(reader: &'r mut Reader, table: &'t DeTable<'t>) -> Self {
        let errors_before = reader.error_count();
        let (path, pattern) = (String::new(), String::new());
        Self { reader, table: Some(table), path, pattern, line: None, asked: Vec::new(), errors_before }
    }

    /// The table `[key]`.
    pub(crate) fn section(&mut self, key: &'static str) -> Section<'_, 't> {
        let entry = self.entry(key);
        let (span, table) = match entry {
            Some((name, value)) => (Some(name.span()), self.as_table(key, value.get_ref())),
            None => (None, None),
        };
        let line = span.map(|span| self.reader.line_of(&span));
        let (path, pattern) = (join(&self.path, key), join(&self.pattern, key));
        let errors_before = self.reader.error_count();
        Section { reader: self.reader, table, path, pattern, line, asked: Vec::new(), errors_before }
    }

    /// The tables `[key.NAME]` in the order of the text.
    pub(crate) fn named(&mut self, key: &'static str) -> Vec<Named<'t>> {
        let Some((_, value)) = self.entry(key) else { return Vec::new() };
        let Some(table) = self.as_table(key, value.get_ref()) else { return Vec::new() };
        let mut named: Vec<Named<'t>> = Vec::new();
        for (name, value) in table {
            let path = join(&join(&self.path, key), &key_text(name.get_ref()));
            let found = match value.get_ref() {
                DeValue::Table(table) => Some(table),
                other => {
                    let hint = format!("write it as a table of its own: `[{key}.NAME]`");
                    let message = format!("is {}, but `{key}` holds named tables", type_of(other));
                    self.push(ErrorKind::WrongType, path.clone(), Some(name.span()), message, &hint);
                    None
                }
            };
            if !is_name(name.get_ref()) {
                let message = format!("{} cannot be a name", shown(name.get_ref()));
                let hint = "names have 1 to 64 letters, digits, `-`, `_` or `.` and start with a letter or digit";
                self.push(ErrorKind::Impossible, path, Some(name.span()), message, hint);
            }
            named.push(Named { name: name.get_ref().to_string(), span: name.span(), table: found });
        }
        named.sort_by_key(|named| named.span.start);
        named
    }

    /// Opens one of the tables that [`Section::named`] gave for `key`.
    pub(crate) fn open(&mut self, key: &'static str, named: &Named<'t>) -> Section<'_, 't> {
        let path = join(&join(&self.path, key), &key_text(&named.name));
        let pattern = format!("{}.*", join(&self.pattern, key));
        let line = Some(self.reader.line_of(&named.span));
        let errors_before = self.reader.error_count();
        Section { reader: self.reader, table: named.table, path, pattern, line, asked: Vec::new(), errors_before }
    }

    /// Reports every key that was not asked for. True: nothing in this table was wrong.
    pub(crate) fn finish(&mut self) -> bool {
        for (name, value) in self.table.into_iter().flatten() {
            let key: &str = name.get_ref();
            if self.asked.contains(&key) {
                continue;
            }
            let what = if matches!(value.get_ref(), DeValue::Table(_)) { "table" } else { "key" };
            self.reader.push(ConfigError {
                kind: ErrorKind::UnknownKey,
                path: join(&self.path, &key_text(key)),
                line: Some(self.reader.line_of(&name.span())),
                message: format!("unknown {what} {}", shown(key)),
                hint: hint_for(key, &self.asked),
            });
        }
        self.reader.error_count() == self.errors_before
    }

    /// The value of a key, which counts as asked for from now on.
    pub(super) fn entry(&mut self, key: &'static str) -> Option<Entry<'t>> {
        if !self.asked.contains(&key) {
            self.asked.push(key);
            self.reader.known.insert(join(&self.pattern, key));
        }
        self.table.and_then(|table| table.get_key_value(key))
    }

    /// Whether the text gives this key.
    pub(crate) fn has(&mut self, key: &'static str) -> bool {
        self.entry(key).is_some()
    }

    /// An error about the value of a key, or about the table if it lacks the key.
    pub(crate) fn error(&mut self, kind: ErrorKind, key: &'static str, message: String, hint: &str) {
        let span = self.entry(key).map(|(name, _)| name.span());
        self.push(kind, join(&self.path, key), span, message, hint);
    }

    /// An error about one element of an array.
    pub(super) fn error_at(&mut self, key: &str, span: Range<usize>, message: String, hint: &str) {
        self.push(ErrorKind::WrongType, join(&self.path, key), Some(span), message, hint);
    }

    /// An error about the table as a whole.
    pub(crate) fn error_here(&mut self, kind: ErrorKind, message: String, hint: &str) {
        self.push(kind, self.path.clone(), None, message, hint);
    }

    /// Notes that a key's value has another type than `wanted`.
    pub(super) fn wrong_type(&mut self, key: &'static str, value: &DeValue<'_>, wanted: &str, example: &str) {
        let message = format!("is {}, not {wanted}", type_of(value));
        self.error(ErrorKind::WrongType, key, message, &format!("write `{key} = {example}`"));
    }

    fn as_table(&mut self, key: &'static str, value: &'t DeValue<'t>) -> Option<&'t DeTable<'t>> {
        match value {
            DeValue::Table(table) => Some(table),
            other => {
                let message = format!("is {}, not a table", type_of(other));
                self.error(ErrorKind::WrongType, key, message, &format!("write `[{}]`", join(&self.path, key)));
                None
            }
        }
    }

    fn push(&mut self, kind: ErrorKind, path: String, span: Option<Range<usize>>, message: String, hint: &str) {
        let line = span.map(|span| self.reader.line_of(&span)).or(self.line);
        self.reader.push(ConfigError { kind, path, line, message, hint: hint.to_owned() });
    }
}

/// Names end up in metrics, logs and paths of the admin API.
fn is_name(name: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    name.len() <= 64 && name.bytes().all(allowed) && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
}
