//! The schedule policy of an engine process, as its node puts it in force while the engine runs. Components are put together from their
//! parts here; loading one, which takes seconds, is for a thread of its own, and the engine's threads wait for none of it. The way back
//! does not wait for it either, and what was being loaded then is not put in force.
//!
//! ```text
//!   orders -> Desk: the way back at once; parts, bounded -> thread: load and hold | swap -> reports
//! ```
//! It does not know why the node wants it.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// How often the way back had been taken when it was announced.
    recalls: u64,
}

enum Task {
    Load(Box<Arriving>),
    Put { ticket: u64, generation: u64 },
    Forget { ticket: u64 },
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
    held: Option<(u64, Loaded)>,
}

struct Loaded {
    policy: Box<dyn SchedulePolicy>,
    info: PolicyInfo,
    /// See [`Arriving`].
    recalls: u64,
}

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
            ScheduleOrder::Base { generation } => {
                self.runs.go_back(generation);
                self.runs.report(&self.reports);
            }
            ScheduleOrder::Forget { ticket } => {
                self.arriving.take_if(|arriving| arriving.offer.ticket == ticket);
                self.hand_on(ticket, Task::Forget { ticket });
            }
            ScheduleOrder::Is { sha256, generation, .. } if self.runs.count_as(&sha256, generation) => {
                self.runs.report(&self.reports);
            }
            // It was given up meanwhile.
            ScheduleOrder::Is { ticket, .. } => {
                refuse(&self.reports, ticket, "this engine process does not run it any more".into());
            }
        }
    }

    /// Tells what is in force if that is another than what was told, and its counters from time to time.
    pub(super) fn tell(&mut self) {
        let (now, own) = (Instant::now(), self.runs.slot.generation());
        let is_due = |(at, of): (Instant, u64)| now.duration_since(at) >= TOLD_EVERY || of != own;
        if self.told.is_none_or(is_due) {
            self.runs.report(&self.reports);
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
        self.arriving = Some(Arriving { offer, source: Vec::new(), recalls: self.runs.slot.recalls() });
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
    fn known(&self) -> MutexGuard<'_, Option<(u64, u64)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in force is of this generation of the node's, if it has that digest: it may have been given up, or back, since.
    fn count_as(&self, sha256: &str, generation: u64) -> bool {
        let mut known = self.known();
        let status = self.slot.status();
        let is_it = status.info.sha256 == sha256;
        if is_it {
            *known = Some((status.generation, generation));
        }
        is_it
    }

    fn go_back(&self, generation: u64) {
        let had_a_way = !self.slot.status().way_back.is_empty();
        let info = self.slot.return_to_builtin();
        if had_a_way {
            log(&info, "policy returned to the built-in");
        }
        self.count_as(&info.sha256, generation);
    }

    /// The node hears at once what is in force.
    fn report(&self, reports: &Reports) {
        reports.tell(Report::Schedule(ScheduleReport::Runs(Box::new(self.now()))));
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
                Some((_, loaded)) => self.put(loaded, ticket, generation),
                None => refuse(&self.reports, ticket, "this engine process has not loaded it".into()),
            },
            Task::Forget { ticket } => drop(self.held.take_if(|(held, _)| *held == ticket)),
        }
    }

    fn load(&mut self, Arriving { offer, source, recalls }: Arriving) {
        let Offer { ticket, sha256, origin, config_json, put_as, bytes: _ } = offer;
        let options = PolicyOptions { origin, config_json, sha256: Some(sha256), ..self.options.clone() };
        let loaded = self.engine.load(&source, PolicyKind::Schedule, &options);
        match loaded.and_then(|loaded| Ok(Loaded { policy: loaded.schedule()?, info: loaded.info().clone(), recalls })) {
            Err(error) => refuse(&self.reports, ticket, error.to_string()),
            Ok(loaded) => match put_as {
                Some(generation) => self.put(loaded, ticket, generation),
                None => {
                    self.held = Some((ticket, loaded));
                    self.reports.tell(Report::Schedule(ScheduleReport::Loaded { ticket }));
                }
            },
        }
    }

    fn put(&self, Loaded { policy, info, recalls }: Loaded, ticket: u64, generation: u64) {
        let Runs { slot, .. } = &*self.runs;
        if slot.swap_since(recalls, policy, info.clone()).is_none() {
            return refuse(&self.reports, ticket, "the server went back while this engine process loaded it".into());
        }
        log(&info, "policy replaced");
        self.runs.count_as(&info.sha256, generation);
        self.runs.report(&self.reports);
    }
}

fn log(info: &PolicyInfo, what: &str) {
    let PolicyInfo { name, version, sha256, origin } = info;
    tracing::info!(target: "millrace::audit", kind = %PolicyKind::Schedule, policy = name, version, sha256, origin, "{what}");
}

#[cfg(test)]
mod tests;
