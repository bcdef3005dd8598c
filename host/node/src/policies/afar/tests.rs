//! What is put in force in the node is so in engine processes, which are played here: they note what they are told.

use std::sync::atomic::{AtomicBool, Ordering};

use millrace_policy_wasm::PolicyKind;

use super::super::Policies;
use super::super::tests::{clock, config, guest, sha256};
use super::*;
use crate::control::schedules::runs;

const KIND: PolicyKind = PolicyKind::Schedule;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Heard {
    Load(String),
    Forget(u64),
    /// Generation; digest, none for what roll backs end at; ticket.
    Put(u64, Option<String>, Option<u64>),
}

#[derive(Default)]
struct Played {
    heard: Mutex<Vec<Heard>>,
    refuses: AtomicBool,
    runs: Mutex<Vec<ScheduleRuns>>,
}

impl Played {
    fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }

    fn run(&self, all: &[ScheduleRuns]) {
        *self.runs.lock().unwrap() = all.to_vec();
    }
}

impl Elsewhere for Played {
    fn load(&self, component: &Arc<Component>, _: Duration) -> Result<u64, SwapError> {
        self.heard.lock().unwrap().push(Heard::Load(component.sha256.clone()));
        let refused = || SwapError::RefusedIn { pool: "p".into(), why: "no".into() };
        (!self.refuses.load(Ordering::Relaxed)).then_some(9).ok_or_else(refused)
    }

    fn put(&self, generation: u64, component: Option<Arc<Component>>, ticket: Option<u64>, _: Duration) -> Result<(), SwapError> {
        let digest = component.map(|component| component.sha256.clone());
        self.heard.lock().unwrap().push(Heard::Put(generation, digest, ticket));
        Ok(())
    }

    fn forget(&self, ticket: u64) {
        self.heard.lock().unwrap().push(Heard::Forget(ticket));
    }

    fn is_due_again(&self) -> bool {
        false
    }

    fn again(&self) {}

    fn runs(&self) -> Vec<ScheduleIn> {
        let there = |runs| ScheduleIn { pool: "p".into(), runs: Some(runs), refused: None };
        self.runs.lock().unwrap().iter().cloned().map(there).collect()
    }
}

fn source(name: &str) -> Vec<u8> {
    std::fs::read(guest(name)).expect("a guest")
}

fn reaching(policies: &str) -> (Policies, Arc<Played>) {
    let policies = Policies::load(&config("process = true", policies), clock()).expect("policies");
    let played = policies.reaching(Some(Arc::new(Played::default()))).expect("what was given");
    (policies, played)
}

#[test]
fn what_is_put_in_force_is_loaded_everywhere_before() {
    let (policies, played) = reaching("");
    assert_eq!(played.heard(), [Heard::Put(1, None, None)], "what it begins with");
    let reverse = source("reverse-schedule");
    policies.replace(KIND, &reverse, None).expect("put in force");
    assert_eq!(played.heard(), [Heard::Load(sha256(&reverse)), Heard::Put(2, Some(sha256(&reverse)), Some(9))]);
    // Whatever is decided here is nobody else's.
    policies.return_to_builtin(PolicyKind::Route).expect("the built-in");
    assert_eq!(played.heard(), []);
}

#[test]
fn what_one_process_refuses_is_in_force_nowhere() {
    let (policies, played) = reaching("");
    played.refuses.store(true, Ordering::Relaxed);
    let refused = policies.replace(KIND, &source("reverse-schedule"), None);
    assert!(matches!(&refused, Err(SwapError::RefusedIn { pool, .. }) if pool == "p"), "{refused:?}");
    assert_eq!(policies.status(KIND).generation, 1);
    assert!(matches!(&played.heard()[1..], [Heard::Load(_)]));
    // What is refused here is not even sent.
    assert!(matches!(policies.replace(KIND, b"no component", None), Err(SwapError::Refused(_))));
    assert_eq!(played.heard(), []);
}

