//! What the node is asked for and what it answers, in the node's own words. Knows no JSON and no HTTP status, except the one that a
//! route policy names in a refusal.

use std::fmt;
use std::sync::Arc;

use millrace_core::{FinishReason, Precision, RequestId, TenantId};
use millrace_tokenize::ChatMessage;

/// One request of one tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    pub tenant: TenantId,
    pub prompt: Prompt,
    pub sampling: Sampling,
    /// None: as much as the context and the tenant's limit leave.
    pub max_tokens: Option<u32>,
    /// Texts that end the answer; they are not part of it. Not empty strings.
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    /// Goes on past the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Higher goes first, as far as the policies care.
    pub priority: i32,
    /// Requests with the same session of the same tenant share a beginning; a route policy may keep them together.
    pub session: Option<String>,
    /// How long the answer may take, waiting included. None, or longer than the server gives: as long as that.
    pub deadline_ms: Option<u64>,
    /// The client reads the answer as it comes.
    pub streaming: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Rendered with the model's chat template.
    Chat(Vec<ChatMessage>),
    Text(String),
    Tokens(Vec<u32>),
}

/// What the client said about drawing tokens; `None` is the default. Ranges were checked by whoever made it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampling {
    /// Default 1.
    pub temperature: Option<f32>,
    /// In (0, 1], default 1.
    pub top_p: Option<f32>,
    /// 0: off.
    pub top_k: u32,
    /// Default 0: off.
    pub min_p: Option<f32>,
    /// None: drawn.
    pub seed: Option<u64>,
}

/// Facts about a request that has been taken.
#[derive(Debug, Clone)]
pub struct Started {
    pub request: RequestId,
    pub lane: Arc<str>,
    pub precision: Precision,
    /// `fast/int8+kv-bf16/int4+kv-fp8/1a2b3c4d`: lane, precision of prefill and decode, start of the weights' digest.
    pub fingerprint: Arc<str>,
    pub prompt_tokens: u32,
    /// Generations of the policies in force when the request was placed.
    pub policies: PolicyGenerations,
}

/// How often each policy has been replaced since start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyGenerations {
    pub precision: u64,
    pub route: u64,
    pub schedule: u64,
}

/// Any number of `Text`, then one `Finished` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerationEvent {
    Text {
        /// May be empty in the first event: a token that is no whole character yet.
        delta: String,
        /// Tokens since the event before.
        tokens: u32,
    },
    Finished(Finished),
    Failed(GenerateError),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    pub reason: FinishReason,
    pub usage: TokenUsage,
    /// The stop string that ended it, if one did.
    pub matched_stop: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenUsage {
    pub prompt_tokens: u32,
    /// With the stop token, if one ended it.
    pub completion_tokens: u32,
    /// Prompt tokens that were found in the prefix cache.
    pub cached_tokens: u32,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("there is no model of this name")]
    UnknownModel(String),
    #[error(transparent)]
    ContextLength(ContextLength),
    /// `param` names the part of the request.
    #[error("{message}")]
    Field { param: &'static str, message: String },
    #[error("The server has as many waiting requests as it takes. Try again in {retry_after_ms} ms.")]
    QueueFull { retry_after_ms: u64 },
    #[error(
        "This API key has as many waiting requests as it may have ({limit}). Try again when one of them has begun to answer."
    )]
    TenantLimit { limit: u32, retry_after_ms: u64 },
    /// No lane that may serve it is in service: its engine failed, or is being started again.
    #[error("No engine that may serve this request is in service. Try again in {retry_after_ms} ms.")]
    Unavailable { retry_after_ms: u64 },
    /// The route policy's answer, or the host's where the policy held the request for too long. 4xx or 503.
    #[error("{message}")]
    Refused { status: u16, retry_after_ms: Option<u64>, message: String },
    #[error("The server is shutting down.")]
    Draining,
    #[error("The model is still loading.")]
    NotReady,
    /// For the log, never for the client.
    #[error("internal: {0}")]
    Internal(String),
}

/// More tokens than the model's context holds. Clients look for these words and numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "This model's maximum context length is {limit} tokens. However, you requested {} tokens ({prompt} in the messages, \
     {completion} in the completion). Please reduce the length of the messages or completion.",
    prompt.plus(*completion)
)]
pub struct ContextLength {
    pub limit: u32,
    pub prompt: TokenCount,
    /// At least 1: a prompt that leaves no room for an answer is too long.
    pub completion: u32,
}

/// How many tokens a prompt has, as far as it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCount {
    Exactly(u32),
    /// So long in bytes that it was not tokenized.
    AtLeast(u32),
}

impl TokenCount {
    /// Both together, in words.
    fn plus(self, more: u32) -> String {
        match self {
            Self::Exactly(count) => (u64::from(count) + u64::from(more)).to_string(),
            Self::AtLeast(count) => format!("at least {}", u64::from(count) + u64::from(more)),
        }
    }
}

impl fmt::Display for TokenCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => write!(f, "{count}"),
            Self::AtLeast(count) => write!(f, "at least {count}"),
        }
    }
}

/// Why a request that was taken has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    #[error(
        "A KV-cache page of this request was found in other hands while in use. The request was stopped before a token of it was published."
    )]
    PageMismatch,
    #[error(
        "The model's output for this request was not finite, so it was stopped. Sent again, it would most likely end the same way; \
         the operator of this server can tell from its log whether the model's weights are at fault."
    )]
    NotFinite,
    #[error("The request waited for its first step until its time was up.")]
    QueueTimeout,
    #[error("The request ran until its time was up.")]
    Deadline,
    #[error("The answer was not read for too long.")]
    Stalled,
    #[error("The server is shutting down.")]
    ShuttingDown,
    /// For the log, never for the client.
    #[error("engine: {0}")]
    Engine(String),
}
