//! A loaded policy as the traits of `millrace-policy`: calls the instance, and after an error has a fresh one prepared.
//!
//! ```text
//!   call --> instance? --no--> Unavailable (and a fresh one is asked for)
//!              | yes: taken out for the call
//!            guest --ok--> put back
//!              | error, or `recover` after an answer that broke a rule
//!            dropped on the builder thread, where a fresh one is prepared and left in the mailbox
//! ```
//! It does not know what makes an answer valid.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use millrace_policy as host;
use millrace_policy::{FaultKind, Policy, PolicyFault, PolicyReport, PrecisionPolicy, RoutePolicy, SchedulePolicy};

use crate::instance::{Fault, Instance};
use crate::prepared::Prepared;
use crate::recorded::{beginning, record};
use crate::trace::{Beside, Call, Event, Init, What};
use crate::worlds::{self, Asking, PrecisionWorld, RouteWorld, ScheduleWorld, World};

pub(crate) struct WasmPolicy<W: World> {
    prepared: Arc<Prepared>,
    /// `name@version`
    label: String,
    /// Sorted.
    wants: Arc<[u32]>,
    instance: Option<Instance<W>>,
    mailbox: Arc<Mutex<Mail<W>>>,
    rebuilds: u64,
    last_call_ns: Option<u64>,
}

/// Between the builder and the policy.
enum Mail<W: World> {
    Empty,
    /// The builder is at work.
    Expected,
    Ready(Box<Instance<W>>),
    Failed(Fault),
}

impl<W: World> WasmPolicy<W> {
    pub(crate) fn new(prepared: Arc<Prepared>, label: String, wants: Arc<[u32]>, instance: Instance<W>) -> Self {
        let mailbox = Arc::new(Mutex::new(Mail::Empty));
        Self { prepared, label, wants, instance: Some(instance), mailbox, rebuilds: 0, last_call_ns: None }
    }

    /// `within_us` cuts the policy's own deadline; what that makes late is not its fault. `arguments` gives the facts in the columns
    /// that it is told.
    fn call(&mut self, within_us: Option<u32>, arguments: impl Fn(&[u32]) -> W::Arguments) -> Result<W::Answer, PolicyFault> {
        self.last_call_ns = None;
        let mut instance = self.take_instance()?;
        let limit_us = self.prepared.options.limits.deadline_us;
        let cut_us = within_us.map(u64::from).filter(|&within| within < limit_us);
        let asking = Asking { call: self.prepared.next_call(), deadline_us: cut_us.unwrap_or(limit_us) };
        let recorder = self.prepared.options.record.clone();
        if recorder.is_some() {
            instance.record_imports();
        }
        let started = Instant::now();
        let result = instance.decide(asking, arguments(&self.wants));
        let took_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_call_ns = Some(took_ns);
        if let Some(recorder) = recorder {
            let (answer, fault) = match &result {
                Ok(answer) => (Some(answer.clone()), None),
                Err(fault) => (None, Some(cut_short(fault.clone(), cut_us).0.to_string())),
            };
            let (facts, imports) = (arguments(&[]), instance.recorded_imports());
            let (call, now_us) = (asking.call, instance.now_us());
            record(&recorder, &mut instance, |instance, missed| {
                Event::Call(Call { instance, call, now_us, facts, imports, answer, fault, took_ns, missed })
            });
        }
        match result {
            Ok(answer) => {
                self.put_back(instance);
                Ok(answer)
            }
            Err(fault) => {
                self.discard(instance);
                self.expect_instance();
                Err(self.fault(cut_short(fault, cut_us)))
            }
        }
    }