#[test]
fn a_roll_back_ends_at_what_has_proven_itself_in_the_processes() {
    let (reverse, counter) = (source("reverse-schedule"), source("counter-schedule"));
    for (well, there) in [(true, true), (false, false)] {
        let (policies, played) = reaching("");
        policies.replace(KIND, &reverse, None).expect("put in force");
        // One process has asked it often, another not yet, or fails.
        let idle = ScheduleRuns { proven: false, failing: !well, ..runs(Some(2), "r") };
        played.run(&[runs(Some(2), "r"), idle]);
        policies.replace(KIND, &counter, None).expect("put in force");
        played.run(&[]);
        played.heard();
        policies.roll_back(KIND).expect("a way back");
        assert_eq!(played.heard(), [Heard::Put(4, there.then(|| sha256(&reverse)), None)], "well: {well}");
    }
}

/// A process that gave it up by itself has not found it good.
#[test]
fn what_a_process_gave_up_is_not_returned_to() {
    let (policies, played) = reaching("");
    policies.replace(KIND, &source("reverse-schedule"), None).expect("put in force");
    played.run(&[runs(Some(2), "r"), runs(None, "b")]);
    policies.replace(KIND, &source("counter-schedule"), None).expect("put in force");
    assert_eq!(policies.status(KIND).way_back.len(), 1, "the built-in alone");
}

#[test]
fn the_component_of_the_configuration_and_the_built_in_are_put_in_force_too() {
    let path = guest("reverse-schedule");
    let (policies, played) = reaching(&format!("[policy.schedule]\ncomponent = \"{}\"\n", path.display()));
    let digest = sha256(&source("reverse-schedule"));
    assert_eq!(played.heard(), [Heard::Put(1, Some(digest.clone()), None)]);
    policies.return_to_builtin(KIND).expect("the built-in");
    assert_eq!(played.heard(), [Heard::Put(2, None, None)]);
    assert!(matches!(policies.roll_back(KIND), Err(SwapError::NothingToRollBackTo)));
    assert_eq!(played.heard(), []);
}

#[test]
fn only_sources_that_may_be_in_force_again_are_kept() {
    let (policies, played) = reaching("");
    let both = [source("reverse-schedule"), source("counter-schedule")];
    for turn in 0..8 {
        policies.replace(KIND, &both[turn % 2], None).expect("put in force");
        played.run(&[runs(Some(policies.status(KIND).generation), "x")]);
    }
    assert_eq!(policies.status(KIND).way_back.len(), 5);
    assert_eq!(policies.afar.sources().len(), 2);
}

/// The slot of a node that has lanes of its own gives a policy up by itself.
#[test]
fn a_roll_back_that_nobody_asked_for_is_followed_soon() {
    let (policies, played) = reaching("");
    let reverse = source("reverse-schedule");
    policies.replace(KIND, &reverse, None).expect("put in force");
    drop(played.heard());
    policies.catch_up();
    assert_eq!(played.heard(), [], "they know");
    policies.slots.schedule.return_to_builtin();
    policies.catch_up();
    policies.catch_up();
    assert_eq!(played.heard(), [Heard::Put(3, None, None)], "once");
}

/// Loaded everywhere, and then somebody went back before it was in force.
#[test]
fn what_was_called_back_is_held_nowhere() {
    let (policies, played) = reaching("");
    let recalls = policies.recalls(KIND);
    let loaded = policies.engine.load(&source("reverse-schedule"), KIND, &policies.uploaded(KIND, None)).expect("loads");
    policies.return_to_builtin(KIND).expect("the built-in");
    drop(played.heard());
    let put = policies.put(&loaded, policies.afar.keep(&source("reverse-schedule")), recalls);
    assert!(matches!(put, Err(SwapError::Recalled)));
    assert_eq!(played.heard(), [Heard::Load(loaded.info().sha256.clone()), Heard::Forget(9)]);
}
