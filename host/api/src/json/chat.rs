//! The body of `POST /v1/chat/completions`.

use std::sync::LazyLock;

use millrace_node::{ChatMessage, Prompt};

use super::fields::{Fields, kind_of, parse_array, parse_string};
use super::options::{self, Limits, Parsed};
use super::unsupported;
use crate::error::ApiError;

static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| [&["messages"], options::NAMES, &unsupported::names_in_chat()].concat());

const MESSAGE: &[&str] = &["role", "content", "name", "tool_calls", "function_call", "audio", "refusal"];
const PART: &[&str] = &["type", "text", "prompt_cache_breakpoint"];
/// Of the name of a participant.
const MAX_NAME_BYTES: usize = 256;

/// # Errors
/// 400 that names what is wrong.
pub(crate) fn parse_chat(body: &str, limits: &Limits) -> Result<Parsed, ApiError> {
    let fields = Fields::of_body(body, &NAMES)?;
    unsupported::refuse_in_chat(&fields)?;
    let messages = fields.array("messages", limits.messages)?;
    let messages = messages.ok_or_else(|| fields.error("messages", "is missing: send an array of messages"))?;
    if messages.is_empty() {
        return Err(fields.error("messages", "is empty: send at least one message"));
    }
    let messages = messages.into_iter().enumerate().map(|(i, raw)| parse_message(raw, i)).collect::<Result<_, _>>()?;
    options::parse_common(&fields, Prompt::Chat(messages), limits)
}

fn parse_message(raw: &str, index: usize) -> Result<ChatMessage, ApiError> {
    let fields = Fields::of_value(raw, MESSAGE, format!("messages[{index}]"))?;
    for name in ["tool_calls", "function_call", "audio", "refusal"] {
        if fields.raw(name).is_some_and(|raw| raw != "[]") {
            let path = fields.path(name);
            return Err(ApiError::unsupported(&path, format!("`{path}` is not supported yet; leave it out.")));
        }
    }
    let role = fields.string("role", 64)?.ok_or_else(|| fields.error("role", "is missing"))?;
    let role = match role.as_str() {
        "developer" => "system".to_owned(),
        "system" | "user" | "assistant" => role,
        "tool" | "function" => {
            let path = fields.path("role");
            return Err(ApiError::unsupported(&path, format!("`{path}`: tools are not supported yet.")));
        }
        _ => return Err(fields.error("role", "must be system, developer, user or assistant")),
    };
    let name = fields.string("name", MAX_NAME_BYTES)?;
    Ok(ChatMessage { role, name, content: parse_content(&fields)? })
}

/// A string, or parts that are all text (joined as they come). OpenAI lets it be missing or null in one place only, beside the
/// `tool_calls` or `function_call` of an assistant; those were refused before.
fn parse_content(fields: &Fields<'_>) -> Result<String, ApiError> {
    let missing = || fields.error("content", "is missing or null: send a string or an array of parts, \"\" for an empty message");
    let raw = fields.raw("content").ok_or_else(missing)?;
    if raw.starts_with('"') {
        return parse_string(raw).map_err(|wrong| fields.error("content", &wrong));
    }
    let wrong = || fields.error("content", &format!("must be a string or an array of parts, not {}", kind_of(raw)));
    let parts = parse_array(raw).ok_or_else(wrong)?;
    let mut content = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        let part = Fields::of_value(part, PART, fields.path(&format!("content[{i}]")))?;
        let kind = part.string("type", 64)?.ok_or_else(|| part.error("type", "is missing"))?;
        if kind != "text" {
            let path = part.path("type");
            let message = format!("`{path}` is not supported: this model takes text parts only.");
            return Err(ApiError::unsupported(&path, message));
        }
        if part.raw("prompt_cache_breakpoint").is_some() {
            let path = part.path("prompt_cache_breakpoint");
            return Err(ApiError::unsupported(&path, format!("`{path}` is not supported yet; leave it out.")));
        }
        let text = part.string("text", usize::MAX)?.ok_or_else(|| part.error("text", "is missing"))?;
        content.push_str(&text);
    }
    Ok(content)
}
