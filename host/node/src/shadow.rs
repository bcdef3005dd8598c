//! A policy on trial beside the one in force: asked the same on a thread of its own, its answers compared and never used.
//!
//! ```text
//!   slot --facts, answer--> queue (64, never waited for) --> thread: candidate decides, rules are checked, both are compared
//!                             | full: counted, nothing copied        | failed again and again: the trial ends
//! ```
//! It does not know who begins a trial or gives it up.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_policy::{Answer, PolicyInfo, PrecisionWitness, RouteWitness, ScheduleWitness};
use millrace_policy_wasm::{LoadError, LoadedPolicy, PolicyKind};

use crate::policies::Slots;

mod trial;

use trial::Trial;

/// Decisions that wait to be compared.
const QUEUE: usize = 64;
/// Disagreements that are kept, the latest.
const MAX_EXAMPLES: usize = 16;
/// Of the text of one answer.
const MAX_TEXT_BYTES: usize = 1_024;
/// A trial ends with so many faults, if they are a tenth of what the candidate was asked or more: each costs a fresh instance.
const MAX_FAULTS: u64 = 32;

/// How a trial goes. `compared = agreed + disagreed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowReport {
    pub candidate: PolicyInfo,
    pub compared: u64,
    pub agreed: u64,
    pub disagreed: u64,
    /// Answers of the candidate that a host could not have used.
    pub faults: u64,
    pub last_fault: Option<String>,
    /// Why nothing is compared any more; none: the trial goes on.
    pub ended: Option<String>,
    /// Not compared: the queue was full, or the policy in force had no answer of its own.
    pub skipped: u64,
    /// The latest, the last one last.
    pub examples: Vec<Disagreement>,
}

/// One decision on which the two were of different minds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// Seconds since 1970.
    pub at_s: u64,
    pub in_force: String,
    pub candidate: String,
}

/// A trial that is under way; ends when it is dropped.
pub(crate) struct Shadow {
    loaded: LoadedPolicy,
    desk: Arc<Desk>,
    slots: Slots,
    witness: Witness,
}

type Job = Box<dyn FnOnce(&mut Trial) + Send>;

/// Who puts the slot's decisions into the queue.
enum Witness {
    Precision(Arc<PrecisionWitness>),
    Route(Arc<RouteWitness>),
    Schedule(Arc<ScheduleWitness>),
}

/// Between the slot, the trial's thread, and who asks how it goes. What a decision waits for is counters alone.
struct Desk {
    waiting: AtomicUsize,
    skipped: AtomicU64,
    has_ended: AtomicBool,
    /// All but what the counters say.
    report: Mutex<ShadowReport>,
}

impl Shadow {
    /// # Errors
    /// No instance or no thread.
    pub(crate) fn start(loaded: LoadedPolicy, slots: Slots) -> Result<Self, LoadError> {
        let desk = Arc::new(Desk::new(loaded.info().clone()));
        let (sender, receiver) = sync_channel(QUEUE);
        let trial = Trial::new(&loaded, desk.clone())?;
        thread::Builder::new()
            .name("policy-shadow".into())
            .spawn(move || run(&receiver, trial))
            .map_err(|error| LoadError::Compile { detail: format!("cannot start a thread: {error}") })?;
        let witness = Witness::new(loaded.kind(), &slots, sender, desk.clone());
        witness.look(&slots);
        Ok(Self { loaded, desk, slots, witness })
    }

    pub(crate) fn report(&self) -> ShadowReport {
        self.desk.report()
    }

    pub(crate) fn loaded(&self) -> &LoadedPolicy {
        &self.loaded
    }
}

/// The thread ends with the last witness, which holds the queue.
impl Drop for Shadow {
    fn drop(&mut self) {
        self.witness.look_away(&self.slots);
    }
}

fn run(jobs: &Receiver<Job>, mut trial: Trial) {
    for job in jobs {
        trial.desk.taken();
        job(&mut trial);
        if trial.desk.has_ended() {
            return;
        }
    }
}

