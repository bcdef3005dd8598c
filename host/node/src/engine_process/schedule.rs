//! The schedule policy of an engine process, as its node puts it in force while the engine runs. Components are put together from their
//! parts here; loading one, which takes seconds, is for a thread of its own, and the engine's threads wait for none of it.
//!
//! ```text
//!   orders -> Desk: parts, bounded -> thread: load and hold | swap | return -> reports
//! ```
//! It does not know why the node wants it.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_policy::{BreakerState, PolicyInfo, SchedulePolicy, ScheduleSlot, SlotStatus};
use millrace_policy_wasm::{LoadError, PolicyEngine, PolicyKind, PolicyOptions};

use super::reports::Reports;
use crate::control::{Offer, Report, ScheduleOrder, ScheduleReport, ScheduleRuns};
use crate::policies::ScheduleAlone;

/// What waits for the thread. A node that waits for its answers has one or two there.
const TASKS_AHEAD: usize = 8;
/// Counters are told so often; what is in force is told when it changes.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Desk {
    arriving: Option<Arriving>,
    limit: usize,
    tasks: SyncSender<Task>,
    reports: Reports,
    runs: Arc<Runs>,
    /// When, and of which generation of the slot.
    told: Option<(Instant, u64)>,
}

/// A component of which parts have come.
struct Arriving {
    offer: Offer,
    source: Vec<u8>,
}

enum Task {
    Load(Box<Arriving>),
    Put { ticket: u64, generation: u64 },
    Base { generation: u64 },
    Forget { ticket: u64 },
    Is { sha256: String, generation: u64 },
}

/// What is in force, and how the node counts it.
struct Runs {
    slot: Arc<ScheduleSlot>,
    /// A generation of the slot, and which of the node's it is.
    known: Mutex<Option<(u64, u64)>>,
}

/// The thread's side.
struct Worker {
    engine: PolicyEngine,
    options: PolicyOptions,
    runs: Arc<Runs>,
    reports: Reports,
    /// Waits to be put in force.
    held: Option<(u64, Ready)>,
}

type Ready = (Box<dyn SchedulePolicy>, PolicyInfo);

impl Desk {
    /// Tells at once what is in force.
    ///
    /// # Errors
    /// The machine gives no thread.
    pub(super) fn start(alone: ScheduleAlone, reports: Reports) -> io::Result<Self> {
        let ScheduleAlone { slot, engine, options } = alone;
        let runs = Arc::new(Runs { slot, known: Mutex::new(None) });
        let (tasks, todo) = sync_channel(TASKS_AHEAD);
        let limit = options.limits.component_bytes;
        let worker = Worker { engine, options, runs: runs.clone(), reports: reports.clone(), held: None };
        thread::Builder::new().name("schedule-swap".into()).spawn(move || run(&todo, worker))?;
        let mut desk = Self { arriving: None, limit, tasks, reports, runs, told: None };
        desk.tell();
        Ok(desk)
    }

    /// Never waits.
    pub(super) fn obey(&mut self, order: ScheduleOrder) {
        match order {
            ScheduleOrder::Offer(offer) => self.begin(offer),
            ScheduleOrder::Part { ticket, part } => self.go_on(ticket, part.bytes()),
            ScheduleOrder::Put { ticket, generation } => self.hand_on(ticket, Task::Put { ticket, generation }),
            ScheduleOrder::Base { generation } => self.hand_on(0, Task::Base { generation }),
            ScheduleOrder::Forget { ticket } => {
                self.arriving.take_if(|arriving| arriving.offer.ticket == ticket);
                self.hand_on(ticket, Task::Forget { ticket });
            }
            ScheduleOrder::Is { sha256, generation } => self.hand_on(0, Task::Is { sha256, generation }),
        }
    }

    /// Tells what is in force if that is another than what was told, and its counters from time to time.
    pub(super) fn tell(&mut self) {
        let (now, own) = (Instant::now(), self.runs.slot.generation());
        let is_due = |(at, of): (Instant, u64)| now.duration_since(at) >= TOLD_EVERY || of != own;
        if self.told.is_none_or(is_due) {
            self.reports.tell(Report::Schedule(ScheduleReport::Runs(Box::new(self.runs.now()))));
            self.told = Some((now, own));
        }
    }

    fn begin(&mut self, offer: Offer) {
        if offer.bytes > self.limit as u64 {
            let error = LoadError::TooLarge { bytes: usize::try_from(offer.bytes).unwrap_or(usize::MAX), limit: self.limit };
            return refuse(&self.reports, offer.ticket, error.to_string());
        }
        if offer.bytes == 0 {
            return refuse(&self.reports, offer.ticket, "it is empty".into());
        }
        // One that has not come whole by now will not.
        self.arriving = Some(Arriving { offer, source: Vec::new() });
    }

