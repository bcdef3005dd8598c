//! The frames of one stream: which chunk comes when, and where the counts stand. A pure state machine over the node's events.

use millrace_node::{Finished, GenerationEvent, TokenUsage};
use serde_json::Value;

use crate::chunks::{Place, Writer, usage_json};
use crate::error::ApiError;
use crate::json::Usage;
use crate::sse;

/// Whether more may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Over,
}

/// Writes the events of one stream in order.
pub(crate) struct Script {
    writer: Writer,
    usage: Usage,
    counts: TokenUsage,
    place: Place,
}

impl Script {
    pub(crate) fn new(writer: Writer, usage: Usage, prompt_tokens: u32) -> Self {
        let counts = TokenUsage { prompt_tokens, ..TokenUsage::default() };
        Self { writer, usage, counts, place: Place::First }
    }

    /// The frames of an event.
    pub(crate) fn write(&mut self, event: GenerationEvent) -> (String, Progress) {
        match event {
            GenerationEvent::Text { delta, tokens } => {
                self.counts.completion_tokens = self.counts.completion_tokens.saturating_add(tokens);
                let chunk = self.writer.text(&delta, self.place);
                self.place = Place::Later;
                (self.frame(chunk), Progress::More)
            }
            GenerationEvent::Finished(finished) => (self.end(&finished), Progress::Over),
            GenerationEvent::Failed(error) => (sse::frame(&ApiError::from(error).envelope()) + sse::DONE, Progress::Over),
        }
    }

    fn end(&mut self, finished: &Finished) -> String {
        self.counts = finished.usage;
        let mut text = self.frame(self.writer.end(finished, self.place));
        if self.usage != Usage::Nowhere {
            text.push_str(&sse::frame(&self.writer.usage(&self.counts)));
        }
        text.push_str(sse::DONE);
        text
    }

    fn frame(&self, mut chunk: Value) -> String {
        if self.usage == Usage::Everywhere {
            chunk["usage"] = usage_json(&self.counts);
        }
        sse::frame(&chunk)
    }
}

#[cfg(test)]
mod tests;
