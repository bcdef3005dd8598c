//! A process's life as its supervisor sees it, with a process of the test's own at the other end of the connection.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};

use millrace_core::{Clock, LaneId, PoolId, RequestId, SamplingParams, SeqId, TenantId};
use millrace_engine::{Counters, EngineSnapshot, Event, EventSink, Job};
use millrace_transfer::tcp::Endpoint;
use tokio::net::TcpListener;

use super::*;
use crate::control::samples::{lane, ready};
use crate::deployed;
use crate::fleet::jobs::Errand;
use crate::ids::MonotonicClock;

const PATIENCE: Duration = Duration::from_secs(60);
/// Rows of the configuration's pools.
const PREFILL: usize = 0;

fn config() -> millrace_config::Config {
    millrace_config::parse(deployed::tests::TEXT, "deploy.toml").unwrap()
}

fn fleet() -> Fleet {
    Fleet::new(&config(), Arc::new(MonotonicClock::new())).unwrap().unwrap()
}

/// What a process of the deployment says of itself.
fn right() -> Ready {
    Ready { deployed: deployed::digest(&config(), PREFILL), ..ready() }
}

fn facts(prompt_tokens: u64) -> EngineSnapshot {
    let counters = Counters { prompt_tokens, ..Counters::default() };
    EngineSnapshot { lanes: vec![lane("l")], counters, ..EngineSnapshot::default() }
}

fn life() -> Life {
    Life { incarnation: ready().incarnation, address: "127.0.0.1:9".parse().unwrap(), facts: Some(facts(3)) }
}

/// Both ends of a connection for orders and reports.
async fn connected(fleet: &Fleet) -> (Channel, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, endpoint) = (listener.local_addr().unwrap(), Endpoint::new(fleet.secret.clone()).unwrap());
    let accepting = async { endpoint.accept(listener.accept().await.unwrap().0).await.unwrap().0 };
    let (own, other) = tokio::join!(fleet.endpoint.connect(address, CONTROL), accepting);
    (own.unwrap(), other)
}

struct Sink(Sender<Event>);

impl EventSink for Sink {
    fn emit(&mut self, event: Event) {
        let _ = self.0.send(event);
    }
}

fn submit(fleet: &Fleet) -> Receiver<Event> {
    submit_until(fleet, None)
}

fn submit_until(fleet: &Fleet, deadline_us: Option<u64>) -> Receiver<Event> {
    let sampling = SamplingParams::greedy(9, Vec::new());
    let (sender, events) = channel();
    let job = Job {
        seq: SeqId(5),
        request: RequestId(5),
        lane: LaneId(0),
        tenant: TenantId(0),
        priority: 0,
        deadline_us,
        prompt: vec![1].into(),
        scope: None,
        sampling,
        events: Box::new(Sink(sender)),
    };
    fleet.submit(job).unwrap();
    events
}

#[tokio::test]
async fn a_process_that_misses_an_order_is_ended() {
    let fleet = fleet();
    let member = &fleet.members[PREFILL];
    let (own, other) = connected(&fleet).await;
    let (mut reader, mut writer) = other.split();
    let process = async {
        writer.write(&Report::Ready(Box::new(right())).encode()).await.unwrap();
        writer.flush().await.unwrap();
        while !member.takes_orders() {
            sleep(Duration::from_millis(1)).await;
        }
        // All at once: nothing else runs meanwhile.
        let abort = |seq| Errand::Abort(PoolId(0), SeqId(seq));
        fleet.ask(|_| (0..=ORDERS_AHEAD as u64).map(abort).collect());
        assert!(!member.takes_orders(), "one more than there is room for");
        // It reads them all, and says that it is there for as long as it can.
        let reading = async { while reader.next().await.is_ok() {} };
        let speaking = async {
            while writer.write(&[]).await.is_ok() && writer.flush().await.is_ok() {
                sleep(Duration::from_secs(1)).await
            }
        };
        tokio::join!(reading, speaking);
    };
    let carrying = carry(&fleet, member, own, "127.0.0.1:9".parse().unwrap());
    let ended = timeout(PATIENCE, async {
        tokio::select! {
            ended = carrying => Some(ended),
            () = process => None,
        }
    });
    let ended = ended.await.expect("its life goes on without the order").expect("the connection ends here first");
    assert!(ended.why.contains("does not take its orders"), "{}", ended.why);
    assert_eq!(ended.incarnation, Some(right().incarnation));
}

#[test]
fn an_order_that_is_not_taken_is_the_last() {
    let fleet = fleet();
    let member = &fleet.members[PREFILL];
    let (orders, mut ordered) = mpsc::channel(1);
    member.up(life(), orders);
    tell(&fleet, PoolId(0), Order::Readmit);
    assert!(member.takes_orders());
    tell(&fleet, PoolId(0), Order::Readmit);
    assert!(!member.takes_orders());
    assert_eq!(ordered.blocking_recv(), Some(Order::Readmit));
    assert_eq!(ordered.blocking_recv(), None, "nobody else can send");
}

#[test]
fn lives_that_were_never_ready_cost_no_sequence() {
    let fleet = fleet();
    let member = &fleet.members[PREFILL];
    let (orders, _ordered) = mpsc::channel(9);
    member.up(life(), orders);
    let events = submit(&fleet);
    gone(&fleet, member, &Ended { incarnation: Some(ready().incarnation), why: "killed".into() });
    for _ in 0..9 {
        gone(&fleet, member, &Ended::unready("it does not load".into()));
    }
    assert!(events.try_recv().is_err(), "it waits for a life that is ready");
    let (orders, _ordered) = mpsc::channel(9);
    let later = member.up(life(), orders);
    assert!(matches!(&later[..], [Errand::Submit(PoolId(0), submission)] if submission.seq == SeqId(5)), "{later:?}");
}

