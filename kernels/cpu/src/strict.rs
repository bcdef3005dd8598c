//! A backend that keeps hosts honest: operations run late, and host reads of device memory are refused. For tests.
//! Knows no device: it wraps any backend.
//!
//! A submission waits until somebody waits for it, or until the delay has passed; only then does the inner backend see it.
//! A host that takes an enqueued operation for a finished one reads old contents and is caught.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_ops::{
    Activations, Backend, BackendError, Buffer, DeviceDescription, Op, OperationTime, Priority, Program, Queue, RecordingList,
    StepRecord, TensorView, Ticket, Wake, Weight, WeightFormat,
};

const DEFAULT_DELAY: Duration = Duration::from_millis(1);

/// Wraps a backend; see the module.
pub struct StrictBackend {
    inner: Arc<dyn Backend>,
    delay: Duration,
}

impl StrictBackend {
    /// Delays submissions by a millisecond.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self::with_delay(inner, DEFAULT_DELAY)
    }

    pub fn with_delay(inner: Arc<dyn Backend>, delay: Duration) -> Self {
        Self { inner, delay }
    }
}

impl Backend for StrictBackend {
    fn describe(&self) -> DeviceDescription {
        let mut description = self.inner.describe();
        description.name = format!("strict({})", description.name);
        description
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

    fn operation_times(&self) -> Vec<OperationTime> {
        self.inner.operation_times()
    }

    fn queue(&self, priority: Priority, wake: Wake) -> Box<dyn Queue> {
        let held = Held { inner: self.inner.queue(priority, wake), waiting: VecDeque::new(), closed: false };
        let shared = Arc::new(Shared { held: Mutex::new(held), bell: Condvar::new(), delay: self.delay });
        let releaser = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("strict-release".into()).spawn(move || release(&shared)).ok()
        };
        let device = self.describe().name;
        Box::new(StrictQueue { shared, releaser, ops: RecordingList::default(), submitted: 0, device })
    }
}

struct Shared {
    held: Mutex<Held>,
    bell: Condvar,
    delay: Duration,
}

struct Held {
    inner: Box<dyn Queue>,
    /// Submissions that the inner queue has not seen, with the time at which it will.
    waiting: VecDeque<(Instant, Vec<Op>)>,
    closed: bool,
}

impl Held {
    /// Hands the oldest waiting submission on. Tickets of both queues count alike.
    fn hand_on(&mut self) {
        if let Some((_, ops)) = self.waiting.pop_front() {
            for op in ops {
                self.inner.enqueue(op);
            }
            self.inner.submit();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that hands submissions on once their delay has passed.
fn release(shared: &Shared) {
    let mut held = shared.lock();
    while !held.closed {
        let Some((due, _)) = held.waiting.front() else {
            held = shared.bell.wait(held).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            held.hand_on();
        } else {
            held = shared.bell.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

struct StrictQueue {
    shared: Arc<Shared>,
    /// Without it (no thread to be had) submissions run when waited for.
    releaser: Option<JoinHandle<()>>,
    ops: RecordingList<Vec<Op>>,
    submitted: Ticket,
    device: String,
}

impl Queue for StrictQueue {
    fn enqueue(&mut self, op: Op) {
        self.ops.collected_mut().push(op);
    }

    fn begin_recording(&mut self) {
        self.ops.begin();
    }

    fn end_recording(&mut self) -> Program {
        self.ops.end()
    }

    fn enqueue_program(&mut self, program: &Program) {
        // Programs of other backends hold nothing that this one knows; such a submission does nothing.
        if let Some(ops) = RecordingList::<Vec<Op>>::of(program) {
            self.ops.collected_mut().extend_from_slice(ops);
        }
    }

    fn submit(&mut self) -> Ticket {
        let ops = self.ops.take();
        self.shared.lock().waiting.push_back((Instant::now() + self.shared.delay, ops));
        self.shared.bell.notify_all();
        self.submitted += 1;
        self.submitted
    }

    fn completed(&self) -> Ticket {
        self.shared.lock().inner.completed()
    }

    fn wait(&self, ticket: Ticket) -> Result<(), BackendError> {
        let mut held = self.shared.lock();
        while held.waiting.len() as u64 > self.submitted.saturating_sub(ticket) {
            held.hand_on();
        }
        held.inner.wait(ticket)
    }

    fn read_records(&self, records: &Buffer, out: &mut [StepRecord]) -> Result<(), BackendError> {
        self.shared.lock().inner.read_records(records, out)
    }

    fn read(&self, _from: &Buffer, _offset: usize, _out: &mut [u8]) -> Result<(), BackendError> {
        Err(BackendError::ReadForbidden { device: self.device.clone() })
    }
}

impl Drop for StrictQueue {
    /// Submissions that still wait are handed on: a dropped queue finishes its work, as others do.
    fn drop(&mut self) {
        {
            let mut held = self.shared.lock();
            held.closed = true;
            while !held.waiting.is_empty() {
                held.hand_on();
            }
        }
        self.shared.bell.notify_all();
        if let Some(releaser) = self.releaser.take() {
            let _ = releaser.join();
        }
    }
}