impl Witness {
    fn new(kind: PolicyKind, slots: &Slots, sender: SyncSender<Job>, desk: Arc<Desk>) -> Self {
        let put = move |is_own: bool, job: &dyn Fn() -> Job| {
            if desk.takes(is_own) && sender.try_send(job()).is_err() {
                desk.taken();
            }
        };
        match kind {
            PolicyKind::Precision => Self::Precision(Arc::new(move |asks, precisions, tenants, answer| {
                put(is_own(answer), &|| {
                    let (asks, precisions, tenants) = (asks.to_vec(), precisions.clone(), tenants.clone());
                    let in_force = answer.value.clone();
                    Box::new(move |trial| trial.choose(&asks, &precisions, &tenants, &in_force))
                });
            })),
            PolicyKind::Route => {
                let limits = slots.route.limits();
                Self::Route(Arc::new(move |request, lanes, tenants, answer| {
                    put(is_own(answer), &|| {
                        let (request, lanes, tenants) = (request.clone(), lanes.clone(), tenants.clone());
                        let in_force = answer.value.clone();
                        Box::new(move |trial| trial.decide((&request, &lanes, &tenants), &limits, &in_force))
                    });
                }))
            }
            PolicyKind::Schedule => Self::Schedule(Arc::new(move |budget, rows, tenants, answer| {
                put(is_own(answer), &|| {
                    let (mut budget, rows, tenants) = (*budget, rows.clone(), tenants.clone());
                    // Nobody waits for this answer.
                    budget.answer_within_us = None;
                    let in_force = answer.value.clone();
                    Box::new(move |trial| trial.plan(&budget, &rows, &tenants, &in_force))
                });
            })),
        }
    }

    fn look(&self, slots: &Slots) {
        match self {
            Self::Precision(witness) => slots.precision.witnessed_by(witness.clone()),
            Self::Route(witness) => slots.route.witnessed_by(witness.clone()),
            Self::Schedule(witness) => slots.schedule.witnessed_by(witness.clone()),
        }
    }

    /// The witness of a later trial stays.
    fn look_away(&self, slots: &Slots) {
        match self {
            Self::Precision(witness) => slots.precision.forget_witness(witness),
            Self::Route(witness) => slots.route.forget_witness(witness),
            Self::Schedule(witness) => slots.schedule.forget_witness(witness),
        }
    }
}

fn is_own<T>(answer: &Answer<T>) -> bool {
    answer.fault.is_none()
}

impl Desk {
    fn new(candidate: PolicyInfo) -> Self {
        let report = ShadowReport {
            candidate,
            compared: 0,
            agreed: 0,
            disagreed: 0,
            faults: 0,
            last_fault: None,
            ended: None,
            skipped: 0,
            examples: Vec::new(),
        };
        let (waiting, skipped, has_ended) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
        Self { waiting, skipped, has_ended, report: Mutex::new(report) }
    }

    /// Whether there is a place for a decision, which is held until it is taken. Nothing is copied where there is none.
    fn takes(&self, is_own: bool) -> bool {
        if self.has_ended() {
            return false;
        }
        let one_more = |waiting| (waiting < QUEUE).then_some(waiting + 1);
        let has_place = is_own && self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        if !has_place {
            self.skipped.fetch_add(1, Ordering::Relaxed);
        }
        has_place
    }

    fn taken(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    fn report(&self) -> ShadowReport {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ShadowReport { skipped: self.skipped.load(Ordering::Relaxed), ..report }
    }

    fn compared(&self, agreed: bool, texts: impl FnOnce() -> (String, String)) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.compared += 1;
        if agreed {
            report.agreed += 1;
            return;
        }
        report.disagreed += 1;
        if report.examples.len() == MAX_EXAMPLES {
            report.examples.remove(0);
        }
        let at_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (in_force, candidate) = texts();
        report.examples.push(Disagreement { at_s, in_force: cut(in_force), candidate: cut(candidate) });
    }

    /// Why the trial ends with this fault, if it does.
    fn failed(&self, fault: String) -> Option<String> {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.faults += 1;
        let asked = report.compared + report.faults;
        if report.faults >= MAX_FAULTS && report.faults.saturating_mul(10) >= asked {
            report.ended =
                Some(format!("it failed {} of {asked} times, the last time so: {}", report.faults, cut(fault.clone())));
            self.has_ended.store(true, Ordering::Relaxed);
        }
        report.last_fault = Some(cut(fault));
        report.ended.clone()
    }
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_is_counted_before_anything_is_copied() {
        let desk = Desk::new(PolicyInfo::native("c"));
        assert!((0..QUEUE).all(|_| desk.takes(true)));
        assert!(!desk.takes(true), "full");
        desk.taken();
        assert!(!desk.takes(false), "the fallback's answer");
        assert!(desk.takes(true));
        assert_eq!(desk.report().skipped, 2);
    }

    #[test]
    fn a_trial_ends_when_faults_are_many_and_no_exception() {
        let desk = Desk::new(PolicyInfo::native("c"));
        (1..MAX_FAULTS).for_each(|_| assert_eq!(desk.failed("trap".into()), None));
        let ended = desk.failed("trap: unreachable".into()).expect("ended");
        assert!(ended.contains("32 of 32 times") && ended.contains("unreachable"), "{ended}");
        assert!(!desk.takes(true) && desk.report().skipped == 0, "nothing is skipped where nothing is compared");
        let seldom = Desk::new(PolicyInfo::native("c"));
        for _ in 0..100 {
            (0..10).for_each(|_| seldom.compared(true, || unreachable!("they agree")));
            assert_eq!(seldom.failed("timeout".into()), None);
        }
    }
}
