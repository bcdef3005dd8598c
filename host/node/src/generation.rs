//! A running request as its reader sees it: events of text, and the end. Dropping it takes the sequence out of the engine.
//!
//! Between the engine and the reader stands one task per request, which turns tokens into text and looks for stop strings:
//!
//! ```text
//! driver thread --Event (unbounded, at most max_tokens)--> task: detokenize, stop strings --GenerationEvent (bounded)--> reader
//! ```
//!
//! A reader that is slow gets its text in larger pieces; one that does not read for too long is given up.

use std::time::Duration;

use millrace_core::{FinishReason, SeqId};
use millrace_engine::{Event, EventSink, JobError};
use millrace_tokenize::{Detokenizer, StopStrings};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::admission::Place;
use crate::engines::Engines;
use crate::metrics::Outcome;
use crate::request::{Finished, GenerateError, GenerationEvent, Started, TokenUsage};
use crate::stopwatch::Stopwatch;

/// Events that may wait for the reader before they are joined.
const EVENTS_AHEAD: usize = 64;

/// A request that has been taken.
#[derive(Debug)]
pub struct Generation {
    started: Started,
    events: mpsc::Receiver<GenerationEvent>,
}

impl Generation {
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// The next event; `None` after the end.
    pub async fn next(&mut self) -> Option<GenerationEvent> {
        self.events.recv().await
    }
}

/// The engine's end of the wire.
pub(crate) struct Wire(pub(crate) mpsc::UnboundedSender<Event>);

impl EventSink for Wire {
    fn emit(&mut self, event: Event) {
        // The task is gone when its request was aborted; then nobody wants the event.
        let _ = self.0.send(event);
    }
}

/// What the task of a request needs.
pub(crate) struct Parts {
    pub(crate) started: Started,
    pub(crate) seq: SeqId,
    pub(crate) engine: Engines,
    pub(crate) place: Place,
    pub(crate) tokens: mpsc::UnboundedReceiver<Event>,
    pub(crate) detokenizer: Detokenizer,
    pub(crate) stop: Vec<String>,
    pub(crate) watch: Stopwatch,
    pub(crate) deadline: Instant,
    /// How long the reader may leave an event lying.
    pub(crate) stall: Duration,
}

impl Parts {
    /// Starts the task.
    pub(crate) fn spawn(self) -> Generation {
        let (out, events) = mpsc::channel(EVENTS_AHEAD);
        let started = self.started.clone();
        let stops = StopStrings::new(self.stop);
        let usage = TokenUsage { prompt_tokens: started.prompt_tokens, ..TokenUsage::default() };
        let text = Text { detokenizer: self.detokenizer, stops };
        let task = Task {
            seq: self.seq,
            engine: self.engine,
            place: self.place,
            text,
            watch: self.watch,
            deadline: self.deadline,
            stall: self.stall,
            usage,
            pending: Pending::default(),
            abort: Abort::WhenDropped,
        };
        tokio::spawn(task.run(self.tokens, out));
        Generation { started, events }
    }
}

/// Tokens to text, up to a stop string.
struct Text {
    detokenizer: Detokenizer,
    stops: StopStrings,
}

/// What waits for the reader.
#[derive(Default)]
struct Pending {
    delta: String,
    tokens: u32,
    first_token: bool,
    end: Option<GenerationEvent>,
    since: Option<Instant>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.delta.is_empty() && !self.first_token && self.end.is_none()
    }

    /// The next event for the reader, and whether it is the last.
    fn take(&mut self) -> Option<GenerationEvent> {
        self.since = None;
        if !self.delta.is_empty() || self.first_token {
            self.first_token = false;
            let (delta, tokens) = (std::mem::take(&mut self.delta), std::mem::take(&mut self.tokens));
            return Some(GenerationEvent::Text { delta, tokens });
        }
        self.end.take()
    }
}

/// Whether the engine has to be told when the task goes.
#[derive(PartialEq, Eq)]
enum Abort {
    WhenDropped,
    Done,
}

struct Task {
    seq: SeqId,
    engine: Engines,
    place: Place,
    text: Text,
    watch: Stopwatch,
    deadline: Instant,
    stall: Duration,
    usage: TokenUsage,
    pending: Pending,
    abort: Abort,
}

/// Whatever ends the task, a panic included, the sequence does not stay in the engine.
impl Drop for Task {
    fn drop(&mut self) {
        if self.abort == Abort::WhenDropped {
            self.engine.abort(self.seq);
            self.watch.ended(Outcome::Abort, &self.usage);
        }
    }
}

