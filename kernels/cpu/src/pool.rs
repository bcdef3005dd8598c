//! The worker pool of a backend: a fixed set of threads that run one submission at a time, all workers together.
//! Knows tasks and their phases; no operation.
//!
//! ```text
//! queues --post--> inbox (high | normal) --leader picks--> current submission
//!                                         all workers:  for task, for phase { run; barrier }
//!                                         leader:       publish the outcome, wake the host
//! ```
//!
//! Between submissions workers spin, then yield, and park after [`IDLE_SPIN`], so an idle server uses no CPU.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_ops::{BackendError, Priority};

use crate::barrier::Barrier;
use crate::isa::Isa;
use crate::linear::{QuantizedRows, StepRows};
use crate::memory::{DEVICE, HostMemory, Region};
use crate::operation_times::{OperationTimes, Stopwatch};
use crate::queue::{Planned, Submission, lock};
use crate::task::{Scratch, Worker};

/// How long a worker without work stays awake. Decode steps follow each other closer than that.
const IDLE_SPIN: Duration = Duration::from_micros(100);
/// Spins between two looks at the clock.
const SPINS_PER_LOOK: u32 = 64;
/// High submissions that may run in a row while a normal one waits: prefill gets on even where a decode engine keeps
/// its queue full.
const HIGH_IN_A_ROW: u32 = 8;

/// How operations compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compute {
    pub(crate) isa: Isa,
    pub(crate) mode: crate::CpuCompute,
    /// Of their queue: [`Priority::High`] has one row a sequence for the most part, [`Priority::Normal`] many.
    pub(crate) priority: Priority,
}

impl Compute {
    /// What steps of the queue are like.
    pub(crate) fn step_rows(self) -> StepRows {
        if self.priority == Priority::High { StepRows::Few } else { StepRows::Many }
    }

    /// Lanes of f32 that forms written for vectors work with; `None` where the plain form is to be taken.
    pub(crate) fn lanes(self) -> Option<usize> {
        match (self.mode, self.isa) {
            (crate::CpuCompute::Reference, _) | (_, Isa::Scalar) => None,
            (_, Isa::Avx2 | Isa::AvxVnni) => Some(8),
            (_, Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Fp16 | Isa::Amx) => Some(16),
        }
    }
}

pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    workers: usize,
    compute: Compute,
    inbox: Mutex<Inbox>,
    bell: Condvar,
    /// Submissions in the inbox, for a look without the lock.
    posted: AtomicUsize,
    /// Number of submissions begun, for a look without the lock.
    begun: AtomicUsize,
    barrier: Barrier,
    /// Held by the leader while a submission runs.
    running: Mutex<()>,
    times: OperationTimes,
}

#[derive(Default)]
struct Inbox {
    high: VecDeque<Submission>,
    normal: VecDeque<Submission>,
    high_in_a_row: u32,
    closed: bool,
    sleepers: usize,
    /// What the workers run now, and how many submissions have begun so far.
    current: Option<Arc<Current>>,
    begun: usize,
}

struct Current {
    submission: Submission,
    shared: Region,
    quantized: Arc<QuantizedRows>,
}

/// What a leader keeps from one submission to the next: scratch for all workers, grown to the largest demand so far.
struct SharedScratch {
    memory: Arc<HostMemory>,
    quantized: Arc<QuantizedRows>,
    quantized_bytes: usize,
}