    /// A call that is no decision: the same instance, the same end of it after an error. `what` says for a recording what was called.
    pub(crate) fn beside<R>(
        &mut self,
        work: impl FnOnce(&mut Instance<W>) -> Result<R, Fault>,
        what: impl FnOnce(Option<&R>) -> What,
    ) -> Result<R, PolicyFault> {
        self.last_call_ns = None;
        let mut instance = self.take_instance()?;
        let recorder = self.prepared.options.record.clone();
        if recorder.is_some() {
            instance.record_imports();
        }
        let started = Instant::now();
        let result = work(&mut instance);
        let took_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_call_ns = Some(took_ns);
        if let Some(recorder) = recorder {
            let (what, fault) = (what(result.as_ref().ok()), result.as_ref().err().map(|(kind, _)| kind.to_string()));
            let (now_us, imports) = (instance.now_us(), instance.recorded_imports());
            record(&recorder, &mut instance, |instance, missed| {
                Event::<W::Arguments, W::Answer>::Beside(Beside { instance, now_us, what, imports, fault, took_ns, missed })
            });
        }
        match result {
            Ok(value) => {
                self.put_back(instance);
                Ok(value)
            }
            Err(fault) => {
                self.discard(instance);
                self.expect_instance();
                Err(self.fault(fault))
            }
        }
    }

    /// The instance for a call; none is an error, and one is asked for.
    fn take_instance(&mut self) -> Result<Instance<W>, PolicyFault> {
        self.collect().map_err(|fault| self.fault(fault))?;
        self.instance.take().ok_or_else(|| {
            self.expect_instance();
            self.fault((FaultKind::Unavailable, "a fresh instance is being prepared".to_owned()))
        })
    }

    /// After a call that went well.
    fn put_back(&mut self, instance: Instance<W>) {
        let is_swollen = instance.is_swollen();
        self.instance = Some(instance);
        if is_swollen {
            self.expect_instance();
        }
    }

    /// Goes on with this instance; without one, with what the builder prepares.
    pub(crate) fn start_over(&mut self, fresh: Option<Instance<W>>) {
        if let Some(old) = std::mem::replace(&mut self.instance, fresh) {
            self.discard(old);
        }
    }

    pub(crate) fn prepared(&self) -> &Arc<Prepared> {
        &self.prepared
    }

    pub(crate) fn wants(&self) -> &[u32] {
        &self.wants
    }

    pub(crate) fn deadline_us(&self) -> u64 {
        self.prepared.options.limits.deadline_us
    }

    /// Takes what the builder left. A failed rebuild is told once, and asked for again by the call after it.
    fn collect(&mut self) -> Result<(), Fault> {
        let mail = {
            let mut mailbox = self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
            match *mailbox {
                Mail::Empty | Mail::Expected => return Ok(()),
                Mail::Ready(_) | Mail::Failed(_) => std::mem::replace(&mut *mailbox, Mail::Empty),
            }
        };
        match mail {
            Mail::Ready(instance) => {
                self.rebuilds = self.rebuilds.saturating_add(1);
                if let Some(old) = self.instance.replace(*instance) {
                    self.discard(old);
                }
                Ok(())
            }
            Mail::Failed(fault) => Err(fault),
            Mail::Empty | Mail::Expected => Ok(()),
        }
    }

    /// Has an instance prepared unless one is on its way.
    fn expect_instance(&self) {
        let lock = || self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut mailbox = lock();
            if !matches!(*mailbox, Mail::Empty) {
                return;
            }
            *mailbox = Mail::Expected;
        }
        let (prepared, target) = (self.prepared.clone(), self.mailbox.clone());
        let submitted = self.prepared.shared.builder.submit(move || {
            let mail = match ready_instance(&prepared) {
                Ok(instance) => Mail::Ready(Box::new(instance)),
                Err(fault) => Mail::Failed(fault),
            };
            *target.lock().unwrap_or_else(PoisonError::into_inner) = mail;
        });
        if !submitted {
            *lock() = Mail::Empty;
        }
    }

    /// Unmapping an instance takes longer than a decision should.
    fn discard(&self, instance: Instance<W>) {
        self.prepared.shared.builder.submit(move || drop(instance));
    }

    fn fault(&self, (kind, detail): Fault) -> PolicyFault {
        PolicyFault { policy: self.label.clone(), kind, detail }
    }
}