impl Task {
    async fn run(mut self, mut tokens: mpsc::UnboundedReceiver<Event>, out: mpsc::Sender<GenerationEvent>) {
        loop {
            let ended = self.pending.end.is_some();
            let wake = self.wake_at();
            tokio::select! {
                biased;
                () = out.closed() => return,
                room = out.reserve(), if !self.pending.is_empty() => {
                    let (Ok(room), Some(event)) = (room, self.pending.take()) else { return };
                    let last = !matches!(event, GenerationEvent::Text { .. });
                    room.send(event);
                    if last {
                        return;
                    }
                }
                event = tokens.recv(), if !ended => self.hear(event),
                () = sleep_until(wake) => {
                    if ended || self.pending.since.is_some_and(|since| since + self.stall <= Instant::now()) {
                        self.end(Outcome::Error);
                        // The reader may come back: it finds that there is no more.
                        let _ = out.try_send(GenerationEvent::Failed(GenerateError::Stalled));
                        return;
                    }
                    self.fail(GenerateError::Deadline);
                }
            }
        }
    }

    /// The deadline, or the moment at which the reader has stalled for too long.
    fn wake_at(&mut self) -> Instant {
        if self.pending.is_empty() {
            self.pending.since = None;
            return self.deadline;
        }
        let since = *self.pending.since.get_or_insert_with(Instant::now);
        let stalled = since + self.stall;
        if self.pending.end.is_some() { stalled } else { stalled.min(self.deadline) }
    }

    fn hear(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Prefilled { cached_tokens, queued_us }) => {
                self.usage.cached_tokens = cached_tokens;
                self.watch.prefilled(queued_us, self.usage.prompt_tokens);
            }
            Some(Event::Token(id)) => self.token(id),
            Some(Event::Finished(reason)) => self.finished(reason),
            Some(Event::Failed(error)) => {
                self.abort = Abort::Done;
                self.fail(match error {
                    JobError::PageMismatch => GenerateError::PageMismatch,
                    JobError::NotFinite => GenerateError::NotFinite,
                    // A sequence that went back to prefill did not wait in vain.
                    JobError::DeadlinePassed if self.usage.completion_tokens > 0 => GenerateError::Deadline,
                    JobError::DeadlinePassed => GenerateError::QueueTimeout,
                    JobError::ShuttingDown => GenerateError::ShuttingDown,
                    other @ (JobError::Device(_) | JobError::HandOff(_)) => GenerateError::Engine(other.to_string()),
                });
            }
            None => self.fail(GenerateError::Engine("the engine is gone".to_owned())),
        }
    }

    fn token(&mut self, id: u32) {
        if self.watch.token() {
            self.place.run();
            self.pending.first_token = true;
        }
        self.usage.completion_tokens = self.usage.completion_tokens.saturating_add(1);
        self.pending.tokens = self.pending.tokens.saturating_add(1);
        let piece = self.text.detokenizer.push(id);
        if piece.is_empty() {
            return;
        }
        let outcome = self.text.stops.push(&piece);
        self.pending.delta.push_str(&outcome.text);
        if outcome.stopped {
            self.stopped();
        }
    }

    /// A stop string was found: nothing after it is wanted.
    fn stopped(&mut self) {
        self.watch.stop_string();
        let matched = self.text.stops.matched().map(str::to_owned);
        self.finish(FinishReason::Stop, matched);
    }

    fn finished(&mut self, reason: FinishReason) {
        self.abort = Abort::Done;
        if reason == FinishReason::Stop {
            // The engine keeps the stop token to itself; clients count it.
            self.usage.completion_tokens = self.usage.completion_tokens.saturating_add(1);
            self.pending.tokens = self.pending.tokens.saturating_add(1);
        }
        let rest = self.text.detokenizer.finish();
        let outcome = self.text.stops.push(&rest);
        self.pending.delta.push_str(&outcome.text);
        if outcome.stopped {
            return self.stopped();
        }
        let held = self.text.stops.flush();
        self.pending.delta.push_str(&held);
        self.finish(reason, None);
    }

    fn finish(&mut self, reason: FinishReason, matched_stop: Option<String>) {
        self.end(Outcome::from(reason));
        self.pending.end = Some(GenerationEvent::Finished(Finished { reason, usage: self.usage, matched_stop }));
    }

    fn fail(&mut self, error: GenerateError) {
        self.end(Outcome::Error);
        self.pending.end = Some(GenerationEvent::Failed(error));
    }

    /// The sequence is over: out of the engine if it is still there, counted once.
    fn end(&mut self, outcome: Outcome) {
        if self.pending.end.is_some() {
            return;
        }
        if self.abort == Abort::WhenDropped {
            self.engine.abort(self.seq);
            self.abort = Abort::Done;
        }
        self.watch.ended(outcome, &self.usage);
    }
}
