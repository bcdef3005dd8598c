//! Fields that ask for what this server does not do yet. Their harmless values pass; an ask is refused by name, so that no client
//! believes that it got what it did not.

use super::fields::{Fields, parse_array};
use crate::error::ApiError;

/// When a value of a field asks for nothing. `null` and absent always do.
#[derive(Clone, Copy)]
enum Harmless {
    /// These texts.
    Texts(&'static [&'static str]),
    /// This number, however it is written.
    Number(f64),
    /// `""`, `[]` or `{}`.
    Empty,
    /// `{"type": "text"}`.
    TextFormat,
    /// `["text"]` or `[]`.
    TextOnly,
}

use Harmless::{Empty, Number, TextFormat, TextOnly, Texts};

const FALSE: Harmless = Texts(&["false"]);
const TRUE: Harmless = Texts(&["true"]);

/// Of both endpoints.
const COMMON: &[(&str, Harmless)] = &[
    ("n", Number(1.0)),
    ("best_of", Number(1.0)),
    ("frequency_penalty", Number(0.0)),
    ("presence_penalty", Number(0.0)),
    ("repetition_penalty", Number(1.0)),
    ("length_penalty", Number(1.0)),
    ("use_beam_search", FALSE),
    ("logit_bias", Empty),
    ("response_format", TextFormat),
    ("guided_json", Empty),
    ("guided_regex", Empty),
    ("guided_choice", Empty),
    ("guided_grammar", Empty),
    ("structured_outputs", Empty),
    ("prompt_logprobs", Texts(&[])),
    ("truncate_prompt_tokens", Texts(&[])),
    ("min_tokens", Number(0.0)),
    ("skip_special_tokens", TRUE),
    ("include_stop_str_in_output", FALSE),
    ("cache_salt", Empty),
    ("allowed_token_ids", Empty),
    ("bad_words", Empty),
];

const CHAT: &[(&str, Harmless)] = &[
    ("logprobs", FALSE),
    ("top_logprobs", Number(0.0)),
    ("tools", Empty),
    ("tool_choice", Texts(&["\"none\"", "\"auto\""])),
    ("functions", Empty),
    ("function_call", Texts(&["\"none\"", "\"auto\""])),
    ("modalities", TextOnly),
    ("audio", Empty),
    ("prediction", Empty),
    ("chat_template", Empty),
    ("chat_template_kwargs", Empty),
    ("documents", Empty),
    ("echo", FALSE),
    ("add_generation_prompt", TRUE),
    ("continue_final_message", FALSE),
    ("add_special_tokens", FALSE),
];

const COMPLETION: &[(&str, Harmless)] =
    &[("logprobs", FALSE), ("echo", FALSE), ("suffix", Empty), ("prompt_embeds", Empty), ("add_special_tokens", TRUE)];

/// The names of all fields that are looked at here.
pub(super) const NAMES: &[&str] = &[
    "n",
    "best_of",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "length_penalty",
    "use_beam_search",
    "logit_bias",
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "min_tokens",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "cache_salt",
    "allowed_token_ids",
    "bad_words",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "modalities",
    "audio",
    "prediction",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "echo",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "suffix",
    "prompt_embeds",
];

/// # Errors
/// 400 that names the first field of a chat request that asks for what is not there.
pub(super) fn refuse_in_chat(fields: &Fields<'_>) -> Result<(), ApiError> {
    refuse(fields, COMMON).and_then(|()| refuse(fields, CHAT))
}

/// # Errors
/// 400 that names the first field of a completion request that asks for what is not there.
pub(super) fn refuse_in_completion(fields: &Fields<'_>) -> Result<(), ApiError> {
    refuse(fields, COMMON).and_then(|()| refuse(fields, COMPLETION))
}

fn refuse(fields: &Fields<'_>, list: &[(&'static str, Harmless)]) -> Result<(), ApiError> {
    for (name, harmless) in list {
        let Some(raw) = fields.raw(name) else { continue };
        if !asks_nothing(raw, *harmless) {
            let message = match *name {
                "n" => "`n` must be 1: this server gives one choice per request for now.".to_owned(),
                name => format!("`{name}` is not supported yet with this value; leave it out."),
            };
            return Err(ApiError::unsupported(name, message));
        }
    }
    Ok(())
}

fn asks_nothing(raw: &str, harmless: Harmless) -> bool {
    match harmless {
        Texts(texts) => texts.contains(&raw),
        Number(number) => serde_json::from_str::<f64>(raw).is_ok_and(|n| n == number),
        Empty => inside(raw).is_some_and(|inside| inside.trim().is_empty()),
        TextFormat => Fields::of_value(raw, &["type"], String::new())
            .ok()
            .and_then(|f| f.raw("type").map(|t| t == "\"text\""))
            .unwrap_or(false),
        TextOnly => parse_array(raw).is_some_and(|items| items.iter().all(|i| *i == "\"text\"")),
    }
}

/// What stands between the outermost brackets or quotes.
fn inside(raw: &str) -> Option<&str> {
    let between = |open: char, close: char| raw.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    if raw == "\"\"" { Some("") } else { between('[', ']').or_else(|| between('{', '}')) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_tables() {
        let tables = [COMMON, CHAT, COMPLETION].concat();
        for (name, _) in &tables {
            assert!(NAMES.contains(name), "{name} is not among NAMES, so it would be ignored");
        }
        for name in NAMES {
            assert!(tables.iter().any(|(n, _)| n == name), "{name} is in no table");
        }
    }

    #[test]
    fn empty_means_nothing_inside() {
        for raw in ["\"\"", "[]", "{}", "[ ]", "{\n}"] {
            assert!(asks_nothing(raw, Empty), "{raw}");
        }
        for raw in ["[[]]", "[{}]", "0", "\"a\"", "{\"a\":1}", "true"] {
            assert!(!asks_nothing(raw, Empty), "{raw}");
        }
    }
}
