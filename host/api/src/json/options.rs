//! What chat and completion requests have in common: sampling, stops, streaming. Knows no prompt.

use millrace_node::{GenerateRequest, Prompt, Sampling, TenantId};

use super::fields::{Fields, parse_string};
use crate::error::ApiError;

/// How much of each thing a request may carry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) stop_strings: usize,
    /// Of one stop string.
    pub(crate) stop_bytes: usize,
    pub(crate) stop_token_ids: usize,
    pub(crate) messages: usize,
    /// Of names: the model, the session.
    pub(crate) name_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stop_strings: 16, stop_bytes: 256, stop_token_ids: 64, messages: 10_000, name_bytes: 512 }
    }
}

/// A request and how its answer is to be written.
#[derive(Debug, PartialEq)]
pub(crate) struct Parsed {
    /// None: the first model of the deployment.
    pub(crate) model: Option<String>,
    pub(crate) request: GenerateRequest,
    pub(crate) stream: Stream,
    /// The name by which the client said how long the answer may be.
    pub(crate) length_field: &'static str,
}

/// Whether and how the answer is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Off,
    On(Usage),
}

/// Where a stream tells token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    Nowhere,
    /// In one chunk without choices before the end.
    Last,
    /// In every chunk, and in the last.
    Everywhere,
}

/// The names of the fields that are read here.
pub(super) const NAMES: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "priority",
    "deadline_ms",
    "prompt_cache_key",
];

/// The largest `max_tokens` that is a number of tokens at all; what fits the model is the node's to say.
const MAX_TOKENS: i64 = u32::MAX as i64;

/// A day; how long an answer may take at most is the server's to say.
const MAX_DEADLINE_MS: i64 = 86_400_000;

/// # Errors
/// 400 that names the field.
pub(super) fn parse_common(fields: &Fields<'_>, prompt: Prompt, limits: &Limits) -> Result<Parsed, ApiError> {
    let stream = parse_stream(fields)?;
    let (max_tokens, length_field) = parse_max_tokens(fields)?;
    let priority = fields.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?.unwrap_or(0);
    let request = GenerateRequest {
        tenant: TenantId(0),
        prompt,
        sampling: parse_sampling(fields)?,
        max_tokens,
        stop: parse_stop(fields, limits)?,
        stop_token_ids: fields.token_ids("stop_token_ids", limits.stop_token_ids)?.unwrap_or_default(),
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        priority: i32::try_from(priority).unwrap_or(0),
        session: fields.string("prompt_cache_key", limits.name_bytes)?,
        deadline_ms: fields.integer("deadline_ms", 1..=MAX_DEADLINE_MS)?.map(i64::cast_unsigned),
        streaming: stream != Stream::Off,
    };
    Ok(Parsed { model: fields.string("model", limits.name_bytes)?, request, stream, length_field })
}

fn parse_sampling(fields: &Fields<'_>) -> Result<Sampling, ApiError> {
    let top_p = fields.number("top_p", 0.0..=1.0)?;
    if top_p == Some(0.0) {
        return Err(fields.error("top_p", "must be over 0"));
    }
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?.unwrap_or(0);
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=2.0)?.map(|v| v as f32),
        // A value that is over 0 in 64 bits may be 0 in 32.
        top_p: top_p.map(|v| (v as f32).max(f32::MIN_POSITIVE)),
        top_k: u32::try_from(top_k.max(0)).unwrap_or(0),
        min_p: fields.number("min_p", 0.0..=1.0)?.map(|v| v as f32),
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned),
    })
}

/// The number, and which of the two names it came under.
fn parse_max_tokens(fields: &Fields<'_>) -> Result<(Option<u32>, &'static str), ApiError> {
    let old = fields.integer("max_tokens", 1..=MAX_TOKENS)?;
    let new = fields.integer("max_completion_tokens", 1..=MAX_TOKENS)?;
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        return Err(fields.error("max_tokens", "differs from `max_completion_tokens`; send one of them"));
    }
    let name = if new.is_some() { "max_completion_tokens" } else { "max_tokens" };
    Ok((new.or(old).and_then(|n| u32::try_from(n).ok()), name))
}

fn parse_stop(fields: &Fields<'_>, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let Some(raw) = fields.raw("stop") else { return Ok(Vec::new()) };
    let items = if raw.starts_with('"') {
        if limits.stop_strings == 0 {
            return Err(fields.error("stop", "must be left out: this server takes no stop strings"));
        }
        vec![raw]
    } else if raw.starts_with('[') {
        fields.array("stop", limits.stop_strings)?.unwrap_or_default()
    } else {
        return Err(fields.error("stop", "must be a string or an array of strings"));
    };
    let mut stop = Vec::with_capacity(items.len());
    for item in items {
        let text = parse_string(item).map_err(|_| fields.error("stop", "must hold strings only"))?;
        if text.is_empty() {
            return Err(fields.error("stop", "must not hold an empty string"));
        }
        if text.len() > limits.stop_bytes {
            return Err(fields.error("stop", &format!("holds a string of more than {} bytes", limits.stop_bytes)));
        }
        stop.push(text);
    }
    Ok(stop)
}

fn parse_stream(fields: &Fields<'_>) -> Result<Stream, ApiError> {
    let on = fields.boolean("stream")?.unwrap_or(false);
    let Some(raw) = fields.raw("stream_options") else {
        return Ok(if on { Stream::On(Usage::Nowhere) } else { Stream::Off });
    };
    if !on {
        return Err(fields.error("stream_options", "is only for requests with `stream`: true"));
    }
    const NAMES: &[&str] = &["include_usage", "continuous_usage_stats", "include_obfuscation"];
    let options = Fields::of_value(raw, NAMES, fields.path("stream_options"))?;
    if options.boolean("include_obfuscation")? == Some(true) {
        let path = options.path("include_obfuscation");
        return Err(ApiError::unsupported(&path, format!("`{path}` is not supported yet; leave it out.")));
    }
    let last = options.boolean("include_usage")?.unwrap_or(false);
    let everywhere = options.boolean("continuous_usage_stats")?.unwrap_or(false);
    Ok(Stream::On(match (last, everywhere) {
        (true, true) => Usage::Everywhere,
        (true, false) => Usage::Last,
        (false, _) => Usage::Nowhere,
    }))
}
