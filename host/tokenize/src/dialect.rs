//! The hub's dialect of Jinja on minijinja: what `apply_chat_template` of HF transformers sets up, as far as chat prompts need it.
//! Knows no messages.
//!
//! Source: <https://huggingface.co/docs/transformers/chat_templating_writing>. `strftime_now` is left undefined, so that prompts do not
//! depend on the day: templates test for it and then write a fixed date.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// A template's `raise_exception`: the messages are not what the model takes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub(crate) String);

pub(crate) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", to_json);
    // Python prints its own words for these.
    environment.set_formatter(|output, state, value| match value.kind() {
        ValueKind::Bool => output.write_str(if value.is_true() { "True" } else { "False" }).map_err(Error::from),
        ValueKind::None => output.write_str("None").map_err(Error::from),
        _ => minijinja::escape_formatter(output, state, value),
    });
    environment
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception was called").with_source(Refusal(message)))
}

/// As Python's `json.dumps(value, ensure_ascii=False)`: no HTML escapes, a space after commas and colons.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let mut json = Vec::new();
    let written = match indent {
        // 16 is more than any template asks for and keeps the output in proportion to the input.
        Some(indent) => {
            let indent = " ".repeat(indent.min(16));
            value.serialize(&mut Serializer::with_formatter(&mut json, PrettyFormatter::with_indent(indent.as_bytes())))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut json, PythonFormatter(CompactFormatter))),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, "tojson failed").with_source(error))?;
    String::from_utf8(json).map(Value::from).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

struct PythonFormatter(CompactFormatter);

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// `{% generation %}` marks what a model is trained on and means nothing when serving; Jinja engines do not know it.
/// Its tags become an `if true` with the same white-space marks.
pub(crate) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        result.push_str(&replacement(tag).unwrap_or_else(|| tag.to_owned()));
        rest = after;
    }
    result.push_str(rest);
    result
}

fn replacement(tag: &str) -> Option<String> {
    let inside = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let (left, inside) = inside.strip_prefix('-').map_or(("", inside), |inside| ("-", inside));
    let (right, inside) = inside.strip_suffix('-').map_or(("", inside), |inside| ("-", inside));
    match inside.trim() {
        "generation" => Some(format!("{{%{left} if true {right}%}}")),
        "endgeneration" => Some(format!("{{%{left} endif {right}%}}")),
        _ => None,
    }
}
