//! Answers as OpenAI JSON: whole ones, and the chunks of a stream. Knows how an answer is written, not where it comes from.

use std::sync::Arc;

use millrace_core::FinishReason;
use millrace_node::{Finished, TokenUsage};
use serde_json::{Value, json};

/// Which endpoint is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completion,
}

/// What all chunks of an answer share.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) endpoint: Endpoint,
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: Arc<str>,
}

impl Writer {
    /// A chunk with one piece of text. `first` chunks of a chat name the role.
    pub(crate) fn text(&self, delta: &str, place: Place) -> Value {
        let choice = match (self.endpoint, place) {
            (Endpoint::Chat, Place::First) => json!({
                "index": 0, "delta": {"role": "assistant", "content": delta}, "logprobs": null, "finish_reason": null
            }),
            (Endpoint::Chat, Place::Later) => {
                json!({"index": 0, "delta": {"content": delta}, "logprobs": null, "finish_reason": null})
            }
            (Endpoint::Completion, _) => json!({"index": 0, "text": delta, "logprobs": null, "finish_reason": null}),
        };
        self.chunk(json!([choice]))
    }

    /// The chunk that tells why it ended. A chat that had no text names its role here.
    pub(crate) fn end(&self, finished: &Finished, place: Place) -> Value {
        let reason = reason(finished.reason);
        let matched = matched(finished);
        let choice = match (self.endpoint, place) {
            (Endpoint::Chat, Place::First) => json!({
                "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                "finish_reason": reason, "stop_reason": matched
            }),
            (Endpoint::Chat, Place::Later) => {
                json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason, "stop_reason": matched})
            }
            (Endpoint::Completion, _) => {
                json!({"index": 0, "text": "", "logprobs": null, "finish_reason": reason, "stop_reason": matched})
            }
        };
        self.chunk(json!([choice]))
    }

    /// The chunk without choices that carries the counts.
    pub(crate) fn usage(&self, usage: &TokenUsage) -> Value {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage_json(usage);
        chunk
    }

    /// The whole answer at once.
    pub(crate) fn whole(&self, text: &str, finished: &Finished) -> Value {
        let reason = reason(finished.reason);
        let matched = matched(finished);
        let (object, choice) = match self.endpoint {
            Endpoint::Chat => (
                "chat.completion",
                json!({
                    "index": 0, "message": {"role": "assistant", "content": text, "refusal": null}, "logprobs": null,
                    "finish_reason": reason, "stop_reason": matched
                }),
            ),
            Endpoint::Completion => (
                "text_completion",
                json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason, "stop_reason": matched}),
            ),
        };
        let mut answer = self.envelope(object, json!([choice]));
        answer["usage"] = usage_json(&finished.usage);
        answer
    }

    fn chunk(&self, choices: Value) -> Value {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        };
        self.envelope(object, choices)
    }

    fn envelope(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": &*self.fingerprint, "choices": choices
        })
    }
}

/// Whether a chunk is the first of its choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    First,
    Later,
}

pub(crate) fn usage_json(usage: &TokenUsage) -> Value {
    let total = u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens);
    json!({
        "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens}
    })
}

fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn matched(finished: &Finished) -> Option<&str> {
    finished.matched_stop.as_deref()
}
