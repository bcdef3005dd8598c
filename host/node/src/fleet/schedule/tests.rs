//! What a node sends and whom it waits for, with processes that are played: an end of a queue for orders, and answers.

use std::thread;

use millrace_core::Stage;
use tokio::sync::mpsc;

use super::*;
use crate::control::samples::ready;
use crate::control::schedules::{component, runs};
use crate::fleet::member::Life;
use crate::ids::MonotonicClock;

const PATIENCE: Duration = Duration::from_secs(60);
const P: usize = 0;
const D: usize = 1;

fn fleet() -> Fleet {
    let config = millrace_config::parse(crate::deployed::tests::TEXT, "deploy.toml").unwrap();
    Fleet::new(&config, Arc::new(MonotonicClock::new())).unwrap().unwrap()
}

struct Process<'a> {
    fleet: &'a Fleet,
    member: &'a Member,
    ordered: mpsc::Receiver<Order>,
}

impl<'a> Process<'a> {
    /// A life that says that it runs this.
    fn up(fleet: &'a Fleet, row: usize, sha256: &str) -> Self {
        let (orders, ordered) = mpsc::channel(64);
        let member = &fleet.members[row];
        fleet.schedules.hear(member, ScheduleReport::Runs(Box::new(runs(None, sha256))));
        let address = "127.0.0.1:9".parse().unwrap();
        member.up(Life { incarnation: ready().incarnation, address, facts: None }, orders);
        fleet.schedules.up(member);
        Self { fleet, member, ordered }
    }

    fn say(&self, report: ScheduleReport) {
        self.fleet.schedules.hear(self.member, report);
    }

    fn runs(&self, generation: u64) {
        self.say(ScheduleReport::Runs(Box::new(runs(Some(generation), "s"))));
    }

    fn next(&mut self) -> ScheduleOrder {
        let began = Instant::now();
        loop {
            match self.ordered.try_recv() {
                Ok(Order::Schedule(order)) => return order,
                Err(mpsc::error::TryRecvError::Empty) if began.elapsed() < PATIENCE / 6 => {
                    thread::sleep(Duration::from_millis(1))
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn ordered(&mut self) -> Vec<ScheduleOrder> {
        std::iter::from_fn(|| self.ordered.try_recv().ok())
            .map(|order| if let Order::Schedule(order) = order { order } else { panic!("{order:?}") })
            .collect()
    }

    /// Takes a whole component, for what is to be in force behind a word that leaves no way back; its ticket and what it is to be in
    /// force as.
    fn takes(&mut self) -> (u64, Option<u64>) {
        let first = self.next();
        let leaves = first == ScheduleOrder::Base { generation: BETWEEN };
        let first = if leaves { self.next() } else { first };
        let (ScheduleOrder::Offer(offer), ScheduleOrder::Part { .. }) = (first, self.next()) else { panic!() };
        assert_eq!(leaves, offer.put_as.is_some());
        (offer.ticket, offer.put_as)
    }

    fn die(self) {
        self.member.down();
        self.fleet.schedules.gone(self.member.pool);
    }
}

#[test]
fn a_component_is_put_in_force_once_all_hold_it() {
    let (fleet, component) = (fleet(), Arc::new(component(b"c")));
    let (mut p, mut d) = (Process::up(&fleet, P, "b"), Process::up(&fleet, D, "b"));
    thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let ticket = fleet.load(&component, PATIENCE)?;
            fleet.put(2, Some(component.clone()), Some(ticket), PATIENCE)
        });
        let (ticket, put_as) = p.takes();
        assert_eq!((ticket, put_as), d.takes());
        assert_eq!(put_as, None);
        p.say(ScheduleReport::Loaded { ticket });
        thread::sleep(Duration::from_millis(50));
        assert_eq!(p.ordered(), [], "not before all hold it");
        d.say(ScheduleReport::Loaded { ticket });
        let put = ScheduleOrder::Put { ticket, generation: 2 };
        assert_eq!((p.next(), d.next()), (put.clone(), put));
        p.runs(2);
        thread::sleep(Duration::from_millis(50));
        assert!(!swapping.is_finished(), "not before all run it");
        d.runs(2);
        swapping.join().unwrap().unwrap();
    });
    let told: Vec<_> = fleet.runs().into_iter().map(|there| (there.pool, there.runs.and_then(|runs| runs.generation))).collect();
    assert_eq!(told, [("p".to_owned(), Some(2)), ("d".to_owned(), Some(2))]);
    // Two at once: the later one counts. Who runs it already has nothing to do.
    fleet.put(1, None, None, PATIENCE).unwrap();
    fleet.put(2, Some(component.clone()), None, PATIENCE).unwrap();
    assert_eq!(p.ordered(), []);
}

