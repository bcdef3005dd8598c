//! A schedule policy comes into an engine process in parts, with real guests; everything that it may be is refused with a reason.

use millrace_core::Stage;
use millrace_policy::{Budget, Table, kind};
use tokio::sync::mpsc;

use super::*;
use crate::control::Component;
use crate::control::schedules::component;
use crate::policies::schedule_alone;
use crate::policies::tests::{clock, config, guest};

struct World {
    desk: Desk,
    slot: Arc<ScheduleSlot>,
    outbox: mpsc::Receiver<Report>,
}

impl World {
    fn new() -> Self {
        let alone = schedule_alone(&config("process = true", "[policy.schedule]\nmax_component_mib = 1\n"), clock()).unwrap();
        let ((reports, outbox), slot) = (Reports::new(), alone.slot.clone());
        let mut world = Self { desk: Desk::start(alone, reports).unwrap(), slot, outbox };
        assert!(matches!(world.hear(), ScheduleReport::Runs(runs) if runs.generation.is_none()), "first what it begins with");
        world
    }

    fn offer(&mut self, component: &Component, ticket: u64, put_as: Option<u64>) {
        component.orders(ticket, put_as).for_each(|order| self.desk.obey(order));
    }

    fn hear(&mut self) -> ScheduleReport {
        match self.outbox.blocking_recv() {
            Some(Report::Schedule(report)) => report,
            other => panic!("{other:?}"),
        }
    }

    fn refused(&mut self) -> (u64, String) {
        match self.hear() {
            ScheduleReport::Refused { ticket, why } => (ticket, why),
            other => panic!("{other:?}"),
        }
    }

    fn runs(&mut self) -> ScheduleRuns {
        match self.hear() {
            ScheduleReport::Runs(runs) => *runs,
            other => panic!("{other:?}"),
        }
    }
}

fn reverse() -> Component {
    component(&std::fs::read(guest("reverse-schedule")).unwrap())
}

#[test]
fn it_is_held_until_it_is_put_in_force() {
    let (mut world, reverse) = (World::new(), reverse());
    world.offer(&reverse, 3, None);
    assert_eq!(world.hear(), ScheduleReport::Loaded { ticket: 3 });
    assert_eq!(world.slot.generation(), 1);
    world.desk.obey(ScheduleOrder::Put { ticket: 3, generation: 7 });
    let runs = world.runs();
    assert_eq!((runs.generation, &runs.info.sha256, runs.info.origin.as_str()), (Some(7), &reverse.sha256, "uploaded"));
    assert_eq!(world.slot.status().info.sha256, reverse.sha256);
    world.desk.obey(ScheduleOrder::Put { ticket: 3, generation: 8 });
    assert_eq!(world.refused().0, 3, "once");
    world.desk.obey(ScheduleOrder::Base { generation: 9 });
    let runs = world.runs();
    assert_eq!((runs.generation, runs.info.origin.as_str()), (Some(9), "built-in"));
    // What a process that begins anew gets.
    world.offer(&reverse, 4, Some(10));
    assert_eq!(world.runs().generation, Some(10));
    world.desk.obey(ScheduleOrder::Is { ticket: 5, sha256: "another".into(), generation: 11 });
    assert_eq!(world.refused().0, 5, "it does not run that");
    world.desk.obey(ScheduleOrder::Is { ticket: 6, sha256: reverse.sha256, generation: 12 });
    assert_eq!(world.runs().generation, Some(12));
}

#[test]
fn what_is_refused_says_why_and_changes_nothing() {
    let mut world = World::new();
    let begun = world.slot.status().info;
    world.offer(&Component { sha256: "0".repeat(64), ..reverse() }, 1, Some(2));
    let (ticket, why) = world.refused();
    assert!(ticket == 1 && why.contains("sha256"), "{why}");
    world.offer(&component(b"no component"), 2, Some(3));
    assert!(world.refused().1.contains("not WebAssembly"));
    world.offer(&component(b""), 3, Some(4));
    assert!(world.refused().1.contains("empty"));
    // Larger than the configuration allows: not even taken in.
    world.offer(&component(&vec![0; (1 << 20) + 1]), 4, Some(5));
    let (ticket, why) = world.refused();
    assert!(ticket == 4 && why.contains("1048577"), "{why}");
    assert!(world.desk.arriving.is_none());
    // More than was announced.
    let orders: Vec<ScheduleOrder> = reverse().orders(5, Some(6)).collect();
    let [ScheduleOrder::Offer(offer), part] = &orders[..] else { panic!("{orders:?}") };
    world.desk.obey(ScheduleOrder::Offer(Offer { bytes: 5, ..offer.clone() }));
    world.desk.obey(part.clone());
    assert!(world.refused().1.contains("5 were announced"));
    // What was forgotten, and what never was.
    world.offer(&reverse(), 6, None);
    assert_eq!(world.hear(), ScheduleReport::Loaded { ticket: 6 });
    world.desk.obey(ScheduleOrder::Forget { ticket: 6 });
    world.desk.obey(ScheduleOrder::Put { ticket: 6, generation: 7 });
    assert_eq!(world.refused().0, 6);
    assert_eq!(world.slot.status().info, begun);
}

