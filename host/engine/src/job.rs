//! What the node hands to the engine and what comes back. Knows no text, HTTP or pages.

use std::sync::Arc;

use millrace_core::{FinishReason, LaneId, RequestId, SamplingParams, SeqId, TenantId};
use millrace_kv::PrefixScope;
use millrace_transfer::Incarnation;

/// One sequence to generate: where, for whom, from what.
pub struct Job {
    pub seq: SeqId,
    pub request: RequestId,
    pub lane: LaneId,
    pub tenant: TenantId,
    /// Higher goes first, as far as the schedule policy cares.
    pub priority: i32,
    /// On the engine's clock; a job that still waits for its first step then fails with [`JobError::DeadlinePassed`].
    pub deadline_us: Option<u64>,
    /// At least one token; ids below the model's vocabulary.
    pub prompt: Arc<[u32]>,
    /// Within which its prompt shares pages with others, where the lane's prefill pool keeps prefixes; `None`: with nobody.
    pub scope: Option<PrefixScope>,
    pub sampling: SamplingParams,
    pub events: Box<dyn EventSink>,
}

/// Where a job's events go. Called on the driver thread, so it must not block.
pub trait EventSink: Send {
    fn emit(&mut self, event: Event);

    /// The engine of another process has the sequence from here on, in this life, and tells the rest. Nothing follows.
    fn handed_over(&mut self, _to: Incarnation) {}

    /// The sequence gave its pages up and has to go through prefill again, which is in another process, with the output tokens that
    /// it has. Nothing follows.
    fn preempted(&mut self, _again: Replay) {}
}

/// What a sequence brings along that was preempted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Output tokens so far, published already.
    pub tokens: Vec<u32>,
    /// How often it happened.
    pub preemptions: u32,
}

/// In order: `Prefilled`, `Token`s, then exactly one `Finished` or `Failed`. Nothing after an abort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The whole prompt is in the cache; the first token follows at once.
    Prefilled {
        /// Prompt tokens that were found in the prefix cache.
        cached_tokens: u32,
        /// From submission to the first step that ran any of it.
        queued_us: u64,
    },
    Token(u32),
    Finished(FinishReason),
    Failed(JobError),
}

/// Why a sequence ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A page no longer carried the tag that this sequence expected: its numbers may have been another's.
    #[error(
        "a KV page of this request was handed to another owner while in use; the request was stopped before a token of it was published"
    )]
    PageMismatch,
    /// NaN or infinity among the logits of this sequence.
    #[error("the model's output for this request was not finite")]
    NotFinite,
    /// The device failed; every sequence of a lane that uses its pool ends so, and whoever comes to such a lane later.
    #[error("the engine failed: {0}")]
    Device(String),
    /// Still waiting when its deadline passed.
    #[error("the request waited past its deadline")]
    DeadlinePassed,
    /// The hand-off between prefill and decode was refused.
    #[error("the hand-off from prefill to decode failed: {0}")]
    HandOff(String),
    /// The engine is going down.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Why a job was not taken at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error("the waiting queue of lane `{lane}` is full ({waiting} requests); try again in {retry_after_ms} ms")]
    QueueFull { lane: String, waiting: usize, retry_after_ms: u64 },
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error("the sequence needs {needed} tokens of KV cache, more than the {limit} that lane `{lane}` can ever hold")]
    TooLong { lane: String, needed: usize, limit: usize },
    #[error("there is no lane {0}")]
    UnknownLane(LaneId),
    #[error("the prompt is empty")]
    EmptyPrompt,
}
