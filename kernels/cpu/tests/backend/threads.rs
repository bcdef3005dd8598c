//! The pool as a host sees it: results that do not depend on threads, queues beside each other, order and priority.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions, Isa, available_threads};
use millrace_ops::{
    Activations, Backend, BackendError, KvFormat, KvLayout, Linear, LinearMode, Op, Priority, RmsNorm, RowOrder, SamplerParams,
    TensorData, TensorView, WeightFormat,
};

use crate::backend;
use crate::suite::attention::build;
use crate::suite::experts::layer_bits;
use crate::suite::latent::Shape;
use crate::suite::sampling::sample;
use crate::suite::{Rig, World, latent, select, upload};

/// Bits of everything that is summed or cut: attention over long and short contexts, products, draws.
fn results(threads: usize) -> Vec<u32> {
    let backend = backend(threads, CpuCompute::Fast, None);
    let mut rig = Rig::new(&backend, &backend, 0.0);
    let mut bits = Vec::new();
    for format in [KvFormat::Bf16, KvFormat::Fp8] {
        for shapes in [&[(2500, 1)][..], &[(0, 200), (900, 1), (300, 1), (40, 7)]] {
            let built = build(&mut rig, KvLayout::grouped_query(1, 3, 64, 32, format), 9, shapes);
            rig.run([Op::Attend(built.op.clone())]);
            bits.extend(rig.read_words(&built.op.out));
        }
    }
    let shape = Shape { heads: 64, latent: 128, rotary: 32 };
    for format in [KvFormat::Bf16, KvFormat::Fp8] {
        for shapes in [&[(5000, 1)][..], &[(0, 50), (900, 1), (300, 1), (40, 7)], &[(150, 1), (120, 3)]] {
            let built = latent::build(&mut rig, latent::layout(shape, 64, format), shape, shapes);
            rig.run([Op::AttendLatent(built.op.clone())]);
            bits.extend(rig.read_words(&built.op.out));
            let built = select::build_any(&mut rig, format, shapes);
            rig.run([Op::SelectTokens(built.op.clone())]);
            bits.extend(rig.read_words(&built.op.selection.tokens));
        }
    }
    for (rows, format) in [(1, WeightFormat::Int4), (3, WeightFormat::Int8), (70, WeightFormat::Int8), (9, WeightFormat::Bf16)] {
        let (cols, width) = (96, 200);
        let values: Vec<u8> = rig.random.floats(cols * width).iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = TensorView { name: "w", rows: width, cols, data: TensorData::F32(&values), order: RowOrder::AsStored };
        let weight = backend.prepare_weight(&[view], format, Activations::Coarse).expect("a weight");
        let x = rig.random.floats(rows * cols);
        let (x, norm, out) = (rig.floats(&x), rig.floats(&vec![0.7; cols]), rig.output(rows * width));
        rig.run([
            Op::RmsNorm(RmsNorm { x: x.clone(), weight: norm, out: x.clone(), rows, width: cols, eps: 1e-5 }),
            Op::Linear(Linear { x, weight, bias: None, out: out.clone(), rows, mode: LinearMode::Store }),
        ]);
        bits.extend(rig.read_words(&out));
    }
    for format in [WeightFormat::Int4, WeightFormat::Bf16] {
        bits.extend(layer_bits(&mut rig, format, &[(0, 1), (0, 30)]).concat());
    }
    let world = World::new(&mut rig, KvLayout::grouped_query(1, 1, 16, 16, KvFormat::F32), &[(0, 1), (0, 1)]);
    let logits = rig.random.floats(2 * 30_000);
    for seed in 0..50 {
        let make = |segment| SamplerParams { temperature: 0.9, top_p: 1.0, seed, segment, ..SamplerParams::default() };
        bits.extend(sample(&mut rig, &world, &logits, &[make(0), make(1)]).iter().map(|record| record.token()));
    }
    bits
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let one = results(1);
    for threads in 2..=4 {
        let several = results(threads);
        let differs = one.iter().zip(&several).position(|(a, b)| a != b);
        assert_eq!((differs, one.len()), (None, several.len()), "{threads} threads");
    }
}

/// Attention over two sequences, on a queue of one kind.
fn attention(isa: Isa, priority: Priority, format: KvFormat) -> Vec<u32> {
    let backend = backend(2, CpuCompute::Fast, Some(isa));
    let mut rig = Rig::new(&backend, &backend, 0.0).on(priority);
    let built = build(&mut rig, KvLayout::grouped_query(1, 3, 64, 32, format), 9, &[(600, 1), (10, 1)]);
    rig.run([Op::Attend(built.op.clone())]);
    rig.read_words(&built.op.out)
}

/// Tiles cost more than they save where a sequence has one row, so queues of decode give what vectors give.
#[test]
fn queues_of_few_rows_use_no_tiles() {
    if !Isa::Amx.supported() {
        return eprintln!("skipped: this machine has no {}", Isa::Amx);
    }
    let of = |isa, priority| attention(isa, priority, KvFormat::Bf16);
    assert_eq!(of(Isa::Amx, Priority::High), of(Isa::Avx512, Priority::High));
    assert_ne!(of(Isa::Amx, Priority::Normal), of(Isa::Avx512, Priority::Normal));
}

/// Where sequences have many rows, codes are widened once for all of them, so queues of prefill give what vectors give.
#[test]
fn queues_of_few_rows_read_fp8_pages_by_dot_products() {
    for isa in [Isa::Avx512Bf16, Isa::Amx] {
        if !isa.supported() {
            eprintln!("skipped: this machine has no {isa}");
            continue;
        }
        let of = |isa, priority| attention(isa, priority, KvFormat::Fp8);
        assert_ne!(of(isa, Priority::High), of(Isa::Avx512, Priority::High), "{isa}");
        assert_eq!(of(isa, Priority::Normal), of(Isa::Avx512, Priority::Normal), "{isa}");
    }
}

