//! A pool without work parks. Alone in its process, since it measures the process's CPU time.

use std::sync::Arc;
use std::time::Duration;

use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
use millrace_ops::{Backend, Op, Priority, Upload};

/// User and system time of this process so far.
fn cpu_time() -> Duration {
    // SAFETY: `usage` is plain data that the call fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec.unsigned_abs(), t.tv_usec.unsigned_abs() as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[test]
fn an_idle_pool_uses_no_cpu_and_wakes_up() {
    let backend = CpuBackend::new(CpuOptions { threads: 4, compute: CpuCompute::Fast, isa: None }).expect("a backend");
    let buffer = backend.allocate(64).expect("memory");
    let mut queue = backend.queue(Priority::High, Arc::new(|| {}));
    for round in 0..3 {
        for _ in 0..50 {
            queue.enqueue(Op::Upload(Upload { to: buffer.clone(), offset: 0, bytes: vec![1; 64] }));
        }
        let ticket = queue.submit();
        queue.wait(ticket).expect("parked workers wake up");
        // Long enough for workers to give up spinning even on a busy machine.
        std::thread::sleep(Duration::from_millis(50));
        let before = cpu_time();
        std::thread::sleep(Duration::from_millis(200));
        let used = cpu_time() - before;
        assert!(used < Duration::from_millis(20), "round {round}: {used:?} of CPU time in 200 ms without work");
    }
}
