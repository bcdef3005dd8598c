//! What a client hears whatever order the two engines are heard in, and when one of them ends.

use std::sync::mpsc::{Receiver, Sender, channel};

use millrace_core::{FinishReason, RequestId, SamplingParams, TenantId};

use super::*;

const PREFILL: PoolId = PoolId(0);
const DECODE: PoolId = PoolId(1);
const SEQ: SeqId = SeqId(5);

struct Sink(Sender<Event>);

impl EventSink for Sink {
    fn emit(&mut self, event: Event) {
        let _ = self.0.send(event);
    }
}

fn job() -> (Jobs, Receiver<Event>) {
    let sampling =
        SamplingParams { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 0, max_tokens: 9, stop_tokens: vec![] };
    let submission = Submission {
        seq: SEQ,
        request: RequestId(5),
        lane: "fast".into(),
        tenant: TenantId(0),
        priority: 0,
        within_us: None,
        prompt: vec![1].into(),
        scope: None,
        sampling,
        replay: Replay { tokens: Vec::new(), preemptions: 0 },
    };
    let (sender, events) = channel();
    let mut jobs = Jobs::default();
    jobs.insert(Route { lane: 0, prefill: PREFILL, decode: DECODE }, submission, Box::new(Sink(sender)));
    (jobs, events)
}

fn token(index: u32) -> SequenceEvent {
    SequenceEvent::Token { index, token: 100 + index }
}

fn prefilled() -> SequenceEvent {
    SequenceEvent::Prefilled { cached_tokens: 3, queued_us: 4 }
}

fn aborts() -> Vec<Errand> {
    vec![Errand::Abort(PREFILL, SEQ), Errand::Abort(DECODE, SEQ)]
}

const HEARD: [Event; 5] = [
    Event::Prefilled { cached_tokens: 3, queued_us: 4 },
    Event::Token(100),
    Event::Token(101),
    Event::Token(102),
    Event::Finished(FinishReason::Length),
];

#[test]
fn a_client_hears_everything_once_whoever_is_heard_first() {
    let prefill = [prefilled(), token(0), SequenceEvent::HandedOver];
    let decode = [prefilled(), token(0), token(1), token(2), SequenceEvent::Finished(FinishReason::Length)];
    // Every way to merge what the two say: bit i says whose turn is i.
    for merge in 0_u32..1 << 8 {
        if merge.count_ones() != 3 {
            continue;
        }
        let (mut jobs, events) = job();
        let (mut from_prefill, mut from_decode) = (prefill.iter().cloned(), decode.iter().cloned());
        for turn in 0..8 {
            let of_prefill = merge >> turn & 1 == 1;
            let (from, event) = if of_prefill { (PREFILL, from_prefill.next()) } else { (DECODE, from_decode.next()) };
            jobs.hear(from, SEQ, event.unwrap());
        }
        assert_eq!(events.iter().collect::<Vec<_>>(), HEARD, "{merge:08b}");
    }
}

#[test]
fn a_prefill_engine_that_ends_takes_what_was_published_and_returns_the_rest() {
    let why = JobError::Device("gone".into());
    let (mut jobs, events) = job();
    for _ in 1..MAX_ATTEMPTS {
        assert!(matches!(jobs.lost(PREFILL, &why)[..], [Errand::Submit(PREFILL, _)]));
        assert!(jobs.wants(SEQ) && events.try_recv().is_err());
    }
    assert_eq!(jobs.lost(PREFILL, &why), aborts(), "not for ever");
    assert_eq!(events.recv(), Ok(Event::Failed(why.clone())));

    let (mut jobs, events) = job();
    jobs.hear(PREFILL, SEQ, prefilled());
    jobs.hear(PREFILL, SEQ, token(0));
    assert_eq!(jobs.lost(DECODE, &why), [], "it is not there yet, and goes to the next life of decode");
    assert_eq!(jobs.lost(PREFILL, &why), aborts());
    assert_eq!(events.iter().last(), Some(Event::Failed(why)));
}