#[test]
fn what_one_refuses_all_forget() {
    let (fleet, component) = (fleet(), Arc::new(component(b"c")));
    let (mut p, mut d) = (Process::up(&fleet, P, "b"), Process::up(&fleet, D, "b"));
    thread::scope(|scope| {
        let loading = scope.spawn(|| fleet.load(&component, PATIENCE));
        let (ticket, _) = p.takes();
        d.takes();
        d.say(ScheduleReport::Refused { ticket, why: "it is blue".into() });
        p.say(ScheduleReport::Loaded { ticket });
        let error = loading.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("pool `d`") && error.contains("it is blue"), "{error}");
        assert_eq!((p.next(), d.next()), (ScheduleOrder::Forget { ticket }, ScheduleOrder::Forget { ticket }));
    });
    assert_eq!(fleet.runs()[D].refused.as_deref(), Some("it is blue"));
}

#[test]
fn whoever_does_not_answer_is_not_waited_for_for_ever() {
    let (fleet, component) = (fleet(), Arc::new(component(b"c")));
    let mut p = Process::up(&fleet, P, "b");
    let error = fleet.load(&component, Duration::from_millis(20)).unwrap_err().to_string();
    assert!(error.contains("pool `p`") && error.contains("does not answer"), "{error}");
    let (ticket, _) = p.takes();
    assert_eq!(p.ordered(), [ScheduleOrder::Forget { ticket }]);
    let error = fleet.put(2, None, None, Duration::from_millis(20)).unwrap_err().to_string();
    assert!(error.contains("is in force, but") && error.contains("pool `p`"), "{error}");
}

#[test]
fn a_process_that_is_back_gets_what_is_in_force() {
    let (fleet, component) = (fleet(), Arc::new(component(b"c")));
    let mut p = Process::up(&fleet, P, "b");
    assert_eq!(p.ordered(), [], "nothing was said of it");
    thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let ticket = fleet.load(&component, PATIENCE)?;
            fleet.put(2, Some(component.clone()), Some(ticket), PATIENCE)
        });
        let (ticket, _) = p.takes();
        // It dies with it: nobody waits, and its next life holds nothing.
        p.say(ScheduleReport::Loaded { ticket });
        p.die();
        swapping.join().unwrap().unwrap();
    });
    assert_eq!(fleet.runs()[P].runs, None);
    let mut p = Process::up(&fleet, P, "b");
    assert_eq!(p.takes().1, Some(2));
    // What it begins with may be it already.
    p.die();
    let mut p = Process::up(&fleet, P, &component.sha256);
    let word = p.next();
    assert!(matches!(&word, ScheduleOrder::Is { sha256, generation: 2, .. } if *sha256 == component.sha256), "{word:?}");
    assert_eq!(p.ordered(), []);
    thread::scope(|scope| {
        let back = scope.spawn(|| fleet.put(3, None, None, PATIENCE));
        assert_eq!(p.next(), ScheduleOrder::Base { generation: 3 });
        p.runs(3);
        back.join().unwrap().unwrap();
    });
    p.die();
    assert_eq!(Process::up(&fleet, P, &component.sha256).ordered(), [ScheduleOrder::Base { generation: 3 }]);
}

/// Between the two halves of a swap another life has come up.
#[test]
fn a_life_that_does_not_hold_it_gets_the_whole() {
    let (fleet, component) = (fleet(), Arc::new(component(b"c")));
    let mut p = Process::up(&fleet, P, "b");
    let ticket = thread::scope(|scope| {
        let loading = scope.spawn(|| fleet.load(&component, PATIENCE));
        let (ticket, _) = p.takes();
        p.say(ScheduleReport::Loaded { ticket });
        loading.join().unwrap().unwrap()
    });
    p.die();
    let mut p = Process::up(&fleet, P, "b");
    assert_eq!(p.member.stage, Stage::Prefill);
    thread::scope(|scope| {
        let putting = scope.spawn(|| fleet.put(2, Some(component.clone()), Some(ticket), PATIENCE));
        assert_eq!(p.takes().1, Some(2));
        p.runs(2);
        putting.join().unwrap().unwrap();
    });
}

/// What a process said last is no more so once it was told otherwise.
#[test]
fn a_roll_back_behind_a_swap_that_is_on_its_way_sends_the_whole_and_leaves_no_way_back() {
    let (fleet, first, second) = (fleet(), Arc::new(component(b"first")), Arc::new(component(b"second")));
    let mut p = Process::up(&fleet, P, &first.sha256);
    let now = Duration::from_millis(20);
    assert!(fleet.put(2, Some(second.clone()), None, now).is_err(), "it does not answer");
    assert_eq!(p.takes().1, Some(2));
    assert!(fleet.put(3, Some(first.clone()), None, now).is_err());
    assert_eq!(p.takes().1, Some(3));
    // It runs what it was told to: a word is enough.
    p.say(ScheduleReport::Runs(Box::new(runs(Some(3), &first.sha256))));
    assert!(fleet.put(4, Some(first.clone()), None, now).is_err());
    let word = p.next();
    assert!(matches!(&word, ScheduleOrder::Is { sha256, generation: 4, .. } if *sha256 == first.sha256), "{word:?}");
    assert_eq!(p.ordered(), []);
    // It has given that up by itself.
    p.say(ScheduleReport::Runs(Box::new(runs(None, "built-in"))));
    assert!(fleet.put(5, Some(first.clone()), None, now).is_err());
    assert_eq!(p.takes().1, Some(5));
}

