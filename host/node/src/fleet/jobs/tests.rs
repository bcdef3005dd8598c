//! What a client hears whatever order the two engines are heard in, and when one of them ends.

use std::sync::mpsc::{Receiver, Sender, channel};

use millrace_core::{FinishReason, RequestId, SamplingParams, TenantId};
use millrace_transfer::Incarnation;

use super::*;

pub(super) const PREFILL: PoolId = PoolId(0);
pub(super) const DECODE: PoolId = PoolId(1);
const SEQ: SeqId = SeqId(5);

pub(super) struct Sink(pub(super) Sender<Event>);

impl EventSink for Sink {
    fn emit(&mut self, event: Event) {
        let _ = self.0.send(event);
    }
}

pub(super) fn submission() -> Submission {
    let sampling = SamplingParams::greedy(9, Vec::new());
    Submission {
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
        round: 0,
    }
}

fn job() -> (Jobs, Receiver<Event>) {
    job_until(None)
}

fn job_until(deadline_us: Option<u64>) -> (Jobs, Receiver<Event>) {
    let (sender, events) = channel();
    let mut jobs = Jobs::default();
    jobs.insert(Route { lane: 0, prefill: PREFILL, decode: DECODE }, submission(), deadline_us, Box::new(Sink(sender)));
    (jobs, events)
}

fn token(index: u32) -> SequenceEvent {
    SequenceEvent::Token { index, token: 100 + index }
}

/// To a life of decode that has not ended, whatever ends before.
fn handed_over(round: u32) -> SequenceEvent {
    handed_over_to(2, round)
}

fn handed_over_to(epoch: u64, round: u32) -> SequenceEvent {
    SequenceEvent::HandedOver { round, to: Incarnation { epoch, boot: 9 } }
}

fn prefilled() -> SequenceEvent {
    SequenceEvent::Prefilled { cached_tokens: 3, queued_us: 4 }
}

/// Whether prefill is to have it.
fn wants(jobs: &Jobs) -> bool {
    jobs.live.get(&SEQ).is_some_and(|live| live.place == Place::Prefill && !live.held)
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
    let prefill = [prefilled(), token(0), handed_over(0)];
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
        assert!(matches!(jobs.lost(PREFILL, 1, &why)[..], [Errand::Submit(PREFILL, _)]));
        assert!(wants(&jobs) && events.try_recv().is_err());
    }
    assert_eq!(jobs.lost(PREFILL, 1, &why), aborts(), "not for ever");
    assert_eq!(events.recv(), Ok(Event::Failed(why.clone())));

    let (mut jobs, events) = job();
    jobs.hear(PREFILL, SEQ, prefilled());
    jobs.hear(PREFILL, SEQ, token(0));
    assert_eq!(jobs.lost(DECODE, 1, &why), [], "it is not there yet, and goes to the next life of decode");
    assert_eq!(jobs.lost(PREFILL, 1, &why), aborts());
    assert_eq!(events.iter().last(), Some(Event::Failed(why)));
}

#[test]
fn a_decode_engine_that_ends_takes_what_it_ran() {
    let why = JobError::Device("gone".into());
    let (mut jobs, events) = job();
    jobs.hear(PREFILL, SEQ, prefilled());
    jobs.hear(PREFILL, SEQ, token(0));
    jobs.hear(PREFILL, SEQ, handed_over(0));
    assert_eq!(jobs.lost(PREFILL, 1, &why), [], "it is past prefill");
    assert_eq!(jobs.lost(DECODE, 1, &why), aborts());
    assert_eq!(events.iter().last(), Some(Event::Failed(why)));
}

fn submitted(errands: &[Errand]) -> &Submission {
    match errands {
        [Errand::Submit(PREFILL, submission)] => submission,
        other => panic!("{other:?}"),
    }
}

fn preempted() -> (Replay, SequenceEvent) {
    let again = Replay { tokens: vec![100], preemptions: 1 };
    (again.clone(), SequenceEvent::Preempted(again))
}

#[test]
fn a_preempted_sequence_goes_back_with_what_it_has() {
    let (mut jobs, events) = job();
    jobs.hear(PREFILL, SEQ, handed_over(0));
    jobs.hear(DECODE, SEQ, token(0));
    let (again, preempted) = preempted();
    let errands = jobs.hear(DECODE, SEQ, preempted);
    assert_eq!((&submitted(&errands).replay, submitted(&errands).round), (&again, 1));
    // Prefill is silent about what was told; decode goes on behind it.
    jobs.hear(PREFILL, SEQ, handed_over(1));
    jobs.hear(DECODE, SEQ, token(1));
    drop(jobs);
    assert_eq!(events.iter().collect::<Vec<_>>(), [Event::Token(100), Event::Token(101)]);
}

