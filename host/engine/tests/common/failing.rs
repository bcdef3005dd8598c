//! A backend whose queues can be told to fail at an operation, or to be slow from one on. Knows no device: it wraps any backend.
//!
//! An operation is made to fail by putting one in its place that no backend can run, so the queue fails as its device's do, and
//! stays so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_ops::{
    Activations, Backend, BackendError, Buffer, DeviceDescription, Op, Priority, Program, Queue, StepRecord, TensorView, Ticket,
    Upload, Wake, Weight, WeightFormat,
};

/// What one queue is told.
#[derive(Default)]
struct Switches {
    /// Name of the operation that fails next.
    fails_at: Option<&'static str>,
    /// Name of the operation with whose submission the queue gets slow.
    stalls_at: Option<&'static str>,
    /// Submissions after this one are not seen to complete.
    stalled_after: Option<Ticket>,
}

/// What the queues of a backend are told; they are named by the order in which they were made: by the engine's pools.
#[derive(Default)]
pub(crate) struct Faults {
    queues: Mutex<Vec<Arc<Mutex<Switches>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    fn of<T>(&self, pool: usize, look: impl FnOnce(&mut Switches) -> T) -> T {
        let switches = lock(&self.queues)[pool].clone();
        look(&mut lock(&switches))
    }

    /// The next such operation of the pool's queue fails, and so do all its submissions from then on.
    pub(crate) fn fail(&self, pool: usize, operation: &'static str) {
        self.of(pool, |switches| switches.fails_at = Some(operation));
    }

    /// The submission with the next such operation, and those after it, seem to run until [`Self::release`].
    pub(crate) fn stall(&self, pool: usize, operation: &'static str) {
        self.of(pool, |switches| switches.stalls_at = Some(operation));
    }

    pub(crate) fn is_stalled(&self, pool: usize) -> bool {
        self.of(pool, |switches| switches.stalled_after.is_some())
    }

    pub(crate) fn release(&self, pool: usize) {
        self.of(pool, |switches| *switches = Switches::default());
    }
}

pub(crate) struct FailingBackend {
    inner: Arc<dyn Backend>,
    faults: Arc<Faults>,
}

impl FailingBackend {
    pub(crate) fn new(inner: Arc<dyn Backend>, faults: Arc<Faults>) -> Self {
        Self { inner, faults }
    }
}

impl Backend for FailingBackend {
    fn describe(&self) -> DeviceDescription {
        self.inner.describe()
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, BackendError> {
        self.inner.allocate(bytes)
    }

    fn prepare_weight(
        &self,
        parts: &[TensorView<'_>],
        format: WeightFormat,
        activations: Activations,
    ) -> Result<Weight, BackendError> {
        self.inner.prepare_weight(parts, format, activations)
    }

    fn queue(&self, priority: Priority, wake: Wake) -> Box<dyn Queue> {
        let switches = Arc::new(Mutex::new(Switches::default()));
        lock(&self.faults.queues).push(switches.clone());
        let byte = self.inner.allocate(1).unwrap();
        Box::new(FailingQueue {
            inner: self.inner.queue(priority, wake),
            switches,
            byte,
            submitted: 0,
            told: AtomicBool::new(false),
        })
    }
}

struct FailingQueue {
    inner: Box<dyn Queue>,
    switches: Arc<Mutex<Switches>>,
    /// Too small for what is uploaded into it.
    byte: Buffer,
    submitted: Ticket,
    /// The host has been told that the queue failed.
    told: AtomicBool,
}

impl FailingQueue {
    fn tell<T>(&self, outcome: Result<T, BackendError>) -> Result<T, BackendError> {
        self.told.fetch_or(outcome.is_err(), Ordering::Relaxed);
        outcome
    }
}

impl Queue for FailingQueue {
    fn enqueue(&mut self, op: Op) {
        let name = op.name();
        let mut switches = lock(&self.switches);
        if switches.stalls_at.take_if(|at| *at == name).is_some() {
            switches.stalled_after = Some(self.submitted);
        }
        let fails = switches.fails_at.take_if(|at| *at == name).is_some();
        let impossible = || Op::Upload(Upload { to: self.byte.clone(), offset: 1, bytes: vec![1] });
        self.inner.enqueue(if fails { impossible() } else { op });
    }

    fn begin_recording(&mut self) {
        self.inner.begin_recording();
    }

    fn end_recording(&mut self) -> Program {
        self.inner.end_recording()
    }

    fn enqueue_program(&mut self, program: &Program) {
        self.inner.enqueue_program(program);
    }

    fn submit(&mut self) -> Ticket {
        assert!(!self.told.load(Ordering::Relaxed), "the driver gives work to a queue that it knows to have failed");
        self.submitted += 1;
        self.inner.submit()
    }

    fn completed(&self) -> Ticket {
        let stalled_after = lock(&self.switches).stalled_after;
        self.inner.completed().min(stalled_after.unwrap_or(Ticket::MAX))
    }

    fn wait(&self, ticket: Ticket) -> Result<(), BackendError> {
        let stalled_after = lock(&self.switches).stalled_after.unwrap_or(Ticket::MAX);
        assert!(ticket <= stalled_after, "the driver waits for submission {ticket}, which runs");
        self.tell(self.inner.wait(ticket))
    }

    fn read_records(&self, records: &Buffer, out: &mut [StepRecord]) -> Result<(), BackendError> {
        self.tell(self.inner.read_records(records, out))
    }

    fn read(&self, from: &Buffer, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        self.inner.read(from, offset, out)
    }
}
