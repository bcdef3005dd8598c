//! The suite over every form of the CPU backend that this machine can run, and over the strict backend.

mod draws;
mod fused;
mod suite;
mod threads;

use std::sync::Arc;

use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions, Isa, StrictBackend};
use millrace_ops::{Backend, BackendError, Priority};
use suite::backend_suite;

/// Error allowed in sums of products. f32 throughout; the longest sums have some thousand terms.
const TOLERANCE: f64 = 2e-5;

fn backend(threads: usize, compute: CpuCompute, isa: Option<Isa>) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads, compute, isa }).expect("a backend")
}

fn run_on(isa: Isa) {
    if isa.supported() {
        let backend = backend(2, CpuCompute::Fast, Some(isa));
        backend_suite(&backend, &backend, TOLERANCE);
    } else {
        eprintln!("skipped: this machine has no {isa}");
    }
}

#[test]
fn scalar() {
    run_on(Isa::Scalar);
}

#[test]
fn avx2() {
    run_on(Isa::Avx2);
}

#[test]
fn avx_vnni() {
    run_on(Isa::AvxVnni);
}

#[test]
fn avx512() {
    run_on(Isa::Avx512);
}

#[test]
fn avx512_bf16() {
    run_on(Isa::Avx512Bf16);
}

#[test]
fn avx512_fp16() {
    run_on(Isa::Avx512Fp16);
}

#[test]
fn amx() {
    run_on(Isa::Amx);
}

#[test]
fn reference() {
    let backend = backend(1, CpuCompute::Reference, None);
    backend_suite(&backend, &backend, 5e-6);
}

#[test]
fn strict() {
    let inner: Arc<dyn Backend> = Arc::new(backend(3, CpuCompute::Fast, None));
    backend_suite(&StrictBackend::new(Arc::clone(&inner)), inner.as_ref(), TOLERANCE);
}

#[test]
fn strict_forbids_reads_and_runs_late() {
    let inner: Arc<dyn Backend> = Arc::new(backend(1, CpuCompute::Fast, None));
    let strict = StrictBackend::with_delay(Arc::clone(&inner), std::time::Duration::from_millis(50));
    let buffer = strict.allocate(8).expect("memory");
    let (sent, woken) = std::sync::mpsc::channel();
    let mut queue = strict.queue(
        Priority::High,
        Arc::new(move || {
            let _ = sent.send(());
        }),
    );
    queue.enqueue(suite::upload(&buffer, vec![1; 8]));
    let ticket = queue.submit();
    let mut byte = [0];
    assert!(matches!(queue.read(&buffer, 0, &mut byte), Err(BackendError::ReadForbidden { .. })));
    inner.queue(Priority::Normal, Arc::new(|| {})).read(&buffer, 0, &mut byte).expect("the inner backend reads");
    assert_eq!((queue.completed(), byte), (0, [0]), "nothing has run yet");
    woken.recv_timeout(std::time::Duration::from_secs(20)).expect("it runs by itself after the delay");
    assert_eq!(queue.completed(), ticket);
    queue.enqueue(suite::upload(&buffer, vec![2; 8]));
    let ticket = queue.submit();
    queue.wait(ticket).expect("waiting runs it at once");
    assert_eq!(queue.completed(), 2);
}