#[test]
fn a_preempted_sequence_waits_until_prefill_has_let_go_of_it() {
    let (again, preempted) = preempted();
    // Decode is heard before prefill has heard that the pages arrived: sent now, it would be there twice.
    let (mut jobs, _events) = job();
    jobs.hear(DECODE, SEQ, token(0));
    assert_eq!(jobs.hear(DECODE, SEQ, preempted.clone()), []);
    assert!(!wants(&jobs));
    let errands = jobs.hear(PREFILL, SEQ, handed_over(0));
    assert_eq!((&submitted(&errands).replay, submitted(&errands).round), (&again, 1));
    assert!(wants(&jobs));

    // Prefill dies instead: it goes to its next life.
    let (mut jobs, events) = job();
    jobs.hear(DECODE, SEQ, token(0));
    jobs.hear(DECODE, SEQ, preempted.clone());
    let errands = jobs.lost(PREFILL, 1, &JobError::Device("gone".into()));
    assert_eq!(submitted(&errands).replay, again);
    assert!(wants(&jobs) && events.try_iter().all(|event| event == Event::Token(100)));

    // Decode dies, and its next life gets from prefill what was not acknowledged: prefill need not begin again.
    let (mut jobs, events) = job();
    jobs.hear(DECODE, SEQ, token(0));
    jobs.hear(DECODE, SEQ, preempted);
    assert_eq!(jobs.lost(DECODE, 1, &JobError::Device("gone".into())), []);
    jobs.hear(DECODE, SEQ, token(0));
    assert_eq!(jobs.hear(PREFILL, SEQ, handed_over(0)), []);
    jobs.hear(DECODE, SEQ, token(1));
    drop(jobs);
    assert_eq!(events.iter().collect::<Vec<_>>(), [Event::Token(100), Event::Token(101)]);
}

#[test]
fn what_was_said_of_an_earlier_round_is_not_taken_for_the_latest() {
    let why = JobError::Device("gone".into());
    let (mut jobs, events) = job();
    assert_eq!(submitted(&jobs.lost(PREFILL, 1, &why)).round, 1);
    assert_eq!(jobs.hear(PREFILL, SEQ, handed_over(0)), []);
    // It is in prefill still, so that engine's end is the sequence's.
    assert_eq!(submitted(&jobs.lost(PREFILL, 1, &why)).round, 2);
    assert!(events.try_recv().is_err());
}

