//! An answer as it comes: bytes and the time of each read in, what was measured out. Pure: the clock is the caller's.
//!
//! ```text
//! sent        first text   text   text        [DONE]
//!  |---- TTFT -----|- gap --|- gap --|------------|
//!  |------------------- e2e ---------------------|
//! ```
//! Events that one read brings have the same time, because the client could have shown none earlier.

use super::chunk::{self, Piece, Usage};
use super::failure::{Failed, Kind};
use super::sse::{Event, Events, MAX_EVENT_BYTES};

/// The end of a stream.
const DONE: &[u8] = b"[DONE]";

/// What was measured of one request that ended well. Times are in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// From sending to the first text; `None` where the answer came whole or without text.
    pub(super) ttft_us: Option<u32>,
    /// Between chunks with text.
    pub(super) gaps_us: Vec<u32>,
    pub(super) e2e_us: u32,
    /// Chunks with text.
    pub(super) chunks: u32,
    pub(super) usage: Option<Usage>,
}

impl Sample {
    /// The server's count, or the chunks where it counts nothing.
    pub(super) fn output_tokens(&self) -> u32 {
        self.counted_tokens().unwrap_or(self.chunks)
    }

    pub(super) fn counted_tokens(&self) -> Option<u32> {
        self.usage.and_then(|usage| usage.completion_tokens)
    }

    /// Time per output token behind the first; `None` where there is none that was streamed.
    pub(super) fn tpot_us(&self) -> Option<f64> {
        let (tokens, last) = (self.output_tokens(), self.gaps_us.iter().map(|&gap| u64::from(gap)).sum::<u64>());
        (tokens > 1 && !self.gaps_us.is_empty()).then(|| last as f64 / f64::from(tokens - 1))
    }
}

/// A stream that is being read.
#[derive(Debug, Default)]
pub(super) struct Answer {
    events: Events,
    sample: Sample,
    max_chunks: u32,
    last_text_us: u32,
    finished: bool,
    done: bool,
    failed: Option<Failed>,
}

impl Answer {
    /// More chunks with text than `max_chunks` are a failure.
    pub(super) fn new(max_chunks: u32) -> Self {
        Self { max_chunks, ..Self::default() }
    }

    /// Takes what was read `at_us` after sending; later times do not go back.
    pub(super) fn push(&mut self, bytes: &[u8], at_us: u32) {
        let mut events = std::mem::take(&mut self.events);
        let read = events.push(bytes, |event| self.take(event, at_us));
        self.events = events;
        if read.is_err() {
            self.fail(Failed::new(Kind::TooLarge, format!("an event of more than {MAX_EVENT_BYTES} bytes")));
        }
    }

    /// Nothing that comes can change the result.
    pub(super) fn is_settled(&self) -> bool {
        self.done || self.failed.is_some()
    }

    /// The body ended `at_us` after sending.
    ///
    /// # Errors
    /// What the stream told, or that it ended too early.
    pub(super) fn finish(mut self, at_us: u32) -> Result<Sample, Failed> {
        if !self.is_settled() {
            let mut events = std::mem::take(&mut self.events);
            events.finish(|event| self.take(event, at_us));
        }
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if !self.done {
            self.sample.e2e_us = at_us;
        }
        if !self.done && !self.finished {
            let message =
                format!("the stream ended after {} chunks with text, with no [DONE] and no finish_reason", self.sample.chunks);
            return Err(Failed::new(Kind::Unfinished, message));
        }
        with_text(self.sample)
    }

    fn take(&mut self, event: Event<'_>, at_us: u32) {
        if self.is_settled() {
            return;
        }
        if event.data == DONE {
            self.done = true;
            self.sample.e2e_us = at_us;
            return;
        }
        if event.name == b"error" {
            self.fail(Failed::new(Kind::ErrorEvent, chunk::error_message(event.data)));
            return;
        }
        match chunk::read(event.data) {
            Ok(piece) => self.add(piece, at_us),
            Err(failed) => self.fail(failed),
        }
    }

    fn add(&mut self, piece: Piece, at_us: u32) {
        self.finished |= piece.finished;
        // Some servers count in every chunk; the last count is the whole.
        self.sample.usage = piece.usage.or(self.sample.usage);
        if !piece.text {
            return;
        }
        if self.sample.chunks >= self.max_chunks {
            self.fail(Failed::new(Kind::TooLarge, format!("more than {} chunks with text", self.max_chunks)));
            return;
        }
        self.sample.chunks += 1;
        match self.sample.ttft_us {
            None => self.sample.ttft_us = Some(at_us),
            Some(_) => self.sample.gaps_us.push(at_us.saturating_sub(self.last_text_us)),
        }
        self.last_text_us = at_us;
    }

