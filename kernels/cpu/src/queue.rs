//! The CPU backend's queue: checks operations as they come, hands them to the pool, reports how they went.
//! Knows no operation's inside and no threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use millrace_ops::{BackendError, Buffer, Op, OperationKind, Priority, Program, Queue, RecordingList, StepRecord, Ticket, Wake};

use crate::memory::DEVICE;
use crate::ops::{fuse, lower, makes_rows};
use crate::pool::{Compute, Pool};
use crate::task::{Arguments, Task};

/// What the pool and the host share about one queue.
pub(crate) struct QueueState {
    completed: AtomicU64,
    /// The first failure and the submission it struck. It stays: later submissions of the queue do not run.
    failure: Mutex<Option<(Ticket, BackendError)>>,
    done: Condvar,
    wake: Wake,
}

/// An operation that was checked.
#[derive(Clone)]
pub(crate) struct Planned {
    pub(crate) kind: OperationKind,
    /// Shared by all submissions of a program.
    pub(crate) task: Arc<dyn Task>,
}

/// What a [`Program`] holds, and what a queue collects: operations, or what is wrong with one of them.
#[derive(Default, Clone)]
struct Collected {
    tasks: Vec<Planned>,
    /// What the last of them does, where the next operation may be done with it.
    last: Option<Op>,
    invalid: Option<BackendError>,
}

/// A list of operations on its way through the pool.
pub(crate) struct Submission {
    pub(crate) tasks: Vec<Planned>,
    pub(crate) priority: Priority,
    failed: AtomicBool,
    failure: Mutex<Option<BackendError>>,
    ticket: Ticket,
    queue: Arc<QueueState>,
}

impl Submission {
    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Notes a failure; the first one is kept. Phases that have not begun are skipped.
    pub(crate) fn fail(&self, error: BackendError) {
        lock(&self.failure).get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether an earlier submission of this queue has failed, in which case this one must not run.
    pub(crate) fn queue_failed(&self) -> bool {
        lock(&self.queue.failure).is_some()
    }

    /// Publishes the outcome and wakes the host.
    pub(crate) fn complete(&self) {
        {
            let mut failure = lock(&self.queue.failure);
            if let (None, Some(error)) = (failure.as_ref(), lock(&self.failure).take()) {
                *failure = Some((self.ticket, error));
            }
            // Under the lock, so that a host between its check and its wait does not miss it.
            self.queue.completed.store(self.ticket, Ordering::Release);
        }
        self.queue.done.notify_all();
        // A host's callback must not take a worker down with it.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.queue.wake)()));
    }
}

/// Locks that outlive a panic: what they guard is written in one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Implements [`Queue`]. A queue whose submission failed stays failed: that and later submissions report the first error
/// and later ones do not run.
pub(crate) struct CpuQueue {
    pool: Arc<Pool>,
    state: Arc<QueueState>,
    priority: Priority,
    /// Since the last submission, or since the beginning of a recording.
    list: RecordingList<Collected>,
    submitted: Ticket,
}

impl CpuQueue {
    pub(crate) fn new(pool: Arc<Pool>, priority: Priority, wake: Wake) -> Self {
        let state = QueueState { completed: AtomicU64::new(0), failure: Mutex::new(None), done: Condvar::new(), wake };
        Self { pool, state: Arc::new(state), priority, list: RecordingList::default(), submitted: 0 }
    }

    fn outcome(&self, ticket: Ticket) -> Result<(), BackendError> {
        match lock(&self.state.failure).as_ref() {
            Some((failed, error)) if *failed <= ticket => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

impl Queue for CpuQueue {
    fn enqueue(&mut self, op: Op) {
        let collected = self.list.collected_mut();
        if collected.invalid.is_some() {
            return;
        }
        let compute = Compute { priority: self.priority, ..self.pool.compute() };
        let kind = OperationKind::of(&op);
        let before = std::mem::replace(&mut collected.last, makes_rows(&op).then(|| op.clone()));
        if let Some(before) = before
            && let Some(task) = fuse(&before, &op, compute)
        {
            collected.tasks.pop();
            return collected.tasks.push(Planned { kind: kind.behind(&before), task: task.into() });
        }
        match lower(op, compute) {
            Ok(task) => collected.tasks.push(Planned { kind, task: task.into() }),
            Err(error) => collected.invalid = Some(error),
        }
    }

    fn begin_recording(&mut self) {
        self.list.begin();
    }

    fn end_recording(&mut self) -> Program {
        self.list.end()
    }

    fn enqueue_program(&mut self, program: &Program) {
        let arguments = Arguments { operation: "program" };
        let collected = self.list.collected_mut();
        let Some(recorded) = RecordingList::<Collected>::of(program) else {
            collected.invalid.get_or_insert(arguments.invalid("it was recorded by another backend"));
            return;
        };
        collected.last = None;
        collected.tasks.extend_from_slice(&recorded.tasks);
        if let Some(error) = &recorded.invalid {
            collected.invalid.get_or_insert(error.clone());
        }
    }

    fn submit(&mut self) -> Ticket {
        self.submitted += 1;
        let Collected { mut tasks, invalid: failure, .. } = self.list.take();
        if failure.is_some() {
            // A list with a hole in it must not run in part.
            tasks.clear();
        }
        self.list.collected_mut().tasks.reserve(tasks.len());
        self.pool.post(Submission {
            tasks,
            priority: self.priority,
            failed: AtomicBool::new(failure.is_some()),
            failure: Mutex::new(failure),
            ticket: self.submitted,
            queue: Arc::clone(&self.state),
        });
        self.submitted
    }

    fn completed(&self) -> Ticket {
        self.state.completed.load(Ordering::Acquire)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), BackendError> {
        if ticket > self.submitted {
            let why = format!("ticket {ticket} was never submitted (the last one is {})", self.submitted);
            return Err(Arguments { operation: "wait" }.invalid(why));
        }
        let mut guard = lock(&self.state.failure);
        while self.completed() < ticket {
            guard = self.state.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.outcome(ticket)
    }

    fn read_records(&self, records: &Buffer, out: &mut [StepRecord]) -> Result<(), BackendError> {
        if let Err(error) = self.outcome(self.submitted) {
            return Err(BackendError::Failed { device: DEVICE.into(), why: error.to_string() });
        }
        let region = Arguments { operation: "read_records" }.region("records", records.clone(), size_of_val(out))?;
        for (i, record) in out.iter_mut().enumerate() {
            *record = StepRecord(region.double_word(i).load(Ordering::Acquire));
        }
        Ok(())
    }

    fn read(&self, from: &Buffer, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        self.wait(self.submitted)?;
        let arguments = Arguments { operation: "read" };
        let region = arguments.region("from", from.clone(), offset.saturating_add(out.len()))?;
        // Other queues' submissions may write: keep the pool between two of them.
        let _idle = self.pool.hold();
        // SAFETY: no submission runs while `_idle` lives, so nobody writes.
        out.copy_from_slice(unsafe { region.items_at(offset, out.len()) });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
