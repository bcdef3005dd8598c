//! What can be wrong with a configuration, and how it is said. Knows nothing of what is configured.

use std::fmt;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub kind: ErrorKind,
    /// `pool.fast.recipe`; empty where the whole file is meant.
    pub path: String,
    /// From 1; `None` where the file has no such line.
    pub line: Option<u32>,
    /// What is wrong, with the value.
    pub message: String,
    /// What to do; may be empty.
    pub hint: String,
}

/// Why a value cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorKind {
    /// The file cannot be read, is too large or is not UTF-8.
    Unreadable,
    /// It is no TOML.
    Syntax,
    /// The same key or table twice.
    Duplicate,
    UnknownKey,
    WrongType,
    /// A key or section that has no default.
    Missing,
    /// Of the right type, but not a value that the key can have.
    Impossible,
    /// A name that refers to nothing.
    UnknownName,
    /// Possible alone, impossible with another value.
    Conflict,
}

/// Everything that is wrong with one file, in the order of its lines. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    source_name: String,
    errors: Vec<ConfigError>,
    left_out: usize,
}

/// Errors that are shown: a file of another kind would fill the terminal.
const MAX_SHOWN: usize = 200;

impl ConfigErrors {
    pub(crate) fn new(source_name: &str, mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by_key(|error| error.line.unwrap_or(0));
        let left_out = errors.len().saturating_sub(MAX_SHOWN);
        errors.truncate(MAX_SHOWN);
        Self { source_name: source_name.to_owned(), errors, left_out }
    }

    /// The whole file is meant.
    pub(crate) fn of_file(source_name: &str, message: String, hint: &str) -> Self {
        let error = ConfigError { kind: ErrorKind::Unreadable, path: String::new(), line: None, message, hint: hint.to_owned() };
        Self::new(source_name, vec![error])
    }

    /// The first 200, in the order of the file.
    pub fn errors(&self) -> &[ConfigError] {
        &self.errors
    }

    /// How many there are in all.
    pub fn total(&self) -> usize {
        self.errors.len().saturating_add(self.left_out)
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total();
        write!(f, "{}: {total} error{} in the configuration", self.source_name, if total == 1 { "" } else { "s" })?;
        for error in &self.errors {
            write!(f, "\n  {error}")?;
        }
        if self.left_out > 0 {
            write!(f, "\n  and {} more", self.left_out)?;
        }
        Ok(())
    }
}

impl fmt::Display for ConfigError {
    /// `line 12, pool.fast.recipe: what is wrong` and the hint on a line of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.path.as_str()) {
            (Some(line), "") => write!(f, "line {line}: ")?,
            (Some(line), path) => write!(f, "line {line}, {path}: ")?,
            (None, "") => {}
            (None, path) => write!(f, "{path}: ")?,
        }
        f.write_str(&self.message)?;
        if !self.hint.is_empty() {
            write!(f, "\n      hint: {}", self.hint)?;
        }
        Ok(())
    }
}
