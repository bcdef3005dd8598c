//! Times the linear layers of a 135M-parameter Llama (30 layers, width 576, feed-forward 1536) in every weight format:
//! read bandwidth with one row of activations, tokens per second with more. Weights are random; nothing else is timed.
//!
//! `cargo run --release -p millrace-cpu --example linear_bench [-- FORMAT..]` with FORMAT of int4, int8, int8-q8, bf16, fp8, f32, and
//! of scalar, avx2, avxvnni, avx512, avx512bf16, avx512fp16, amx for other instruction sets than the best.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use millrace_cpu::Isa;
use millrace_cpu::linear::{
    CpuCompute, LinearTask, PackedWeight, QuantizedRows, REDUNDANT_ROWS, StepRows, multiply, prefetch, quantize,
};
use millrace_ops::{LinearMode, RowOrder, TensorData, TensorView, WeightFormat, WeightMemory};

const LAYERS: usize = 30;
/// (rows, cols) of the fused q/k/v, the output, the fused gate/up and the down projection.
const SHAPES: [(usize, usize); 4] = [(960, 576), (576, 576), (3072, 576), (576, 1536)];
const MAX_ROWS: usize = 512;
const WIDEST: usize = 3072;

struct Case {
    name: &'static str,
    format: WeightFormat,
    eight_bit: bool,
}

const CASES: [Case; 6] = [
    Case { name: "int4", format: WeightFormat::Int4, eight_bit: false },
    Case { name: "int8", format: WeightFormat::Int8, eight_bit: false },
    Case { name: "int8-q8", format: WeightFormat::Int8, eight_bit: true },
    Case { name: "bf16", format: WeightFormat::Bf16, eight_bit: true },
    Case { name: "fp8", format: WeightFormat::Fp8, eight_bit: true },
    Case { name: "f32", format: WeightFormat::F32, eight_bit: true },
];

/// All weights and the shared activations of a pass. `out` is written by disjoint panel ranges.
struct Model {
    weights: Vec<PackedWeight>,
    x: Vec<f32>,
    out: Vec<f32>,
    pack_seconds: f64,
}

fn random_blocks(rows: usize, cols: usize, eight_bit: bool, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    let mut bytes = Vec::new();
    for _ in 0..rows * cols / 32 {
        // f16 0.01, and -0.05 as the minimum of 4-bit blocks.
        bytes.extend(0x211fu16.to_le_bytes());
        if !eight_bit {
            bytes.extend(0xaa66u16.to_le_bytes());
        }
        bytes.extend(std::iter::repeat_with(&mut next).take(if eight_bit { 32 } else { 16 }));
    }
    bytes
}

fn model(case: &Case, isa: Isa) -> Model {
    let mut pack_seconds = 0.0;
    let weights = (0..LAYERS * SHAPES.len()).map(|i| {
        let (rows, cols) = SHAPES[i % SHAPES.len()];
        let bytes = random_blocks(rows, cols, case.eight_bit, i as u64 + 1);
        let data = if case.eight_bit { TensorData::Q8_0(&bytes) } else { TensorData::Q4_1(&bytes) };
        let view = TensorView { name: "w", rows, cols, data, order: RowOrder::AsStored };
        let start = Instant::now();
        let weight = PackedWeight::pack(&[view], case.format, CpuCompute::Fast, isa);
        pack_seconds += start.elapsed().as_secs_f64();
        weight.expect("these shapes can be packed")
    });
    let x = (0..MAX_ROWS * WIDEST).map(|i| ((i * 7919) % 2003) as f32 / 1001.0 - 1.0).collect();
    let weights = weights.collect();
    Model { weights, x, out: vec![0.0; MAX_ROWS * WIDEST + 16], pack_seconds }
}