/// A component whose compiling kills a process is in force nowhere, or every life to come would die of it.
#[test]
fn a_process_that_ends_while_it_loads_refuses() {
    let (fleet, component) = (fleet(), Arc::new(component(b"c")));
    let mut p = Process::up(&fleet, P, "b");
    thread::scope(|scope| {
        let loading = scope.spawn(|| fleet.load(&component, PATIENCE));
        p.takes();
        p.die();
        let error = loading.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("pool `p`") && error.contains("ended while it loaded"), "{error}");
    });
    assert_eq!(Process::up(&fleet, P, "b").ordered(), [], "and its next life does not get it");
}

#[test]
fn who_could_not_take_it_gets_it_when_it_is_put_once_more() {
    let fleet = fleet();
    let (mut p, mut d) = (Process::up(&fleet, P, "b"), Process::up(&fleet, D, "b"));
    let now = Duration::from_millis(20);
    assert!(fleet.put(2, None, None, now).is_err());
    let base = ScheduleOrder::Base { generation: 2 };
    assert_eq!((p.next(), d.next()), (base.clone(), base.clone()));
    p.runs(2);
    thread::scope(|scope| {
        let again = scope.spawn(|| fleet.put(2, None, None, PATIENCE));
        assert_eq!(d.next(), base);
        d.runs(2);
        again.join().unwrap().unwrap();
    });
    assert_eq!(p.ordered(), [], "it runs it");
}

/// All others run it, so the reason passes; a component is long, so not all the time.
#[test]
fn what_one_process_refuses_comes_again_ever_later() {
    let (fleet, component) = (fleet(), Arc::new(component(b"c")));
    let mut p = Process::up(&fleet, P, "b");
    assert!(fleet.put(2, Some(component.clone()), None, Duration::ZERO).is_err());
    let mut ticket = p.takes().0;
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        fleet.again();
        assert!(p.ordered().is_empty() && !fleet.is_due_again(), "it has not answered");
        p.say(ScheduleReport::Refused { ticket, why: "busy".into() });
        let wait = fleet.schedules.state().said[&p.member.pool].again.unwrap().wait;
        assert_eq!(wait, Duration::from_secs(seconds));
        fleet.again();
        assert!(p.ordered().is_empty() && !fleet.is_due_again(), "not at once");
        fleet.schedules.state().said.get_mut(&p.member.pool).unwrap().again.as_mut().unwrap().at = Instant::now();
        assert!(fleet.is_due_again());
        fleet.again();
        let came = p.takes();
        assert!(came.0 > ticket && came.1 == Some(2), "{came:?}");
        ticket = came.0;
    }
    // Of one that was brought earlier nothing follows.
    p.say(ScheduleReport::Refused { ticket: ticket - 1, why: "busy".into() });
    assert!(!fleet.is_due_again());
    p.runs(2);
    assert!(fleet.schedules.state().said[&p.member.pool].again.is_none() && fleet.runs()[P].refused.is_none());
}

/// What was said of an earlier order is no answer to a later one.
#[test]
fn an_old_refusal_fails_nobody_else() {
    let (fleet, first) = (fleet(), Arc::new(component(b"first")));
    let mut p = Process::up(&fleet, P, &first.sha256);
    assert!(fleet.put(2, Some(first.clone()), None, Duration::ZERO).is_err());
    let ScheduleOrder::Is { ticket, .. } = p.next() else { panic!("a word is enough") };
    thread::scope(|scope| {
        let back = scope.spawn(|| fleet.put(3, None, None, PATIENCE));
        assert_eq!(p.next(), ScheduleOrder::Base { generation: 3 });
        p.say(ScheduleReport::Refused { ticket, why: "it was given up".into() });
        p.runs(3);
        back.join().unwrap().unwrap();
    });
}

#[test]
fn two_who_wait_each_hear_their_own_answers() {
    let (fleet, component) = (fleet(), Arc::new(component(b"c")));
    let mut p = Process::up(&fleet, P, "b");
    thread::scope(|scope| {
        let loading = scope.spawn(|| fleet.load(&component, PATIENCE));
        let (ticket, _) = p.takes();
        let back = scope.spawn(|| fleet.put(2, None, None, PATIENCE));
        assert_eq!(p.next(), ScheduleOrder::Base { generation: 2 });
        p.runs(2);
        back.join().unwrap().unwrap();
        p.say(ScheduleReport::Loaded { ticket });
        assert_eq!(loading.join().unwrap().unwrap(), ticket);
    });
}