/// A clock that is set by hand.
struct Set(AtomicU64);

impl Clock for Set {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn what_waits_for_a_process_is_sent_with_what_is_left_of_its_deadline() {
    let clock = Arc::new(Set(AtomicU64::new(1_000)));
    let fleet = Fleet::new(&config(), clock.clone()).unwrap().unwrap();
    let member = &fleet.members[PREFILL];
    let at = |now_us| clock.0.store(now_us, Ordering::Relaxed);
    let is_up = || {
        let (orders, ordered) = mpsc::channel(9);
        up(&fleet, member, right(), (life(), orders));
        ordered
    };
    let end = || gone(&fleet, member, &Ended { incarnation: Some(ready().incarnation), why: "killed".into() });
    let within = |order| if let Order::Submit(submission) = order { submission.within_us } else { None };
    let mut ordered = is_up();
    let events = submit_until(&fleet, Some(1_500));
    assert_eq!(within(ordered.try_recv().unwrap()), Some(500));
    at(1_200);
    end();
    at(1_300);
    assert_eq!(within(is_up().try_recv().unwrap()), Some(200));
    end();
    at(1_500);
    let mut ordered = is_up();
    assert!(!std::iter::from_fn(|| ordered.try_recv().ok()).any(|order| matches!(order, Order::Submit(_))));
    assert_eq!(events.iter().collect::<Vec<_>>(), [Event::Failed(JobError::DeadlinePassed)]);
    // One that comes too late is not sent at all.
    let events = submit_until(&fleet, Some(1_500));
    assert_eq!(events.iter().collect::<Vec<_>>(), [Event::Failed(JobError::DeadlinePassed)]);
    assert!(ordered.try_recv().is_err());
}

#[test]
fn a_sequence_waits_once_for_a_process_that_is_down() {
    let fleet = fleet();
    let (orders, mut ordered) = mpsc::channel(9);
    fleet.members[PREFILL].up(life(), orders);
    let _events = submit(&fleet);
    let Some(Order::Submit(submission)) = ordered.blocking_recv() else { panic!("no submission") };
    fleet.members[PREFILL].down();
    let later = |round| crate::control::Submission { round, ..submission.as_ref().clone() };
    fleet.ask(|_| [1, 2].map(|round| Errand::Submit(PoolId(0), Box::new(later(round)))).into());
    let (orders, _ordered) = mpsc::channel(9);
    assert_eq!(fleet.members[PREFILL].up(life(), orders), [Errand::Submit(PoolId(0), Box::new(later(2)))]);
}

#[test]
fn a_dead_process_is_shown_as_it_was_last_and_as_down() {
    let fleet = fleet();
    let member = &fleet.members[PREFILL];
    let (orders, _ordered) = mpsc::channel(9);
    member.up(life(), orders);
    member.say(facts(7));
    gone(&fleet, member, &Ended { incarnation: Some(ready().incarnation), why: "killed".into() });
    let (facts, up) = fleet.facts(PoolId(0)).unwrap();
    assert_eq!((up, facts.lanes[0].running, facts.counters.prompt_tokens), (false, lane("l").running, 7));
}

/// Says two things and reads nothing; the reason for which the life ends, if it does within that time.
async fn heard(fleet: &Fleet, reports: [Report; 2], patience: Duration) -> Option<String> {
    let (own, other) = connected(fleet).await;
    let (_reader, mut writer) = other.split();
    for report in reports {
        writer.write(&report.encode()).await.unwrap();
    }
    writer.flush().await.unwrap();
    let carrying = carry(fleet, &fleet.members[PREFILL], own, "127.0.0.1:9".parse().unwrap());
    timeout(patience, carrying).await.ok().map(|ended| ended.why)
}

#[tokio::test]
async fn a_process_of_another_configuration_is_refused() {
    let fleet = fleet();
    let member = &fleet.members[PREFILL];
    let said = |deployed: String| {
        let nothing = EngineSnapshot { lanes: vec![], ..facts(0) };
        [Report::Facts(Box::new(nothing)), Report::Ready(Box::new(Ready { deployed, ..right() }))]
    };
    assert_eq!(heard(&fleet, said(right().deployed), Duration::from_secs(2)).await, None);
    assert!(member.takes_orders());
    member.tell_first(Ok(right()));
    member.down();
    member.say(facts(5));
    let why = heard(&fleet, said("another".into()), PATIENCE).await.expect("it is refused");
    assert!(why.contains("the deployment's file deploy.toml changed") && why.contains("pool `p`"), "{why}");
    assert!(!member.takes_orders() && member.incarnation().is_none());
    assert_eq!(fleet.facts(PoolId(0)).unwrap().0.lanes.len(), 1, "what it said of itself does not count");
}

#[test]
fn a_process_of_another_checkpoint_is_refused() {
    let fleet = fleet();
    let member = &fleet.members[PREFILL];
    assert_eq!(member.agrees(&right(), "deploy.toml"), Ok(()));
    member.tell_first(Ok(right()));
    assert_eq!(member.agrees(&right(), "deploy.toml"), Ok(()));
    let why = member.agrees(&Ready { weights_digest: "other".into(), ..right() }, "deploy.toml").unwrap_err();
    assert!(why.contains("pool `p`") && why.contains("digest of its weights is `other`"), "{why}");
}