/// The built-in was in force and is, so that nothing but the count of recalls tells.
#[test]
fn the_way_back_has_the_last_word_over_a_component_that_is_being_loaded() {
    let (mut world, reverse) = (World::new(), reverse());
    let mut whole = reverse.orders(1, Some(2));
    world.desk.obey(whole.next().unwrap());
    world.desk.obey(ScheduleOrder::Base { generation: 3 });
    assert_eq!(world.runs().generation, Some(3));
    whole.for_each(|part| world.desk.obey(part));
    let (ticket, why) = world.refused();
    assert!(ticket == 1 && why.contains("went back"), "{why}");
    world.offer(&reverse, 4, None);
    assert_eq!(world.hear(), ScheduleReport::Loaded { ticket: 4 });
    world.desk.obey(ScheduleOrder::Base { generation: 5 });
    assert_eq!(world.runs().generation, Some(5));
    world.desk.obey(ScheduleOrder::Put { ticket: 4, generation: 6 });
    assert_eq!(world.refused().0, 4, "nor what was held meanwhile");
    assert_eq!(world.slot.status().info.origin, "built-in");
}

/// Many components wait to be loaded.
#[test]
fn the_way_back_waits_for_no_component() {
    let (mut world, reverse) = (World::new(), reverse());
    let many = TASKS_AHEAD as u64;
    (1..=many).for_each(|ticket| world.offer(&reverse, ticket, None));
    world.desk.obey(ScheduleOrder::Base { generation: 3 });
    let heard: Vec<ScheduleReport> = (0..=many).map(|_| world.hear()).collect();
    let went_back = heard.iter().position(|report| matches!(report, ScheduleReport::Runs(_))).unwrap();
    assert!(went_back < many as usize, "{heard:?}");
}

#[test]
fn a_node_that_asks_for_more_than_can_wait_hears_so() {
    let (mut world, reverse) = (World::new(), reverse());
    let many = 3 * TASKS_AHEAD as u64;
    (1..=many).for_each(|ticket| world.offer(&reverse, ticket, None));
    let heard: Vec<ScheduleReport> = (1..=many).map(|_| world.hear()).collect();
    let refused = |report: &&ScheduleReport| matches!(report, ScheduleReport::Refused { why, .. } if why.contains("already"));
    let refused = heard.iter().filter(refused).count();
    assert!(refused > 0 && refused < many as usize, "{heard:?}");
}

/// A guest that traps at every call is given up here, and what is in force then is no generation of the node's.
#[test]
fn what_is_given_up_here_is_told() {
    let mut world = World::new();
    world.offer(&component(&std::fs::read(guest("trap-schedule")).unwrap()), 1, Some(2));
    let own = (world.runs().generation, world.slot.generation()).1;
    let rows = Table::new(1).with(kind::STATE, vec![3]).with(kind::AGE_US, vec![1]);
    let budget = Budget {
        stage: Stage::Decode,
        step: 1,
        tokens: 8,
        sequences: 8,
        free_pages: 8,
        total_pages: 8,
        page_tokens: 16,
        step_us: 1_000,
        answer_within_us: None,
    };
    let began = Instant::now();
    let mut now_us = 0;
    while world.slot.generation() == own {
        now_us += 60_000_000;
        world.slot.plan_step(now_us, &budget, &rows, &Table::new(0));
        assert!(began.elapsed() < Duration::from_secs(60), "it is never given up");
        thread::sleep(Duration::from_millis(1));
    }
    world.desk.tell();
    let runs = world.runs();
    assert_eq!((runs.generation, runs.info.origin.as_str()), (None, "built-in"));
    assert!(runs.faults > 0);
}