#[test]
fn what_prefill_still_has_is_not_sent_to_it_twice() {
    let why = JobError::Device("gone".into());
    let (mut jobs, events) = job();
    jobs.hear(DECODE, SEQ, prefilled());
    assert_eq!(jobs.lost(DECODE, 1, &why), aborts(), "prefill has not said that it let go of it");
    assert_eq!(events.iter().last(), Some(Event::Failed(why.clone())));

    let (mut jobs, events) = job();
    jobs.hear(DECODE, SEQ, prefilled());
    jobs.hear(PREFILL, SEQ, handed_over(0));
    assert_eq!(submitted(&jobs.lost(DECODE, 1, &why)).round, 1);
    assert!(events.try_iter().all(|event| matches!(event, Event::Prefilled { .. })));
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

/// Prefill dies while nobody has told of the sequence, and decode, which has it, speaks and preempts it before prefill is up again. The
/// round that waited is not sent, so nobody will say that it was handed over: the next one must not wait for that.
#[test]
fn a_round_that_was_not_sent_is_not_waited_for() {
    let (mut jobs, _events) = job();
    let waits = jobs.lost(PREFILL, 1, &JobError::ShuttingDown);
    assert_eq!(waits.len(), 1);
    jobs.hear(DECODE, SEQ, token(0));
    jobs.hear(DECODE, SEQ, SequenceEvent::Preempted(Replay { tokens: vec![100], preemptions: 1 }));
    let sent: Vec<Errand> = waits.into_iter().flat_map(|errand| jobs.kept(errand)).collect();
    let [Errand::Submit(PREFILL, submission)] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!((submission.round, submission.replay.preemptions), (2, 1));
    jobs.hear(PREFILL, SEQ, handed_over(2));
    let (mut jobs, _events) = job();
    let waits = jobs.lost(PREFILL, 1, &JobError::ShuttingDown);
    jobs.hear(DECODE, SEQ, token(0));
    assert!(waits.into_iter().flat_map(|errand| jobs.kept(errand)).next().is_none(), "decode has it");
    let again = SequenceEvent::Preempted(Replay { tokens: vec![100], preemptions: 1 });
    assert_eq!(jobs.hear(DECODE, SEQ, again).len(), 1, "prefill has nothing of it");
}

/// Decode dies with its reports unread, and only then prefill is heard to have handed the sequence over to that life: nobody has it.
#[test]
fn what_was_handed_over_to_a_life_that_is_over_does_not_wait_for_it() {
    // Nothing was published: it begins anew.
    let (mut jobs, _events) = job();
    assert_eq!(jobs.lost(DECODE, 4, &JobError::ShuttingDown), []);
    let errands = jobs.hear(PREFILL, SEQ, handed_over_to(4, 0));
    assert!(matches!(&errands[..], [Errand::Submit(PREFILL, submission)] if submission.round == 1), "{errands:?}");
    // Another of the same life, told late, is of the round before.
    assert_eq!(jobs.hear(PREFILL, SEQ, handed_over_to(4, 0)), []);
    assert!(wants(&jobs));
    // Its client has a token: it ends, with what decode ended with.
    let (mut jobs, events) = job();
    jobs.hear(PREFILL, SEQ, token(0));
    jobs.lost(DECODE, 4, &JobError::NotFinite);
    assert_eq!(jobs.hear(PREFILL, SEQ, handed_over_to(4, 0)), aborts());
    assert_eq!(events.iter().last(), Some(Event::Failed(JobError::NotFinite)));
    // A later life has it.
    let (mut jobs, _events) = job();
    jobs.lost(DECODE, 4, &JobError::ShuttingDown);
    assert_eq!(jobs.hear(PREFILL, SEQ, handed_over_to(5, 0)), []);
    assert!(!wants(&jobs) && jobs.live.contains_key(&SEQ));
}

/// Whatever becomes of the engines, a request has the time that it came with.
#[test]
fn a_deadline_counts_from_the_arrival_over_all_rounds() {
    let why = JobError::Device("gone".into());
    let (mut jobs, events) = job_until(Some(1_000));
    jobs.it_is(400);
    let waits = jobs.lost(PREFILL, 1, &why);
    assert_eq!(submitted(&waits).within_us, Some(600));
    // Prefill is up again only now.
    jobs.it_is(700);
    let sent: Vec<Errand> = waits.into_iter().flat_map(|errand| jobs.kept(errand)).collect();
    assert_eq!((submitted(&sent).within_us, submitted(&sent).round), (Some(300), 1));
    jobs.it_is(999);
    let waits = jobs.lost(PREFILL, 2, &why);
    assert_eq!(submitted(&waits).within_us, Some(1));
    jobs.it_is(1_000);
    let sent: Vec<Errand> = waits.into_iter().flat_map(|errand| jobs.kept(errand)).collect();
    assert_eq!(sent, aborts(), "it is over: nothing is sent");
    assert_eq!(events.iter().collect::<Vec<_>>(), [Event::Failed(JobError::DeadlinePassed)]);
}

/// What has prefill get a sequence again.
type Again = fn(&mut Jobs, &JobError, SequenceEvent) -> Vec<Errand>;

#[test]
fn no_round_begins_after_the_deadline() {
    let (why, (_, preempted)) = (JobError::Device("gone".into()), preempted());
    let late: [Again; 4] = [
        |jobs, why, _| jobs.lost(PREFILL, 1, why),
        |jobs, why, _| {
            jobs.lost(DECODE, 4, why);
            jobs.hear(PREFILL, SEQ, handed_over_to(4, 0))
        },
        |jobs, _, preempted| {
            jobs.hear(PREFILL, SEQ, handed_over(0));
            jobs.hear(DECODE, SEQ, preempted)
        },
        |jobs, _, preempted| {
            jobs.hear(DECODE, SEQ, preempted);
            jobs.hear(PREFILL, SEQ, handed_over(0))
        },
    ];
    for again in late {
        let (mut jobs, events) = job_until(Some(1_000));
        jobs.it_is(999);
        assert_eq!(submitted(&again(&mut jobs, &why, preempted.clone())).within_us, Some(1));
        assert!(events.try_recv().is_err());
        let (mut jobs, events) = job_until(Some(1_000));
        jobs.it_is(1_000);
        assert_eq!(again(&mut jobs, &why, preempted.clone()), aborts());
        assert_eq!(events.iter().collect::<Vec<_>>(), [Event::Failed(JobError::DeadlinePassed)]);
    }
}