#[test]
fn a_decode_engine_that_ends_takes_what_it_ran() {
    let why = JobError::Device("gone".into());
    let (mut jobs, events) = job();
    jobs.hear(PREFILL, SEQ, prefilled());
    jobs.hear(PREFILL, SEQ, token(0));
    jobs.hear(PREFILL, SEQ, SequenceEvent::HandedOver);
    assert_eq!(jobs.lost(PREFILL, &why), [], "it is past prefill");
    assert_eq!(jobs.lost(DECODE, &why), aborts());
    assert_eq!(events.iter().last(), Some(Event::Failed(why)));
}

#[test]
fn a_preempted_sequence_goes_back_with_what_it_has() {
    let (mut jobs, events) = job();
    jobs.hear(DECODE, SEQ, token(0));
    let again = Replay { tokens: vec![100], preemptions: 1 };
    let errands = jobs.hear(DECODE, SEQ, SequenceEvent::Preempted(again.clone()));
    assert!(matches!(&errands[..], [Errand::Submit(PREFILL, submission)] if submission.replay == again));
    // Prefill is silent about what was told; decode goes on behind it.
    jobs.hear(PREFILL, SEQ, SequenceEvent::HandedOver);
    jobs.hear(DECODE, SEQ, token(1));
    drop(jobs);
    assert_eq!(events.iter().collect::<Vec<_>>(), [Event::Token(100), Event::Token(101)]);
}

#[test]
fn whom_nobody_wants_is_told_so() {
    let (mut jobs, _events) = job();
    assert_eq!(jobs.abort(SEQ), aborts());
    assert_eq!(jobs.hear(DECODE, SEQ, token(1)), [Errand::Abort(DECODE, SEQ)]);
    assert_eq!(jobs.hear(DECODE, SEQ, SequenceEvent::Finished(FinishReason::Stop)), []);
}

#[test]
fn a_gap_in_the_tokens_ends_a_sequence() {
    let (mut jobs, events) = job();
    jobs.hear(DECODE, SEQ, token(0));
    assert_eq!(jobs.hear(DECODE, SEQ, token(2)), aborts());
    assert!(matches!(events.iter().last(), Some(Event::Failed(JobError::Device(_)))));
}

/// Decode was heard first and sent the sequence back; only then prefill says that it had handed it over. What it says of the attempt
/// after that must be heard, or the client waits for ever.
#[test]
fn a_hand_over_that_is_told_late_is_of_the_attempt_before() {
    let (mut jobs, events) = job();
    let again = Replay { tokens: vec![100, 101], preemptions: 1 };
    for (from, event) in [
        (PREFILL, prefilled()),
        (PREFILL, token(0)),
        (DECODE, prefilled()),
        (DECODE, token(1)),
        (DECODE, SequenceEvent::Preempted(again)),
        (PREFILL, SequenceEvent::HandedOver),
        (PREFILL, SequenceEvent::Failed(JobError::NotFinite)),
    ] {
        jobs.hear(from, SEQ, event);
    }
    drop(jobs);
    assert_eq!(events.iter().last(), Some(Event::Failed(JobError::NotFinite)));
}

/// And where it is told in time, the next one counts.
#[test]
fn each_attempt_is_handed_over_once() {
    let (mut jobs, _events) = job();
    let again = || SequenceEvent::Preempted(Replay { tokens: vec![100], preemptions: 1 });
    let told = [
        // In time; behind what decode told; and behind its sending it back.
        (PREFILL, token(0)),
        (PREFILL, SequenceEvent::HandedOver),
        (DECODE, again()),
        (DECODE, token(1)),
        (PREFILL, SequenceEvent::HandedOver),
        (DECODE, again()),
        (DECODE, token(2)),
        (DECODE, again()),
        (PREFILL, SequenceEvent::HandedOver),
        (PREFILL, SequenceEvent::HandedOver),
    ];
    told.into_iter().for_each(|(from, event)| drop(jobs.hear(from, SEQ, event)));
    assert!(!jobs.wants(SEQ), "decode has it");
    assert_eq!(jobs.lost(PREFILL, &JobError::ShuttingDown), []);
    assert_eq!(jobs.lost(DECODE, &JobError::ShuttingDown), aborts());
}