impl SharedScratch {
    fn fit<'a>(kept: &'a mut Option<Self>, tasks: &[Planned], workers: usize) -> Result<&'a mut Self, BackendError> {
        let kept = match kept {
            Some(kept) => kept,
            None => kept.insert(Self {
                memory: Arc::new(HostMemory::new(4096)?),
                quantized: Arc::new(QuantizedRows::new()),
                quantized_bytes: 0,
            }),
        };
        for Planned { task, .. } in tasks {
            let bytes = task.shared_bytes(workers);
            if bytes > Region::scratch(&kept.memory).bytes() {
                kept.memory = Arc::new(HostMemory::new(bytes)?);
            }
            let Some((rows, cols)) = task.quantized() else { continue };
            let bytes = QuantizedRows::bytes(rows, cols);
            if bytes > kept.quantized_bytes {
                let mut quantized = QuantizedRows::new();
                quantized.reserve(rows, cols).map_err(|_| BackendError::OutOfMemory { device: DEVICE.into(), bytes })?;
                kept.quantized = Arc::new(quantized);
                kept.quantized_bytes = bytes;
            }
        }
        Ok(kept)
    }
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.high.is_empty() && self.normal.is_empty()
    }

    fn pick(&mut self) -> Option<Submission> {
        let normal_is_due = !self.normal.is_empty() && self.high_in_a_row >= HIGH_IN_A_ROW;
        if !normal_is_due && let Some(high) = self.high.pop_front() {
            self.high_in_a_row = if self.normal.is_empty() { 0 } else { self.high_in_a_row + 1 };
            return Some(high);
        }
        self.high_in_a_row = 0;
        self.normal.pop_front()
    }
}

