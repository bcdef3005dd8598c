//! Tasks that go wrong: their queue fails, nothing hangs, others go on.

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::CpuCompute;
use crate::isa::Isa;
use crate::pool::Compute;
use crate::task::Worker;

/// Four items per phase; what happens to the third one of the second phase is the test's.
struct Faulty {
    fault: fn() -> Result<(), BackendError>,
    items: Arc<AtomicUsize>,
}

impl Task for Faulty {
    fn phases(&self) -> usize {
        3
    }

    fn run(&self, phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        while let Some(range) = worker.take(1, 4) {
            self.items.fetch_add(1, Ordering::Relaxed);
            if phase == 1 && range.start == 2 {
                (self.fault)()?;
            }
        }
        Ok(())
    }
}

fn queue(pool: &Arc<Pool>) -> CpuQueue {
    CpuQueue::new(Arc::clone(pool), Priority::Normal, Arc::new(|| {}))
}

fn run(queue: &mut CpuQueue, fault: fn() -> Result<(), BackendError>) -> (Result<(), BackendError>, usize) {
    let items = Arc::new(AtomicUsize::new(0));
    for fault in [fault, || Ok(())] {
        let kind = OperationKind { with: None, name: "faulty", weight: None };
        queue.list.collected_mut().tasks.push(Planned { kind, task: Arc::new(Faulty { fault, items: Arc::clone(&items) }) });
    }
    let ticket = queue.submit();
    let outcome = queue.wait(ticket);
    (outcome, items.load(Ordering::Relaxed))
}

#[test]
fn a_panic_fails_its_queue_and_no_other() {
    for workers in 1..=4 {
        let compute = Compute { isa: Isa::Scalar, mode: CpuCompute::Fast, priority: Priority::Normal };
        let pool = Arc::new(Pool::new(workers, compute).unwrap());
        let (mut good, mut bad) = (queue(&pool), queue(&pool));
        assert_eq!(run(&mut good, || Ok(())).1, 24);
        let (outcome, items) = run(&mut bad, || panic!("made up for the test"));
        let error = outcome.unwrap_err();
        assert!(matches!(&error, BackendError::Failed { why, .. } if why.contains("made up")), "{error}");
        assert!((7..=8).contains(&items), "{items} items: later phases do not run");
        let (outcome, items) = run(&mut bad, || Ok(()));
        assert!(outcome.is_err() && items == 0, "a failed queue stays failed");
        assert!(matches!(bad.read_records(&buffer(), &mut [StepRecord::default()]), Err(BackendError::Failed { .. })));
        let (outcome, items) = run(&mut good, || Ok(()));
        assert!(outcome.is_ok() && items == 24, "its neighbour goes on");
    }
}

#[test]
fn an_error_is_reported_as_it_is() {
    let compute = Compute { isa: Isa::Scalar, mode: CpuCompute::Fast, priority: Priority::Normal };
    let pool = Arc::new(Pool::new(2, compute).unwrap());
    let mut queue = queue(&pool);
    let (outcome, _) = run(&mut queue, || Err(Arguments { operation: "faulty" }.invalid("made up")));
    assert!(matches!(outcome, Err(BackendError::Invalid { operation: "faulty", .. })));
}

#[test]
fn a_panicking_callback_takes_no_worker_down() {
    let compute = Compute { isa: Isa::Scalar, mode: CpuCompute::Fast, priority: Priority::Normal };
    let pool = Arc::new(Pool::new(2, compute).unwrap());
    let mut bad = CpuQueue::new(Arc::clone(&pool), Priority::High, Arc::new(|| panic!("made up for the test")));
    for _ in 0..3 {
        assert!(run(&mut bad, || Ok(())).0.is_ok());
    }
}

fn buffer() -> Buffer {
    Buffer::new(Arc::new(crate::memory::HostMemory::new(8).unwrap()))
}
