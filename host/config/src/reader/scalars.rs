//! Single values of a section: numbers, texts, choices, addresses, digests, lists, tables for policies.

use std::net::SocketAddr;

use toml::de::DeValue;

use super::{Section, hint_for, shown, type_of};
use crate::defaults::{Bounded, MAX_POLICY_CONFIG_BYTES};
use crate::{Digest, ErrorKind, json};

impl Section<'_, '_> {
    /// An integer of a range.
    pub(crate) fn number(&mut self, key: &'static str, bounds: Bounded) -> u64 {
        let Bounded { default, min, max } = bounds;
        let Some((_, value)) = self.entry(key) else { return default };
        let DeValue::Integer(integer) = value.get_ref() else {
            self.wrong_type(key, value.get_ref(), "an integer", &default.to_string());
            return default;
        };
        let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
        match number.and_then(|number| u64::try_from(number).ok()).filter(|number| (min..=max).contains(number)) {
            Some(number) => number,
            None => {
                let message = format!("{} is out of range", shown(&integer.to_string()));
                let hint = format!("use {min} to {max}; the default is {default}");
                self.error(ErrorKind::Impossible, key, message, &hint);
                default
            }
        }
    }

    /// As [`Section::number`], for ranges that end below 2^32.
    pub(crate) fn count(&mut self, key: &'static str, bounds: Bounded) -> u32 {
        u32::try_from(self.number(key, bounds)).unwrap_or(u32::MAX)
    }

    /// As [`Section::count`], where 0 says "no value of its own".
    pub(crate) fn count_or_none(&mut self, key: &'static str, bounds: Bounded) -> Option<u32> {
        Some(self.count(key, bounds)).filter(|&count| count > 0)
    }