/// A call that took too long for a deadline that was cut was late; whether the policy keeps to its own is not known then.
fn cut_short(fault: Fault, cut_us: Option<u64>) -> Fault {
    match (fault.0, cut_us) {
        (FaultKind::Timeout, Some(cut_us)) => {
            (FaultKind::Late, format!("took longer than the {cut_us} us that the running step left; its own deadline is longer"))
        }
        _ => fault,
    }
}

/// An instance that was initialised, on the policy's own state and metrics.
pub(crate) fn ready_instance<W: World>(prepared: &Arc<Prepared>) -> Result<Instance<W>, Fault> {
    let mut instance = Instance::new(prepared, prepared.owned())?;
    let recorder = prepared.options.record.as_ref();
    if recorder.is_some() {
        instance.record_imports();
    }
    let info = instance.init()?;
    if let Some(recorder) = recorder {
        let init = beginning(prepared, &mut instance, info.as_ref().ok());
        match info {
            Ok(_) => instance.began_as(init),
            // It will never be asked, so this is all that there is to tell of it.
            Err(_) => drop(recorder.record(Event::<(), ()>::Init(Init { instance: recorder.next_instance(), ..init }))),
        }
    }
    match info {
        Ok(_) => Ok(instance),
        Err(refusal) => {
            Err((FaultKind::Invalid, format!("`init` refused a fresh instance: {}", crate::fault::one_line(&refusal))))
        }
    }
}

impl<W: World> Policy for WasmPolicy<W> {
    fn recover(&mut self) {
        if let Some(instance) = self.instance.take() {
            self.discard(instance);
        }
        self.expect_instance();
    }

    fn observes(&self) -> bool {
        self.prepared.exports.optional.observes()
    }

    fn observe(&mut self, outcomes: &host::Table) -> Result<(), PolicyFault> {
        self.tell(outcomes)
    }

    fn hands_over(&self) -> bool {
        self.prepared.exports.optional.hands_over()
    }

    fn save(&mut self) -> Result<Vec<u8>, PolicyFault> {
        self.saved()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), PolicyFault> {
        self.restored(saved)
    }

    fn last_call_ns(&self) -> Option<u64> {
        self.last_call_ns
    }

    fn report(&self) -> PolicyReport {
        let log = self.prepared.belongings.log_budget();
        PolicyReport {
            memory_bytes: self.instance.as_ref().map_or(0, |i| i.memory_bytes() as u64),
            rebuilds: self.rebuilds,
            log_lines: log.passed,
            log_lines_dropped: log.dropped,
            metrics: self.prepared.metrics.snapshot(),
        }
    }
}

impl PrecisionPolicy for WasmPolicy<PrecisionWorld> {
    fn choose(
        &mut self,
        asks: &[host::Ask],
        precisions: &host::Table,
        tenants: &host::Table,
    ) -> Result<Vec<host::Choice>, PolicyFault> {
        let (choices,) = self.call(None, |wants| worlds::choose_arguments(asks, precisions, tenants, wants))?;
        Ok(choices.into_iter().map(host::Choice::from).collect())
    }
}

impl RoutePolicy for WasmPolicy<RouteWorld> {
    fn decide(
        &mut self,
        request: &host::RouteRequest,
        lanes: &host::Table,
        tenants: &host::Table,
    ) -> Result<host::Decision, PolicyFault> {
        let (decision,) = self.call(None, |wants| worlds::decide_arguments(request, lanes, tenants, wants))?;
        Ok(decision.into())
    }
}

impl SchedulePolicy for WasmPolicy<ScheduleWorld> {
    fn plan_step(&mut self, budget: &host::Budget, rows: &host::Table, tenants: &host::Table) -> Result<host::Plan, PolicyFault> {
        let (plan,) = self.call(budget.answer_within_us, |wants| worlds::plan_arguments(budget, rows, tenants, wants))?;
        Ok(plan.into())
    }
}
