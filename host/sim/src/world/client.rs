//! A request as its client sees it, and the mailbox that the engine's events land in. Knows no engine.

use std::sync::{Arc, Mutex};

use millrace_core::SeqId;
use millrace_engine::{Event, EventSink};

use crate::workload::Request;

/// Events in the order in which they came.
pub(super) type Mailbox = Arc<Mutex<Vec<(SeqId, Event)>>>;

pub(super) struct Sink {
    seq: SeqId,
    mailbox: Mailbox,
}

impl Sink {
    pub(super) fn new(seq: SeqId, mailbox: Mailbox) -> Self {
        Self { seq, mailbox }
    }
}

impl EventSink for Sink {
    fn emit(&mut self, event: Event) {
        super::lock(&self.mailbox).push((self.seq, event));
    }
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) request: Request,
    pub(super) deadline_us: Option<u64>,
    /// Turn in which it came.
    pub(super) since: u64,
    pub(super) tokens: Vec<u32>,
    /// How it ended, in a word.
    pub(super) end: Option<&'static str>,
    /// A page that it named was handed to another while it named it.
    pub(super) lost_a_page: bool,
    /// A page that it read held numbers that are none.
    pub(super) read_not_finite: bool,
}

impl Client {
    pub(super) fn new(request: Request, deadline_us: Option<u64>, since: u64) -> Self {
        Self { request, deadline_us, since, tokens: Vec::new(), end: None, lost_a_page: false, read_not_finite: false }
    }
}