    fn fail(&mut self, failed: Failed) {
        self.failed.get_or_insert(failed);
    }
}

/// An answer that came as one JSON body, from a server that does not stream.
///
/// # Errors
/// It is none, tells of an error or says nothing.
pub(super) fn whole(body: &[u8], at_us: u32) -> Result<Sample, Failed> {
    let piece = chunk::read(body)?;
    with_text(Sample { e2e_us: at_us, chunks: u32::from(piece.text), usage: piece.usage, ..Sample::default() })
}

/// Who gives nothing must not look fast.
fn with_text(sample: Sample) -> Result<Sample, Failed> {
    if sample.output_tokens() == 0 && sample.chunks == 0 {
        return Err(Failed::new(Kind::Empty, "the answer has no text and no tokens"));
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    const END: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n";
    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5}}\n\n";

    fn stream(parts: &[(&str, u32)], end_us: u32) -> Result<Sample, Failed> {
        let mut answer = Answer::new(10);
        for (text, at_us) in parts {
            answer.push(text.as_bytes(), *at_us);
        }
        answer.finish(end_us)
    }

    #[test]
    fn times_are_those_of_chunks_with_text() {
        let two = format!("{TEXT}{TEXT}");
        let parts = [(ROLE, 10), (TEXT, 30), (": ping\n\n", 35), (&*two, 50), (END, 60), (USAGE, 61), ("data: [DONE]\n\n", 62)];
        let sample = stream(&parts, 99).unwrap();
        assert_eq!((sample.ttft_us, sample.gaps_us.as_slice(), sample.e2e_us), (Some(30), [20, 0].as_slice(), 62));
        assert_eq!((sample.chunks, sample.output_tokens(), sample.counted_tokens()), (3, 5, Some(5)));
        assert_eq!(sample.tpot_us(), Some(5.0));
    }

    #[test]
    fn chunks_count_where_the_server_counts_nothing() {
        let sample = stream(&[(TEXT, 5), (TEXT, 7), (END, 8)], 9).unwrap();
        assert_eq!((sample.output_tokens(), sample.counted_tokens(), sample.e2e_us), (2, None, 9));
        assert_eq!(sample.tpot_us(), Some(2.0));
        assert_eq!(stream(&[(TEXT, 5), (END, 8)], 9).unwrap().tpot_us(), None);
    }

    #[test]
    fn streams_that_end_badly_are_failures() {
        let kind = |parts: &[(&str, u32)]| stream(parts, 99).unwrap_err().kind;
        assert_eq!(kind(&[(TEXT, 5)]), Kind::Unfinished);
        assert_eq!(kind(&[]), Kind::Unfinished);
        assert_eq!(kind(&[("data: [DONE]\n\n", 5)]), Kind::Empty);
        assert_eq!(kind(&[(ROLE, 5), (END, 6)]), Kind::Empty);
        assert_eq!(kind(&[(TEXT, 5), ("data: nonsense\n\n", 6), ("data: [DONE]\n\n", 7)]), Kind::Malformed);
        assert_eq!(kind(&[(TEXT, 5), ("data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n", 6)]), Kind::ErrorEvent);
        assert_eq!(kind(&[("event: error\ndata: {\"message\":\"x\"}\n\n", 6)]), Kind::ErrorEvent);
        assert_eq!(kind(&[(&TEXT.repeat(11), 6)]), Kind::TooLarge);
        assert_eq!(kind(&[(&"x".repeat(MAX_EVENT_BYTES + 1), 6)]), Kind::TooLarge);
        assert!(stream(&[(&TEXT.repeat(10), 6), ("data: [DONE]", 7)], 8).is_ok(), "cut off before the blank line");
    }

    #[test]
    fn a_whole_answer_has_no_first_token() {
        let body = br#"{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"completion_tokens":4}}"#;
        let sample = whole(body, 70).unwrap();
        assert_eq!((sample.ttft_us, sample.e2e_us, sample.output_tokens(), sample.tpot_us()), (None, 70, 4, None));
        assert_eq!(whole(br#"{"choices":[]}"#, 1).unwrap_err().kind, Kind::Empty);
        assert_eq!(whole(br#"{"error":"no"}"#, 1).unwrap_err().kind, Kind::ErrorEvent);
    }
}