fn barrier(arrived: &AtomicUsize, until: usize) {
    arrived.fetch_add(1, Ordering::AcqRel);
    let mut spins = 0u32;
    while arrived.load(Ordering::Acquire) < until {
        spins += 1;
        if spins.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// Seconds of one pass over all weights with `rows` rows, the best of several runs.
fn time(model: &mut Model, rows: usize, threads: usize) -> f64 {
    let passes = (128 / rows).clamp(1, 40);
    (0..5).map(|_| run(model, rows, threads, passes)).fold(f64::INFINITY, f64::min) / passes as f64
}

fn run(model: &mut Model, rows: usize, threads: usize, passes: usize) -> f64 {
    // As the engine's buffers are, and unlike a vector's: on a cache line.
    let (x, out) = (model.x.as_ptr(), model.out.as_mut_ptr());
    let out = out.wrapping_add(out.align_offset(64));
    let tasks: Vec<LinearTask<'_>> = model
        .weights
        .iter()
        .map(|weight| {
            let (x_stride, out_stride) = (weight.cols(), weight.rows());
            let form = weight.form(if rows == 1 { StepRows::Few } else { StepRows::Many });
            LinearTask { weight, form, x, x_stride, rows, quantized_row: 0, out, out_stride, bias: None, mode: LinearMode::Store }
        })
        .collect();
    let mut shared = QuantizedRows::new();
    let passes_of_a_row = tasks.iter().map(LinearTask::passes).max().unwrap_or(1);
    shared.reserve(rows * passes_of_a_row, WIDEST).expect("scratch fits in memory");
    let arrived = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for id in 0..threads {
            let (tasks, shared, arrived) = (&tasks, &shared, &arrived);
            scope.spawn(move || worker((tasks, passes), shared, arrived, (id, threads)));
        }
    });
    start.elapsed().as_secs_f64()
}

fn worker(
    (tasks, passes): (&[LinearTask<'_>], usize),
    shared: &QuantizedRows,
    arrived: &AtomicUsize,
    (id, threads): (usize, usize),
) {
    let mut own = QuantizedRows::new();
    let passes_of_a_row = tasks.iter().map(LinearTask::passes).max().unwrap_or(1);
    own.reserve(REDUNDANT_ROWS * passes_of_a_row, WIDEST).expect("scratch fits in memory");
    let mut epoch = 0;
    for task in std::iter::repeat_n(tasks, passes).flatten() {
        let redundant = task.rows <= REDUNDANT_ROWS;
        let scratch = if redundant { &own } else { shared };
        let share = if redundant { 0..task.rows } else { task.rows * id / threads..task.rows * (id + 1) / threads };
        if task.form.in_scratch() {
            // SAFETY: `x` holds 512 rows; shares are disjoint or the scratch is this worker's own.
            unsafe { quantize(task, share, scratch) };
            if !redundant {
                epoch += threads;
                barrier(arrived, epoch);
            }
        }
        // As the pool's workers do, but for helping each other.
        let pairs = task.weight.panel_count().div_ceil(2);
        let panels = pairs * id / threads * 2..(pairs * (id + 1) / threads * 2).min(task.weight.panel_count());
        prefetch(task.weight, panels.start);
        // SAFETY: `out` holds 512 rows of the widest layer; shares are disjoint; rows are quantized.
        unsafe { multiply(task, panels, scratch) };
        epoch += threads;
        barrier(arrived, epoch);
    }
}

fn main() {
    let named = |text: &str| match text {
        "scalar" => Some(Isa::Scalar),
        "avx2" => Some(Isa::Avx2),
        "avxvnni" => Some(Isa::AvxVnni),
        "avx512" => Some(Isa::Avx512),
        "avx512bf16" => Some(Isa::Avx512Bf16),
        "avx512fp16" => Some(Isa::Avx512Fp16),
        "amx" => Some(Isa::Amx),
        _ => None,
    };
    let (sets, wanted): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|text| named(text).is_some());
    let isa = sets.last().and_then(|text| named(text)).unwrap_or_else(Isa::detect);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!("{isa}; linear layers only, {LAYERS} layers");
    println!("format          MB pack ms  threads | 1 row GB/s    4 tok/s    8 tok/s   32 tok/s  512 tok/s");
    for case in CASES.iter().filter(|case| wanted.is_empty() || wanted.iter().any(|w| w == case.name)) {
        let mut model = model(case, isa);
        let bytes: usize = model.weights.iter().map(PackedWeight::bytes).sum();
        let (megabytes, pack_ms) = (bytes as f64 / 1e6, model.pack_seconds * 1e3);
        for threads in [1, 2].into_iter().filter(|&threads| threads <= cores) {
            let single = bytes as f64 / time(&mut model, 1, threads) / 1e9;
            let [four, eight, many, prefill] = [4, 8, 32, 512].map(|rows| rows as f64 / time(&mut model, rows, threads));
            print!("{:8} {megabytes:9.1} {pack_ms:7.0} {threads:8} | ", case.name);
            println!("{single:10.1} {four:10.0} {eight:10.0} {many:10.0} {prefill:10.0}");
        }
    }
}
