//! Why a sequence is not taken in. A refusal changes nothing. Knows no HTTP status.

use millrace_core::SeqId;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error("{max} sequences wait for prefill already; retry later or raise the queue's limit")]
    QueueFull { max: u32 },
    #[error("the prompt has {tokens} tokens, this lane takes {max}; shorten it or give the pool more pages")]
    TooLong { tokens: u64, max: u32 },
    #[error("the prompt of sequence {0} is empty; a prompt has at least one token")]
    EmptyPrompt(SeqId),
    #[error("sequence {0} is in prefill already; a sequence is submitted once")]
    Duplicate(SeqId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    #[error("{wanted} pages wanted and {watermark} kept back, {free} free; try again after the next step")]
    Pages { wanted: u32, free: u32, watermark: u32 },
    #[error("{max} sequences are in decode already; try again when one has ended")]
    Sequences { max: u32 },
    /// Trying again does not help.
    #[error("the sequence needs {tokens} positions, this pool can hold {max}; shorten the prompt or give the pool more pages")]
    Never { tokens: u64, max: u32 },
    #[error("sequence {0} is in decode already; a sequence is reserved once")]
    Duplicate(SeqId),
    #[error(
        "{prompt_tokens} prompt tokens were handed off for sequence {seq}, whose prompt has {expected}; the hand-off is another's"
    )]
    Mismatch { seq: SeqId, prompt_tokens: u32, expected: u32 },
}
