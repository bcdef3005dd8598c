//! A policy on trial beside the one in force: asked the same on a thread of its own, its answers compared and never used.
//!
//! ```text
//!   slot --facts, answer--> queue (64, never waited for) --> thread: candidate decides, rules are checked, both are compared
//!                             | full: dropped, counted
//! ```
//! It does not know how a trial begins or ends.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_policy::{
    Answer, Choice, Decision, FaultKind, Plan, PolicyFault, PolicyInfo, PrecisionPolicy, RouteLimits, RoutePolicy,
    SchedulePolicy, validate_choices, validate_decision, validate_plan,
};
use millrace_policy_wasm::{LoadError, LoadedPolicy, PolicyKind};

use crate::policies::Slots;

/// Decisions that wait to be compared.
const QUEUE: usize = 64;
/// Disagreements that are kept, the latest.
const MAX_EXAMPLES: usize = 16;
/// Of the text of one answer.
const MAX_TEXT_BYTES: usize = 1_024;
/// Between two tries where no instance is ready.
const REST: Duration = Duration::from_millis(1);

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
    report: Arc<Mutex<ShadowReport>>,
    slots: Slots,
}

type Job = Box<dyn FnOnce(&mut Trial) + Send>;

enum Candidate {
    Precision(Box<dyn PrecisionPolicy>),
    Route(Box<dyn RoutePolicy>),
    Schedule(Box<dyn SchedulePolicy>),
}

struct Trial {
    candidate: Candidate,
    report: Arc<Mutex<ShadowReport>>,
}

impl Shadow {
    /// # Errors
    /// No instance or no thread.
    pub(crate) fn start(loaded: LoadedPolicy, slots: Slots) -> Result<Self, LoadError> {
        let candidate = match loaded.kind() {
            PolicyKind::Precision => Candidate::Precision(loaded.precision()?),
            PolicyKind::Route => Candidate::Route(loaded.route()?),
            PolicyKind::Schedule => Candidate::Schedule(loaded.schedule()?),
        };
        let report = Arc::new(Mutex::new(ShadowReport {
            candidate: loaded.info().clone(),
            compared: 0,
            agreed: 0,
            disagreed: 0,
            faults: 0,
            last_fault: None,
            skipped: 0,
            examples: Vec::new(),
        }));
        let (sender, receiver) = sync_channel(QUEUE);
        let trial = Trial { candidate, report: report.clone() };
        thread::Builder::new()
            .name("policy-shadow".into())
            .spawn(move || run(&receiver, trial))
            .map_err(|error| LoadError::Compile { detail: format!("cannot start a thread: {error}") })?;
        watch(loaded.kind(), &slots, sender, &report);
        Ok(Self { loaded, report, slots })
    }

    pub(crate) fn report(&self) -> ShadowReport {
        lock(&self.report).clone()
    }

    pub(crate) fn loaded(&self) -> &LoadedPolicy {
        &self.loaded
    }
}

/// The thread ends with the last witness, which holds the queue.
impl Drop for Shadow {
    fn drop(&mut self) {
        match self.loaded.kind() {
            PolicyKind::Precision => self.slots.precision.witnessed_by(None),
            PolicyKind::Route => self.slots.route.witnessed_by(None),
            PolicyKind::Schedule => self.slots.schedule.witnessed_by(None),
        }
    }
}

fn run(jobs: &Receiver<Job>, mut trial: Trial) {
    for job in jobs {
        job(&mut trial);
    }
}

/// Has the slot's decisions put into the queue.
fn watch(kind: PolicyKind, slots: &Slots, sender: SyncSender<Job>, report: &Arc<Mutex<ShadowReport>>) {
    let report = report.clone();
    let put = move |made_by_policy: bool, job: &dyn Fn() -> Job| {
        if !made_by_policy || sender.try_send(job()).is_err() {
            lock(&report).skipped += 1;
        }
    };
    match kind {
        PolicyKind::Precision => slots.precision.witnessed_by(Some(Arc::new(move |asks, precisions, tenants, answer| {
            let job = || -> Job {
                let (asks, precisions, tenants) = (asks.to_vec(), precisions.clone(), tenants.clone());
                let in_force = answer.value.clone();
                Box::new(move |trial| trial.choose(&asks, &precisions, &tenants, &in_force))
            };
            put(is_own(answer), &job);
        }))),
        PolicyKind::Route => {
            let limits = slots.route.limits();
            slots.route.witnessed_by(Some(Arc::new(move |request, lanes, tenants, answer| {
                let job = || -> Job {
                    let (request, lanes, tenants) = (request.clone(), lanes.clone(), tenants.clone());
                    let in_force = answer.value.clone();
                    Box::new(move |trial| trial.decide((&request, &lanes, &tenants), &limits, &in_force))
                };
                put(is_own(answer), &job);
            })));
        }
        PolicyKind::Schedule => slots.schedule.witnessed_by(Some(Arc::new(move |budget, rows, tenants, answer| {
            let job = || -> Job {
                let (mut budget, rows, tenants) = (*budget, rows.clone(), tenants.clone());
                // Nobody waits for this answer.
                budget.answer_within_us = None;
                let in_force = answer.value.clone();
                Box::new(move |trial| trial.plan(&budget, &rows, &tenants, &in_force))
            };
            put(is_own(answer), &job);
        }))),
    }
}

