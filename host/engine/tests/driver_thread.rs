//! What is known of an engine whose driver's thread does not go on: that it ended, or since when it has not turned.

mod common;

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use common::{PATIENCE, Rig, Setup, expected};
use millrace_core::{LaneId, RequestId, SamplingParams, SeqId, TenantId};
use millrace_engine::{Event, EventSink, Job};

/// Fails the thread that calls it, as a bug would.
struct Failing;

impl EventSink for Failing {
    fn emit(&mut self, _: Event) {
        panic!("on purpose: the sink of a test fails");
    }
}

/// Keeps the thread that calls it until it is let go.
struct Keeping {
    called: SyncSender<()>,
    until: Receiver<()>,
}

impl EventSink for Keeping {
    fn emit(&mut self, _: Event) {
        let _ = self.called.try_send(());
        let _ = self.until.recv();
    }
}

fn job(events: Box<dyn EventSink>) -> Job {
    let sampling = SamplingParams::greedy(4, Vec::new());
    Job {
        seq: SeqId(1),
        request: RequestId(1),
        lane: LaneId(0),
        tenant: TenantId(0),
        priority: 0,
        deadline_us: None,
        prompt: expected().0.as_slice().into(),
        scope: None,
        sampling,
        events,
    }
}

fn wait_for(what: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < deadline, "it does not come true");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_driver_that_panicked_is_known_to_have_ended() {
    let rig = Rig::start(Setup::default());
    assert!(!rig.engine.has_ended());
    rig.engine.submit(job(Box::new(Failing))).unwrap();
    wait_for(|| rig.engine.has_ended());
}

#[test]
fn a_driver_that_was_stopped_is_known_to_have_ended() {
    let rig = Rig::start(Setup::default());
    rig.engine.stop();
    wait_for(|| rig.engine.has_ended());
}

#[test]
fn a_driver_that_hangs_falls_silent_and_is_not_taken_for_one_that_ended() {
    let rig = Rig::start(Setup::default());
    let silent_us = || rig.engine.now_us().saturating_sub(rig.engine.snapshot().taken_us);
    let ((called, hung), (let_go, until)) = (sync_channel(1), sync_channel(1));
    rig.engine.submit(job(Box::new(Keeping { called, until }))).unwrap();
    hung.recv_timeout(PATIENCE).unwrap();
    wait_for(|| silent_us() > 300_000);
    assert!(!rig.engine.has_ended());
    drop(let_go);
    wait_for(|| silent_us() < 300_000);
}