/// Contexts whose parts would take more shared scratch than there may be: rows are then worked on whole.
#[test]
fn work_too_large_to_be_cut_gives_the_same() {
    let results = |threads| {
        let backend = backend(threads, CpuCompute::Fast, None);
        let mut rig = Rig::new(&backend, &backend, 0.0);
        // 30 rows of 32 spans of 1024 heads: 71 MB, of at most 64 MiB.
        let shape = Shape { heads: 1024, latent: 16, rotary: 0 };
        let built = latent::build(&mut rig, latent::layout(shape, 64, KvFormat::Bf16), shape, &[(4090, 1); 30]);
        rig.run([Op::AttendLatent(built.op.clone())]);
        let mut bits = rig.read_words(&built.op.out);
        // 31 rows of 550,000 scores: 68 MB, of at most 64 MiB.
        let built = select::build_narrow(&mut rig, KvFormat::Bf16, &[(550_000, 31)]);
        rig.run([Op::SelectTokens(built.op.clone())]);
        bits.extend(rig.read_words(&built.op.selection.tokens));
        bits
    };
    let (one, many) = (results(1), results(16));
    assert_eq!((one.iter().zip(&many).position(|(a, b)| a != b), one.len()), (None, many.len()));
}

/// A queue whose callback keeps the pool's first worker until the sender speaks, so that others can queue up meanwhile.
fn hold(backend: &CpuBackend) -> (Box<dyn millrace_ops::Queue>, Sender<()>, Receiver<()>) {
    let ((go, wait), (tell, held)) = (channel::<()>(), channel());
    let wait = Mutex::new(wait);
    let wake = Arc::new(move || {
        let _ = tell.send(());
        let _ = wait.lock().map(|wait| wait.recv());
    });
    let mut queue = backend.queue(Priority::High, wake);
    queue.submit();
    (queue, go, held)
}

#[test]
fn high_goes_first_but_normal_is_not_starved() {
    let backend = backend(2, CpuCompute::Fast, None);
    let (_queue, go, held) = hold(&backend);
    held.recv().expect("the pool is held");
    let order = Arc::new(Mutex::new(String::new()));
    let queue = |priority, letter| {
        let order = Arc::clone(&order);
        backend.queue(priority, Arc::new(move || order.lock().expect("order").push(letter)))
    };
    let (mut normal, mut high) = (queue(Priority::Normal, 'n'), queue(Priority::High, 'h'));
    for _ in 0..3 {
        normal.submit();
    }
    for _ in 0..10 {
        high.submit();
    }
    drop(go);
    normal.wait(3).expect("normal submissions");
    high.wait(10).expect("high submissions");
    // The last callback may still run when its wait returns.
    while order.lock().expect("order").len() < 13 {
        std::thread::yield_now();
    }
    assert_eq!(order.lock().expect("order").as_str(), "hhhhhhhhnhhnn");
}

#[test]
fn many_queues_from_many_threads_all_complete_in_order() {
    let backend = backend(3, CpuCompute::Fast, None);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let backend = &backend;
            scope.spawn(move || {
                let priority = if thread % 2 == 0 { Priority::High } else { Priority::Normal };
                let seen = Arc::new(Mutex::new(0));
                let counter = Arc::clone(&seen);
                let mut queue = backend.queue(priority, Arc::new(move || *counter.lock().expect("counter") += 1));
                let buffer = backend.allocate(4).expect("memory");
                for round in 1..=200u32 {
                    for step in [7, round] {
                        queue.enqueue(upload(&buffer, step.to_le_bytes().to_vec()));
                    }
                    let ticket = queue.submit();
                    assert_eq!(ticket, u64::from(round));
                    if round % 3 == 0 {
                        queue.wait(ticket).expect("a submission");
                        assert!(queue.completed() >= ticket);
                    }
                }
                let mut bytes = [0; 4];
                queue.read(&buffer, 0, &mut bytes).expect("a read waits for all submissions");
                assert_eq!((u32::from_le_bytes(bytes), queue.completed()), (200, 200));
                while *seen.lock().expect("counter") < 200 {
                    std::thread::yield_now();
                }
            });
        }
    });
}

#[test]
fn a_queue_outlives_its_backend() {
    let backend = backend(2, CpuCompute::Fast, None);
    let buffer = backend.allocate(4).expect("memory");
    let mut queue = backend.queue(Priority::Normal, Arc::new(|| {}));
    drop(backend);
    queue.enqueue(upload(&buffer, vec![1, 2, 3, 4]));
    let ticket = queue.submit();
    queue.wait(ticket).expect("the pool lives as long as its queues");
    assert!(matches!(queue.wait(ticket + 1), Err(BackendError::Invalid { .. })), "nothing to wait for");
    // Dropped with work under way: the pool finishes it and ends.
    for _ in 0..50 {
        queue.enqueue(upload(&buffer, vec![0; 4]));
        queue.submit();
    }
    drop(queue);
}

#[test]
fn options_out_of_range_are_refused() {
    for threads in [0, 1 << 20] {
        let options = CpuOptions { threads, compute: CpuCompute::Fast, isa: None };
        assert!(matches!(CpuBackend::new(options), Err(BackendError::Invalid { .. })), "{threads} threads");
    }
    assert!(available_threads() >= 1);
    let backend = backend(1, CpuCompute::Fast, None);
    assert!(matches!(backend.allocate(usize::MAX), Err(BackendError::OutOfMemory { .. })));
    assert!(matches!(backend.allocate(usize::MAX / 2), Err(BackendError::OutOfMemory { .. })));
}