    pub(crate) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        let Some((_, value)) = self.entry(key) else { return default };
        match value.get_ref() {
            DeValue::Boolean(flag) => *flag,
            other => {
                self.wrong_type(key, other, "a boolean", "true` or `false");
                default
            }
        }
    }

    /// A text that is not empty.
    pub(crate) fn text(&mut self, key: &'static str, example: &str) -> Option<String> {
        let (_, value) = self.entry(key)?;
        match value.get_ref() {
            DeValue::String(text) if !text.trim().is_empty() && !text.contains(char::is_control) => Some(text.to_string()),
            DeValue::String(text) => {
                let message = format!("{} is empty or has control characters", shown(text));
                self.error(ErrorKind::Impossible, key, message, &format!("write `{key} = \"{example}\"` or leave it out"));
                None
            }
            other => {
                self.wrong_type(key, other, "a string", &format!("\"{example}\""));
                None
            }
        }
    }

    /// As [`Section::text`] for a key that has no default.
    pub(crate) fn required_text(&mut self, key: &'static str, example: &str) -> Option<String> {
        if !self.has(key) {
            let hint = format!("write `{key} = \"{example}\"`");
            self.error(ErrorKind::Missing, key, format!("`{key}` is missing and has no default"), &hint);
            return None;
        }
        self.text(key, example)
    }

    /// One word of a list.
    pub(crate) fn choice<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)], default: T) -> T {
        let example = words.first().map_or("", |&(word, _)| word);
        self.text(key, example).and_then(|text| self.word(key, &text, words)).unwrap_or(default)
    }

    /// As [`Section::choice`] for a key that has no default.
    pub(crate) fn required_choice<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        let example = words.first().map_or("", |&(word, _)| word);
        let text = self.required_text(key, example)?;
        self.word(key, &text, words)
    }

    fn word<T: Copy>(&mut self, key: &'static str, text: &str, words: &[(&str, T)]) -> Option<T> {
        let found = words.iter().find(|&&(word, _)| word == text).map(|&(_, value)| value);
        if found.is_none() {
            let names: Vec<&str> = words.iter().map(|&(word, _)| word).collect();
            let message = format!("{} is not one of {}", shown(text), names.join(", "));
            self.error(ErrorKind::Impossible, key, message, &hint_for(text, &names));
        }
        found
    }

    /// The row of a table that the text names; where it names none, the only one there is. `what` is the kind of table.
    pub(crate) fn reference(&mut self, key: &'static str, names: &[&str]) -> Option<usize> {
        if !self.has(key) {
            if names.len() > 1 {
                let message = format!("`{key}` is missing, and there are {} to choose from", names.len());
                self.error(ErrorKind::Missing, key, message, &format!("use one of {}", names.join(", ")));
            }
            return (names.len() == 1).then_some(0);
        }
        let text = self.text(key, names.first().unwrap_or(&"NAME"))?;
        let row = names.iter().position(|&name| name == text);
        if row.is_none() {
            let message = format!("{} names nothing in this file", shown(&text));
            self.error(ErrorKind::UnknownName, key, message, &hint_for(&text, names));
        }
        row
    }

    /// `IP:PORT`; names are not looked up.
    pub(crate) fn address(&mut self, key: &'static str, default: SocketAddr) -> SocketAddr {
        let Some(text) = self.text(key, &default.to_string()) else { return default };
        text.parse().unwrap_or_else(|_| {
            let message = format!("{} is no address of the form IP:PORT", shown(&text));
            let hint = format!("write `{key} = \"{default}\"` or \"[::1]:8080\"; host names are not looked up");
            self.error(ErrorKind::Impossible, key, message, &hint);
            default
        })
    }

    /// A SHA-256. The value is never part of a message.
    pub(crate) fn digest(&mut self, key: &'static str) -> Option<Digest> {
        let (_, value) = self.entry(key)?;
        match value.get_ref() {
            DeValue::String(text) => self.digest_of(key, text),
            other => {
                self.wrong_type(key, other, "a string", "\"64 hexadecimal digits\"");
                None
            }
        }
    }

    /// Checks a text that is meant to be a SHA-256.
    pub(crate) fn digest_of(&mut self, key: &'static str, text: &str) -> Option<Digest> {
        text.parse()
            .map_err(|what: String| {
                let hint = "write the SHA-256 as hexadecimal digits, never the key itself";
                self.error(ErrorKind::Impossible, key, what, hint);
            })
            .ok()
    }

    /// A list of texts; elements of another type are reported and left out.
    pub(crate) fn texts(&mut self, key: &'static str) -> Vec<String> {
        let Some((_, value)) = self.entry(key) else { return Vec::new() };
        let DeValue::Array(values) = value.get_ref() else {
            self.wrong_type(key, value.get_ref(), "an array of strings", "[\"..\"]");
            return Vec::new();
        };
        let mut texts = Vec::new();
        for (index, value) in values.iter().enumerate() {
            match value.get_ref() {
                DeValue::String(text) => texts.push(text.to_string()),
                other => {
                    let message = format!("is {}, not a string", type_of(other));
                    self.error_at(&format!("{key}[{index}]"), value.span(), message, "quote it");
                }
            }
        }
        texts
    }

    /// Any table, as the text of a JSON object.
    pub(crate) fn json(&mut self, key: &'static str) -> String {
        const EMPTY: &str = "{}";
        let Some((_, value)) = self.entry(key) else { return EMPTY.to_owned() };
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong_type(key, value.get_ref(), "a table", "{ name = 1 }");
            return EMPTY.to_owned();
        };
        match json::to_json(table) {
            Ok(json) if json.len() <= MAX_POLICY_CONFIG_BYTES => json,
            Ok(json) => {
                let message = format!("is {} bytes as JSON, {MAX_POLICY_CONFIG_BYTES} are allowed", json.len());
                self.error(ErrorKind::Impossible, key, message, "large data belongs into the component");
                EMPTY.to_owned()
            }
            Err(error) => {
                self.error(ErrorKind::Impossible, key, error.to_string(), "policies get this table as JSON");
                EMPTY.to_owned()
            }
        }
    }
}