fn is_own<T>(answer: &Answer<T>) -> bool {
    answer.fault.is_none()
}

impl Trial {
    fn choose(
        &mut self,
        asks: &[millrace_policy::Ask],
        precisions: &millrace_policy::Table,
        tenants: &millrace_policy::Table,
        in_force: &[Choice],
    ) {
        let Candidate::Precision(policy) = &mut self.candidate else { return };
        let answer = ready(|| policy.choose(asks, precisions, tenants)).and_then(|choices| {
            validate_choices(&choices, asks, precisions).map_err(|invalid| invalid.to_string())?;
            Ok(choices)
        });
        if answer.is_err() {
            policy.recover();
        }
        let row = |choices: &[Choice]| choices.iter().map(|choice| choice.precision).collect::<Vec<_>>();
        self.compare(answer.map(|choices| (row(&choices) == row(in_force), format!("{choices:?}"))), || format!("{in_force:?}"));
    }

    fn decide(
        &mut self,
        (request, lanes, tenants): (&millrace_policy::RouteRequest, &millrace_policy::Table, &millrace_policy::Table),
        limits: &RouteLimits,
        in_force: &Decision,
    ) {
        let Candidate::Route(policy) = &mut self.candidate else { return };
        let answer = ready(|| policy.decide(request, lanes, tenants))
            .and_then(|decision| validate_decision(decision, lanes, limits).map_err(|invalid| invalid.to_string()));
        if answer.is_err() {
            policy.recover();
        }
        self.compare(answer.map(|decision| (is_same_route(&decision, in_force), format!("{decision:?}"))), || {
            format!("{in_force:?}")
        });
    }

    fn plan(
        &mut self,
        budget: &millrace_policy::Budget,
        rows: &millrace_policy::Table,
        tenants: &millrace_policy::Table,
        in_force: &Plan,
    ) {
        let Candidate::Schedule(policy) = &mut self.candidate else { return };
        let answer = ready(|| policy.plan_step(budget, rows, tenants)).and_then(|plan| {
            validate_plan(&plan, budget, rows).map_err(|invalid| invalid.to_string())?;
            Ok(plan)
        });
        if answer.is_err() {
            policy.recover();
        }
        self.compare(answer.map(|plan| (is_same_plan(&plan, in_force), format!("{plan:?}"))), || format!("{in_force:?}"));
    }

    fn compare(&self, answer: Result<(bool, String), String>, in_force: impl FnOnce() -> String) {
        let mut report = lock(&self.report);
        match answer {
            Err(fault) => {
                report.faults += 1;
                report.last_fault = Some(cut(fault));
            }
            Ok((true, _)) => {
                report.compared += 1;
                report.agreed += 1;
            }
            Ok((false, candidate)) => {
                report.compared += 1;
                report.disagreed += 1;
                if report.examples.len() == MAX_EXAMPLES {
                    report.examples.remove(0);
                }
                let at_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                report.examples.push(Disagreement { at_s, in_force: cut(in_force()), candidate: cut(candidate) });
            }
        }
    }
}

/// Off the hot path there is time to wait for a fresh instance, within bounds.
fn ready<T>(mut ask: impl FnMut() -> Result<T, PolicyFault>) -> Result<T, String> {
    for _ in 0..1_000 {
        match ask() {
            Err(fault) if fault.kind == FaultKind::Unavailable => thread::sleep(REST),
            answer => return answer.map_err(|fault| fault.to_string()),
        }
    }
    Err("no fresh instance for a second".to_owned())
}

/// The lane that would be taken counts, not those behind it; of refusals the status.
fn is_same_route(one: &Decision, other: &Decision) -> bool {
    match (one, other) {
        (Decision::Forward(one), Decision::Forward(other)) => {
            (one.lanes.first(), one.priority) == (other.lanes.first(), other.priority)
        }
        (Decision::Hold(_), Decision::Hold(_)) => true,
        (Decision::Refuse(one), Decision::Refuse(other)) => one.status == other.status,
        _ => false,
    }
}

/// What runs, in which order and with how many tokens; victims count only where both name some.
fn is_same_plan(one: &Plan, other: &Plan) -> bool {
    let tokens = one.tokens.is_empty() || other.tokens.is_empty() || one.tokens == other.tokens;
    let victims = one.preempt.is_empty() || other.preempt.is_empty() || one.preempt.first() == other.preempt.first();
    one.run == other.run && tokens && victims
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    text
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