impl Pool {
    /// # Errors
    /// [`BackendError::Failed`] where the system gives no threads.
    pub(crate) fn new(workers: usize, compute: Compute) -> Result<Self, BackendError> {
        let shared = Arc::new(Shared {
            workers,
            compute,
            inbox: Mutex::new(Inbox::default()),
            bell: Condvar::new(),
            posted: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            barrier: Barrier::new(workers),
            running: Mutex::new(()),
            times: OperationTimes::default(),
        });
        let mut pool = Self { shared, threads: Vec::with_capacity(workers) };
        for index in 0..workers {
            let shared = Arc::clone(&pool.shared);
            let body = move || if index == 0 { lead(&shared) } else { follow(&shared, index) };
            let spawned = std::thread::Builder::new().name(format!("cpu-worker-{index}")).spawn(body);
            // On an error the pool is dropped, which ends the workers that began.
            let thread = spawned.map_err(|error| BackendError::Failed {
                device: DEVICE.into(),
                why: format!("worker thread {index} of {workers} did not start: {error}; lower `threads`"),
            })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(crate) fn compute(&self) -> Compute {
        self.shared.compute
    }

    pub(crate) fn workers(&self) -> usize {
        self.shared.workers
    }

    pub(crate) fn times(&self) -> &OperationTimes {
        &self.shared.times
    }

    pub(crate) fn post(&self, submission: Submission) {
        let sleepers = {
            let mut inbox = lock(&self.shared.inbox);
            match submission.priority {
                Priority::High => inbox.high.push_back(submission),
                Priority::Normal => inbox.normal.push_back(submission),
            }
            self.shared.posted.fetch_add(1, Ordering::Release);
            inbox.sleepers
        };
        if sleepers > 0 {
            self.shared.bell.notify_all();
        }
    }

    /// Keeps submissions from beginning while the guard lives; returns once none runs.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        lock(&self.shared.running)
    }
}

impl Drop for Pool {
    /// Ends and joins the workers. Every queue holds the pool, so only submissions of dropped queues can be left.
    fn drop(&mut self) {
        lock(&self.shared.inbox).closed = true;
        self.shared.bell.notify_all();
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last handle may be dropped by a host's callback on a worker, which cannot wait for itself.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}

/// The first worker: picks submissions, takes part in them, publishes their outcome.
fn lead(shared: &Shared) {
    let mut scratch = Scratch::default();
    let mut memory = None;
    while let Some(submission) = await_submission(shared) {
        // Followers see a submission only through its barriers, so one without phases must not begin.
        if submission.queue_failed() || submission.failed() || submission.tasks.is_empty() {
            submission.complete();
            continue;
        }
        let running = lock(&shared.running);
        let memory = match SharedScratch::fit(&mut memory, &submission.tasks, shared.workers) {
            Ok(memory) => memory,
            Err(error) => {
                submission.fail(error);
                drop(running);
                submission.complete();
                continue;
            }
        };
        let (region, quantized) = (Region::scratch(&memory.memory), Arc::clone(&memory.quantized));
        let current = Arc::new(Current { submission, shared: region, quantized });
        begin(shared, Some(Arc::clone(&current)));
        work(shared, &current, (0, &mut scratch), shared.times.stopwatch());
        lock(&shared.inbox).current = None;
        drop(running);
        current.submission.complete();
    }
    // A beginning without a submission tells followers to leave.
    begin(shared, None);
}

fn begin(shared: &Shared, current: Option<Arc<Current>>) {
    let sleepers = {
        let mut inbox = lock(&shared.inbox);
        inbox.current = current;
        inbox.begun = inbox.begun.wrapping_add(1);
        shared.begun.store(inbox.begun, Ordering::Release);
        inbox.sleepers
    };
    if sleepers > 0 {
        shared.bell.notify_all();
    }
}

/// Workers other than the first.
fn follow(shared: &Shared, index: usize) {
    let mut scratch = Scratch::default();
    let mut seen = 0;
    loop {
        let begun = await_begin(shared, seen);
        let current = lock(&shared.inbox).current.clone();
        let Some(current) = current else { return };
        work(shared, &current, (index, &mut scratch), None);
        seen = begun;
    }
}

/// Blocks until there is a submission; `None` once the pool is closed and the inbox empty.
fn await_submission(shared: &Shared) -> Option<Submission> {
    idle(|| shared.posted.load(Ordering::Acquire) > 0);
    let mut inbox = lock(&shared.inbox);
    loop {
        if let Some(submission) = inbox.pick() {
            shared.posted.fetch_sub(1, Ordering::Relaxed);
            return Some(submission);
        }
        if inbox.closed {
            return None;
        }
        inbox = sleep(shared, inbox);
    }
}

/// Blocks until a submission after the `seen`th has begun; its number.
fn await_begin(shared: &Shared, seen: usize) -> usize {
    loop {
        idle(|| shared.begun.load(Ordering::Acquire) != seen);
        let mut inbox = lock(&shared.inbox);
        // A posted submission begins soon: be awake for it.
        while inbox.begun == seen && inbox.is_empty() {
            inbox = sleep(shared, inbox);
        }
        if inbox.begun != seen {
            return inbox.begun;
        }
    }
}

fn sleep<'a>(shared: &'a Shared, mut inbox: MutexGuard<'a, Inbox>) -> MutexGuard<'a, Inbox> {
    inbox.sleepers += 1;
    let mut inbox = shared.bell.wait(inbox).unwrap_or_else(PoisonError::into_inner);
    inbox.sleepers -= 1;
    inbox
}

/// Spins and yields until `ready` or [`IDLE_SPIN`] has passed.
fn idle(ready: impl Fn() -> bool) {
    let begun = Instant::now();
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        if begun.elapsed() > IDLE_SPIN {
            return;
        }
        std::thread::yield_now();
    }
}

/// One worker's part of a submission. All workers pass the same barriers whatever goes wrong.
fn work(shared: &Shared, current: &Current, (index, scratch): (usize, &mut Scratch), mut stopwatch: Option<Stopwatch<'_>>) {
    let Current { submission, shared: region, quantized } = current;
    for Planned { kind, task } in &submission.tasks {
        for phase in 0..task.phases() {
            if !submission.failed() {
                let mut worker = Worker {
                    index,
                    workers: shared.workers,
                    isa: shared.compute.isa,
                    scratch: &mut *scratch,
                    shared: region,
                    quantized,
                    barrier: &shared.barrier,
                };
                match catch_unwind(AssertUnwindSafe(|| task.run(phase, &mut worker))) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => submission.fail(error),
                    Err(panic) => submission.fail(panicked(panic.as_ref())),
                }
            }
            shared.barrier.wait();
        }
        if let Some(stopwatch) = &mut stopwatch {
            stopwatch.lap(*kind);
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> BackendError {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let why = format!("a worker panicked: {}", text.unwrap_or("no message"));
    BackendError::Failed { device: DEVICE.into(), why }
}
