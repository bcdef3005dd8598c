//! What a chunk of a stream, a whole answer or an error's body says, in the JSON of OpenAI's API and what other servers make of it.
//! Looks only at what is measured: that there is text, not which. Knows no time and no transport.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;

use super::failure::{Failed, Kind};

/// Token counts as the server gives them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: Option<u32>,
    pub(super) completion_tokens: Option<u32>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u32>,
}

impl Usage {
    pub(super) fn cached_tokens(&self) -> Option<u32> {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens)
    }
}

/// What one chunk or one whole answer adds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// It carries text, be it content or reasoning.
    pub(super) text: bool,
    /// It names a reason to finish.
    pub(super) finished: bool,
    pub(super) usage: Option<Usage>,
}

/// Chunks have `delta`, whole answers `message`; some servers send both in every chunk.
#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    message: Option<Delta>,
    /// Some servers say `""` until there is one.
    #[serde(default)]
    finish_reason: HasText,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    content: HasText,
    #[serde(default)]
    reasoning_content: HasText,
    /// Another name for the same.
    #[serde(default)]
    reasoning: HasText,
}

/// Whether a field holds text: a string or a list of parts that is not empty. `null` holds none.
#[derive(Default)]
struct HasText(bool);

impl<'de> Deserialize<'de> for HasText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(HasTextVisitor)
    }
}

struct HasTextVisitor;

impl<'de> Visitor<'de> for HasTextVisitor {
    type Value = HasText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a list of parts or null")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<HasText, E> {
        Ok(HasText(!text.is_empty()))
    }

    fn visit_unit<E: Error>(self) -> Result<HasText, E> {
        Ok(HasText(false))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<HasText, A::Error> {
        let mut any = false;
        while parts.next_element::<IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(HasText(any))
    }
}

/// Reads a chunk or a whole answer.
///
/// # Errors
/// It is no such JSON, or tells of an error.
pub(super) fn read(json: &[u8]) -> Result<Piece, Failed> {
    let chunk: Chunk = serde_json::from_slice(json)
        .map_err(|error| Failed::new(Kind::Malformed, format!("{error} in `{}`", String::from_utf8_lossy(json))))?;
    if let Some(error) = chunk.error {
        return Err(Failed::new(Kind::ErrorEvent, words_of(&error)));
    }
    let mut piece = Piece { usage: chunk.usage, ..Piece::default() };
    for choice in chunk.choices.unwrap_or_default() {
        piece.finished |= choice.finish_reason.0;
        for part in [choice.delta, choice.message].into_iter().flatten() {
            piece.text |= part.content.0 || part.reasoning_content.0 || part.reasoning.0;
        }
    }
    Ok(piece)
}

/// The message in the body of an error, or the body as it is.
pub(super) fn error_message(body: &[u8]) -> String {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => words_of(value.get("error").or_else(|| value.get("detail")).unwrap_or(&value)),
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    }
}

/// `{"message": ".."}`, a text, or whatever else.
fn words_of(error: &Value) -> String {
    let text = error.get("message").unwrap_or(error);
    text.as_str().map_or_else(|| text.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(json: &str) -> Piece {
        read(json.as_bytes()).unwrap()
    }

    #[test]
    fn text_is_content_or_reasoning_that_is_not_empty() {
        for delta in [
            r#"{"content":"a"}"#,
            r#"{"role":"assistant","content":" "}"#,
            r#"{"content":null,"reasoning_content":"b"}"#,
            r#"{"content":"","reasoning":"c"}"#,
            r#"{"content":[{"type":"text","text":"d"}]}"#,
            r#"{"content":"\u00e9"}"#,
        ] {
            assert!(piece(&format!(r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#)).text, "{delta}");
        }
        assert!(piece(r#"{"choices":[{"message":{"content":"a"},"delta":{"content":"a"}}]}"#).text, "both");
        for delta in ["{}", "null", r#"{"role":"assistant","content":""}"#, r#"{"content":null}"#, r#"{"content":[]}"#] {
            assert!(!piece(&format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#)).text, "{delta}");
        }
        let whole = r#"{"choices":[{"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"error":null}"#;
        assert_eq!(piece(whole), Piece { text: true, finished: true, usage: None });
    }

    #[test]
    fn usage_comes_with_or_without_choices() {
        let details =
            r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}"#;
        let usage = piece(details).usage.unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens()), (Some(7), Some(3), Some(2)));
        let bare = piece(r#"{"usage":{"prompt_tokens":7,"prompt_tokens_details":null}}"#).usage.unwrap();
        assert_eq!((bare.prompt_tokens, bare.completion_tokens, bare.cached_tokens()), (Some(7), None, None));
        assert_eq!(piece(r#"{"choices":null,"usage":null}"#), Piece::default());
        assert!(piece(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#).finished);
        assert!(!piece(r#"{"choices":[{"delta":{},"finish_reason":""}]}"#).finished);
    }

    #[test]
    fn errors_are_told_in_the_servers_words() {
        let error = |json: &str| read(json.as_bytes()).unwrap_err();
        let told = error(r#"{"error":{"message":"out of pages","type":"server_error"}}"#);
        assert_eq!(told, Failed::new(Kind::ErrorEvent, "out of pages"));
        assert_eq!(error(r#"{"error":"plain"}"#).message, "plain");
        assert_eq!(error(r#"{"error":{"code":5}}"#).message, r#"{"code":5}"#);
        for bad in ["", "{", "[1]", "7", r#"{"choices":7}"#, r#"{"choices":[{"delta":{"content":7}}]}"#, "\u{0}"] {
            assert_eq!(error(bad).kind, Kind::Malformed, "{bad}");
        }
        assert_eq!(error_message(br#"{"error":{"message":"a"}}"#), "a");
        assert_eq!(error_message(br#"{"object":"error","message":"b"}"#), "b");
        assert_eq!(error_message(br#"{"detail":"c"}"#), "c");
        assert_eq!(error_message(b"<html>"), "<html>");
    }
}