    fn go_on(&mut self, ticket: u64, part: &[u8]) {
        // Of one that was refused.
        let Some(arriving) = self.arriving.as_mut().filter(|arriving| arriving.offer.ticket == ticket) else { return };
        arriving.source.extend_from_slice(part);
        let (has, due) = (arriving.source.len() as u64, arriving.offer.bytes);
        if has < due {
            return;
        }
        let Some(whole) = self.arriving.take() else { return };
        if has > due {
            return refuse(&self.reports, ticket, format!("it has {has} bytes or more, and {due} were announced"));
        }
        self.hand_on(ticket, Task::Load(Box::new(whole)));
    }

    fn hand_on(&self, ticket: u64, task: Task) {
        let why = match self.tasks.try_send(task) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => "this engine process has policies to load already; try again when it is done",
            Err(TrySendError::Disconnected(_)) => {
                "loading a policy has ended the thread that loads them; restart this engine process"
            }
        };
        refuse(&self.reports, ticket, why.into());
    }
}

impl Runs {
    fn known(&self) -> Option<(u64, u64)> {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot's generation is this one of the node's.
    fn is(&self, own: u64, generation: u64) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((own, generation));
    }

    fn now(&self) -> ScheduleRuns {
        let status = self.slot.status();
        let generation = self.known().filter(|(own, _)| *own == status.generation).map(|(_, generation)| generation);
        let SlotStatus { info, proven, total, breaker, .. } = status;
        let failing = breaker != BreakerState::Closed;
        let (calls, fallbacks, faults) = (total.calls, total.fallbacks, total.faults.total());
        ScheduleRuns { generation, info, proven, failing, calls, fallbacks, faults }
    }
}

fn run(tasks: &Receiver<Task>, mut worker: Worker) {
    for task in tasks {
        worker.work(task);
    }
}

fn refuse(reports: &Reports, ticket: u64, why: String) {
    reports.tell(Report::Schedule(ScheduleReport::Refused { ticket, why }));
}

impl Worker {
    fn work(&mut self, task: Task) {
        match task {
            Task::Load(arrived) => self.load(*arrived),
            Task::Put { ticket, generation } => match self.held.take_if(|(held, _)| *held == ticket) {
                Some((_, ready)) => self.put(ready, generation),
                None => refuse(&self.reports, ticket, "this engine process has not loaded it".into()),
            },
            Task::Base { generation } => {
                // It may be in force since this process began.
                if !self.runs.slot.status().way_back.is_empty() {
                    log(&self.runs.slot.return_to_builtin(), "policy returned to the built-in");
                }
                self.is(generation);
            }
            Task::Forget { ticket } => drop(self.held.take_if(|(held, _)| *held == ticket)),
            Task::Is { sha256, generation } if self.runs.slot.status().info.sha256 == sha256 => self.is(generation),
            // It was given up meanwhile.
            Task::Is { .. } => refuse(&self.reports, 0, "this engine process does not run it any more".into()),
        }
    }

    fn load(&mut self, Arriving { offer, source }: Arriving) {
        let Offer { ticket, sha256, origin, config_json, put_as, bytes: _ } = offer;
        let options = PolicyOptions { origin, config_json, sha256: Some(sha256), ..self.options.clone() };
        let loaded = self.engine.load(&source, PolicyKind::Schedule, &options);
        match loaded.and_then(|loaded| Ok((loaded.schedule()?, loaded.info().clone()))) {
            Err(error) => refuse(&self.reports, ticket, error.to_string()),
            Ok(ready) => match put_as {
                Some(generation) => self.put(ready, generation),
                None => {
                    self.held = Some((ticket, ready));
                    self.reports.tell(Report::Schedule(ScheduleReport::Loaded { ticket }));
                }
            },
        }
    }

    fn put(&mut self, (policy, info): Ready, generation: u64) {
        log(&info, "policy replaced");
        self.runs.slot.swap(policy, info);
        self.is(generation);
    }

    /// What is in force now is this generation of the node's, which hears of it at once.
    fn is(&self, generation: u64) {
        self.runs.is(self.runs.slot.generation(), generation);
        self.reports.tell(Report::Schedule(ScheduleReport::Runs(Box::new(self.runs.now()))));
    }
}

fn log(info: &PolicyInfo, what: &str) {
    let PolicyInfo { name, version, sha256, origin } = info;
    tracing::info!(target: "millrace::audit", kind = %PolicyKind::Schedule, policy = name, version, sha256, origin, "{what}");
}

#[cfg(test)]
mod tests;
