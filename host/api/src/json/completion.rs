//! The body of `POST /v1/completions`.

use std::sync::LazyLock;

use millrace_node::Prompt;

use super::fields::{Fields, parse_array, parse_ids, parse_string};
use super::options::{self, Limits, Parsed};
use super::unsupported;
use crate::error::ApiError;

static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| [&["prompt"], options::NAMES, &unsupported::names_in_completion()].concat());

/// What OpenAI gives where the client does not say.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// # Errors
/// 400 that names what is wrong.
pub(crate) fn parse_completion(body: &str, limits: &Limits) -> Result<Parsed, ApiError> {
    let fields = Fields::of_body(body, &NAMES)?;
    unsupported::refuse_in_completion(&fields)?;
    let prompt = parse_prompt(&fields)?;
    let mut parsed = options::parse_common(&fields, prompt, limits)?;
    parsed.request.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
    Ok(parsed)
}

/// `"text"`, `["text"]`, `[1, 2]` or `[[1, 2]]`.
fn parse_prompt(fields: &Fields<'_>) -> Result<Prompt, ApiError> {
    let raw = fields.raw("prompt").ok_or_else(|| fields.error("prompt", "is missing: send a text or token ids"))?;
    if raw.starts_with('"') {
        return text(fields, raw);
    }
    let inside = raw.strip_prefix('[').map(str::trim_start).ok_or_else(|| wrong(fields))?;
    if inside.starts_with(']') {
        return Err(fields.error("prompt", "is empty"));
    }
    if !inside.starts_with(['"', '[']) {
        return ids(fields, raw);
    }
    let items = parse_array(raw).ok_or_else(|| wrong(fields))?;
    match items.as_slice() {
        [only] if only.starts_with('"') => text(fields, only),
        [only] => ids(fields, only),
        _ => Err(fields.error("prompt", "must hold one prompt: this server takes no batches of prompts for now")),
    }
}

fn text(fields: &Fields<'_>, raw: &str) -> Result<Prompt, ApiError> {
    parse_string(raw).map(Prompt::Text).map_err(|wrong| fields.error("prompt", &wrong))
}

fn ids(fields: &Fields<'_>, raw: &str) -> Result<Prompt, ApiError> {
    match parse_ids(raw) {
        Some(ids) if ids.is_empty() => Err(fields.error("prompt", "is empty")),
        Some(ids) => Ok(Prompt::Tokens(ids)),
        None => Err(wrong(fields)),
    }
}

fn wrong(fields: &Fields<'_>) -> ApiError {
    fields.error("prompt", "must be a string, token ids, or an array that holds one of these")
}
