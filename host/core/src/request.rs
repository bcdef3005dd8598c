//! What a request asks of the engines, after HTTP, templates and tokenizing are done.

/// How tokens are drawn and when a sequence ends. Ranges were checked by whoever made it.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0: greedy.
    pub temperature: f32,
    /// In (0, 1]; 1 is off.
    pub top_p: f32,
    /// 0: off.
    pub top_k: u32,
    /// In [0, 1]; 0 is off.
    pub min_p: f32,
    /// Always given: the node draws one where the client sent none.
    pub seed: u64,
    /// At least 1.
    pub max_tokens: u32,
    /// Token ids that end the sequence (the model's end-of-sequence ids and those that the client named).
    pub stop_tokens: Vec<u32>,
}

impl SamplingParams {
    /// The likeliest token each time.
    pub fn greedy(max_tokens: u32, stop_tokens: Vec<u32>) -> Self {
        Self { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 0, max_tokens, stop_tokens }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or stop string.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
}
