//! A TOML table as JSON text, for policies. Knows nothing of what the table means.

use std::fmt::Write as _;

use toml::de::{DeTable, DeValue};

/// What JSON cannot say, and where in the table.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {what}")]
pub(crate) struct NotJson {
    pub(crate) path: String,
    pub(crate) what: &'static str,
}

/// One JSON object, keys in alphabetical order, no spaces. Date-times become strings; the depth is bounded by the TOML parser.
///
/// # Errors
/// `nan`, `inf` and integers beyond 64 bits.
pub(crate) fn to_json(table: &DeTable<'_>) -> Result<String, NotJson> {
    let mut text = String::new();
    write_table(&mut text, table).map(|()| text)
}

fn write_table(out: &mut String, table: &DeTable<'_>) -> Result<(), NotJson> {
    out.push('{');
    for (index, (key, value)) in table.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_string(out, key.get_ref());
        out.push(':');
        write_value(out, value.get_ref()).map_err(|error| error.below(key.get_ref()))?;
    }
    out.push('}');
    Ok(())
}

fn write_value(out: &mut String, value: &DeValue<'_>) -> Result<(), NotJson> {
    match value {
        DeValue::String(text) => write_string(out, text),
        DeValue::Boolean(value) => out.push_str(if *value { "true" } else { "false" }),
        DeValue::Datetime(value) => write_string(out, &value.to_string()),
        DeValue::Integer(value) => match i64::from_str_radix(value.as_str(), value.radix()) {
            Ok(number) => append(out, format_args!("{number}")),
            Err(_) => return Err(NotJson::here("is an integer beyond 64 bits")),
        },
        DeValue::Float(value) => match value.as_str().parse::<f64>() {
            // Debug gives the shortest digits that read back as the same number, always with a point or an exponent.
            Ok(number) if number.is_finite() => append(out, format_args!("{number:?}")),
            _ => return Err(NotJson::here("is no finite number, which JSON cannot say")),
        },
        DeValue::Table(table) => write_table(out, table)?,
        DeValue::Array(values) => {
            out.push('[');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, value.get_ref()).map_err(|error| error.below(&index.to_string()))?;
            }
            out.push(']');
        }
    }
    Ok(())
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' || c == '\u{7f}' => append(out, format_args!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn append(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(arguments);
}

impl NotJson {
    fn here(what: &'static str) -> Self {
        Self { path: String::new(), what }
    }

    fn below(self, key: &str) -> Self {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{key}.{}", self.path) };
        Self { path, what: self.what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(text: &str) -> Result<String, NotJson> {
        to_json(DeTable::parse(text).unwrap().get_ref())
    }

    #[test]
    fn every_kind_of_value_has_its_json() {
        let text = "s = \"a\\\"b\\\\c\\n\\t\\u0001é\"\ni = 0x10\nn = -1_000\nf = 1.0\ng = 6.02e23\nb = true\nd = 1979-05-27\n\
                    a = [1, [\"x\"], {y = false}]\n[t]\n\"odd key\" = {}\n";
        assert_eq!(
            convert(text).unwrap(),
            "{\"a\":[1,[\"x\"],{\"y\":false}],\"b\":true,\"d\":\"1979-05-27\",\"f\":1.0,\"g\":6.02e23,\"i\":16,\"n\":-1000,\
             \"s\":\"a\\\"b\\\\c\\n\\t\\u0001é\",\"t\":{\"odd key\":{}}}"
        );
        assert_eq!(convert("").unwrap(), "{}");
    }

    #[test]
    fn what_json_cannot_say_is_refused_with_its_path() {
        assert_eq!(convert("a = [{b = nan}]").unwrap_err().path, "a.0.b");
        assert_eq!(convert("x = -inf").unwrap_err().path, "x");
        assert_eq!(convert("x = 1e999").unwrap_err().path, "x");
        assert_eq!(convert("x = 9223372036854775808").unwrap_err().path, "x");
        assert_eq!(convert("x = 9223372036854775807").unwrap(), "{\"x\":9223372036854775807}");
    }
}
