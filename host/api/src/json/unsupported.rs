//! Fields that ask for what this server does not do yet. Their harmless values pass; an ask is refused by name, so that no client
//! believes that it got what it did not.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

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
    /// An object that says this, as `type` and `"text"`; with nothing else in it that would ask for more.
    Says(&'static str, &'static str),
    /// `["text"]` or `[]`.
    TextOnly,
}

use Harmless::{Empty, Number, Says, TextOnly, Texts};

const FALSE: Harmless = Texts(&["false"]);
const TRUE: Harmless = Texts(&["true"]);
/// No value but `null`.
const NONE: Harmless = Texts(&[]);

type Table = &'static [(&'static str, Harmless)];

/// What either of OpenAI's two endpoints knows. Both refuse it: who sends a field to the wrong one believes in it as well.
///
/// Left out because every value of them asks nothing of the answer: `user`, `safety_identifier` and `metadata` are labels for the
/// operator's own books, and without tools there is nothing that `parallel_tool_calls` could order.
const OPENAI: Table = &[
    ("audio", Empty),
    ("best_of", Number(1.0)),
    ("echo", FALSE),
    ("frequency_penalty", Number(0.0)),
    ("function_call", Texts(&["\"none\"", "\"auto\""])),
    ("functions", Empty),
    ("logit_bias", Empty),
    ("logprobs", FALSE),
    ("modalities", TextOnly),
    ("moderation", NONE),
    ("n", Number(1.0)),
    ("prediction", Empty),
    ("presence_penalty", Number(0.0)),
    ("prompt_cache_options", Says("mode", "\"implicit\"")),
    ("prompt_cache_retention", Texts(&["\"in_memory\""])),
    ("reasoning_effort", Texts(&["\"none\""])),
    ("response_format", Says("type", "\"text\"")),
    ("service_tier", Texts(&["\"auto\"", "\"default\""])),
    ("store", FALSE),
    ("suffix", Empty),
    ("tool_choice", Texts(&["\"none\"", "\"auto\""])),
    ("tools", Empty),
    ("top_logprobs", Number(0.0)),
    ("verbosity", Texts(&["\"medium\""])),
    ("web_search_options", NONE),
];

/// What vLLM and SGLang know beyond that and clients of theirs send.
const BEYOND: Table = &[
    ("allowed_token_ids", Empty),
    ("bad_words", Empty),
    ("cache_salt", Empty),
    ("ebnf", Empty),
    ("guided_choice", Empty),
    ("guided_grammar", Empty),
    ("guided_json", Empty),
    ("guided_regex", Empty),
    ("include_stop_str_in_output", FALSE),
    ("json_schema", Empty),
    ("length_penalty", Number(1.0)),
    ("logits_processors", Empty),
    ("lora_path", Empty),
    ("min_tokens", Number(0.0)),
    ("no_stop_trim", FALSE),
    ("prompt_embeds", Empty),
    ("prompt_logprobs", NONE),
    ("regex", Empty),
    ("repetition_penalty", Number(1.0)),
    ("return_token_ids", FALSE),
    ("return_tokens_as_token_ids", FALSE),
    ("skip_special_tokens", TRUE),
    ("spaces_between_special_tokens", TRUE),
    ("stop_regex", Empty),
    ("structured_outputs", Empty),
    ("thinking_token_budget", NONE),
    ("truncate_prompt_tokens", NONE),
    ("use_beam_search", FALSE),
];

const CHAT: Table = &[
    ("add_generation_prompt", TRUE),
    ("add_special_tokens", FALSE),
    ("chat_template", Empty),
    ("chat_template_kwargs", Empty),
    ("continue_final_message", FALSE),
    ("documents", Empty),
    ("prompt", NONE),
];

const COMPLETION: Table = &[("add_special_tokens", TRUE), ("messages", NONE)];

/// The names of all fields of a chat request that are looked at here.
pub(super) fn names_in_chat() -> Vec<&'static str> {
    names(CHAT)
}

/// The names of all fields of a completion request that are looked at here.
pub(super) fn names_in_completion() -> Vec<&'static str> {
    names(COMPLETION)
}

fn names(own: Table) -> Vec<&'static str> {
    [OPENAI, BEYOND, own].into_iter().flatten().map(|(name, _)| *name).collect()
}

/// # Errors
/// 400 that names the first field of a chat request that asks for what is not there.
pub(super) fn refuse_in_chat(fields: &Fields<'_>) -> Result<(), ApiError> {
    refuse(fields, CHAT)
}

/// # Errors
/// 400 that names the first field of a completion request that asks for what is not there.
pub(super) fn refuse_in_completion(fields: &Fields<'_>) -> Result<(), ApiError> {
    refuse(fields, COMPLETION)
}

fn refuse(fields: &Fields<'_>, own: Table) -> Result<(), ApiError> {
    for (name, harmless) in [OPENAI, BEYOND, own].into_iter().flatten() {
        let Some(raw) = fields.raw(name) else { continue };
        if !asks_nothing(raw, *harmless) {
            let message = match *name {
                "n" => "`n` must be 1: this server gives one choice per request for now.".to_owned(),
                "prompt" => "`prompt` belongs to /v1/completions; a chat has `messages`.".to_owned(),
                "messages" => "`messages` belongs to /v1/chat/completions; a completion has `prompt`.".to_owned(),
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
        Says(key, value) => {
            entries(raw).is_some_and(|entries| entries.len() == 1 && entries.get(key).is_some_and(|v| v.get() == value))
        }
        TextOnly => parse_array(raw).is_some_and(|items| items.iter().all(|i| *i == "\"text\"")),
    }
}

fn entries(raw: &str) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(raw).ok()
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
    fn no_field_is_in_two_tables() {
        for own in [CHAT, COMPLETION] {
            let mut names = names(own);
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all);
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

    #[test]
    fn an_object_that_says_its_default_and_more_asks_for_more() {
        let format = Says("type", "\"text\"");
        assert!(asks_nothing(r#"{ "type" : "text" }"#, format));
        for raw in [r#"{"type":"json_object"}"#, r#"{"type":"text","schema":{}}"#, "{}", r#""text""#, "[]", r#"{"kind":"text"}"#]
        {
            assert!(!asks_nothing(raw, format), "{raw}");
        }
    }
}
