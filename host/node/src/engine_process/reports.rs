//! What an engine process has to tell its node: a bounded queue that the driver's thread never waits for. A report for which there is no
//! room is lost, and with it what the node knows of a sequence; so the process ends then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::SeqId;
use millrace_engine::{Event, EventSink, Replay};
use millrace_transfer::Incarnation;
use tokio::sync::mpsc;

use crate::control::{Report, SequenceEvent};

/// Reports that may wait for the node, tokens for the most part. A node that does not take so many is no node.
const REPORTS_AHEAD: usize = 1 << 16;

/// The queue's entrance. Cheap to clone.
#[derive(Clone)]
pub(super) struct Reports {
    queue: mpsc::Sender<Report>,
    lost: Arc<AtomicBool>,
}

impl Reports {
    pub(super) fn new() -> (Self, mpsc::Receiver<Report>) {
        Self::with_room(REPORTS_AHEAD)
    }

    fn with_room(room: usize) -> (Self, mpsc::Receiver<Report>) {
        let (queue, outbox) = mpsc::channel(room);
        (Self { queue, lost: Arc::default() }, outbox)
    }

    /// Never waits.
    pub(super) fn tell(&self, report: Report) {
        if self.queue.try_send(report).is_err() {
            self.lost.store(true, Ordering::Release);
        }
    }

    /// Whether the node misses something: nothing that it hears from now on can be believed whole.
    pub(super) fn are_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// Tells the node of one sequence.
pub(super) struct Reporter {
    seq: SeqId,
    /// Of the submission, where this is the prefill engine.
    round: u32,
    /// Output tokens so far.
    tokens: u32,
    reports: Reports,
}

impl Reporter {
    /// `tokens`: that it brings along.
    pub(super) fn of_prefill(seq: SeqId, round: u32, tokens: usize, reports: Reports) -> Self {
        Self { seq, round, tokens: u32::try_from(tokens).unwrap_or(u32::MAX), reports }
    }

    /// `tokens`: that it brings along.
    pub(super) fn of_decode(seq: SeqId, tokens: usize, reports: Reports) -> Self {
        Self::of_prefill(seq, 0, tokens, reports)
    }

    fn tell(&self, event: SequenceEvent) {
        self.reports.tell(Report::Sequence(self.seq, event));
    }
}

impl EventSink for Reporter {
    fn emit(&mut self, event: Event) {
        let index = self.tokens;
        self.tokens = self.tokens.saturating_add(u32::from(matches!(event, Event::Token(_))));
        self.tell(SequenceEvent::of(event, index));
    }

    fn handed_over(&mut self, to: Incarnation) {
        self.tell(SequenceEvent::HandedOver { round: self.round, to });
    }

    fn preempted(&mut self, again: Replay) {
        self.tell(SequenceEvent::Preempted(again));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_without_room_is_known_to_be_lost() {
        let (reports, mut outbox) = Reports::with_room(2);
        let mut reporter = Reporter::of_decode(SeqId(1), 3, reports.clone());
        reporter.emit(Event::Token(7));
        reporter.emit(Event::Token(8));
        assert!(!reports.are_lost());
        reporter.emit(Event::Token(9));
        assert!(reports.are_lost());
        // Room that comes later brings nothing back.
        for index in [3, 4] {
            let told = outbox.try_recv();
            assert!(matches!(told, Ok(Report::Sequence(SeqId(1), SequenceEvent::Token { index: at, .. })) if at == index));
        }
        reporter.emit(Event::Token(10));
        assert!(reports.are_lost());
    }

    #[test]
    fn a_hand_over_names_its_round_and_who_took_it() {
        let (reports, mut outbox) = Reports::with_room(1);
        let life = Incarnation { epoch: 3, boot: 4 };
        Reporter::of_prefill(SeqId(1), 5, 0, reports).handed_over(life);
        assert!(matches!(outbox.try_recv(), Ok(Report::Sequence(_, SequenceEvent::HandedOver { round: 5, to })) if to == life));
    }
}
