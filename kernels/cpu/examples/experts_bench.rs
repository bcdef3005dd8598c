//! Times a mixture-of-experts layer of the CPU backend: 64 experts of 2048 -> 2 x 768 -> 2048, 8 per row. Numbers are random;
//! knows no model files.
//!
//! `cargo run --release -p millrace-cpu --example experts_bench -- [threads] [isa]`
//!
//! `layer`: routing, dispatch, both products, the gate and the combination, with random choices, which load experts unevenly.
//! `products`: the two products alone, each expert with as many slots as any other, beside plain linear layers over the same
//! experts' weights, stacked, with the same number of rows: the same bytes read and the same multiplications. Times are medians
//! of submissions taken in turns, so that other work on the machine meets all of them alike; in brackets those of the process's CPU
//! time divided by the threads, which say more on a busy machine.

use std::sync::Arc;
use std::time::Instant;

use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions, Isa, available_threads};
use millrace_ops::{
    Activations, Backend, Buffer, CombineRows, DispatchRows, ExpertBuffers, Linear, LinearExperts, LinearMode, Op, Priority,
    Queue, RouteRows, RouteRule, RouteScoring, RowOrder, ScaleData, SiluMul, TensorData, TensorView, Upload, Weight,
    WeightFormat,
};

const EXPERTS: usize = 64;
const TOP_K: usize = 8;
/// Stacks of `TOP_K` experts; a balanced row takes one of them whole.
const STACKS: usize = EXPERTS / TOP_K;
const HIDDEN: usize = 2048;
const INNER: usize = 768;
const MAX_ROWS: usize = 128;
const MAX_SLOTS: usize = MAX_ROWS * TOP_K;
/// Columns of a row of the plain products.
const STACK_GATES: usize = TOP_K * 2 * INNER;
const STACK_DOWNS: usize = TOP_K * HIDDEN;

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().map_or(Ok(available_threads()), |text| text.parse())?;
    let isa = match arguments.next().as_deref() {
        None | Some("best") => None,
        Some("scalar") => Some(Isa::Scalar),
        Some("avx2") => Some(Isa::Avx2),
        Some("avxvnni") => Some(Isa::AvxVnni),
        Some("avx512") => Some(Isa::Avx512),
        Some("avx512bf16") => Some(Isa::Avx512Bf16),
        Some("avx512fp16") => Some(Isa::Avx512Fp16),
        Some("amx") => Some(Isa::Amx),
        Some(other) => {
            return Err(format!(
                "`{other}` is no instruction set; use best, scalar, avx2, avx512, avx512bf16, avx512fp16 or amx"
            )
            .into());
        }
    };
    let backend = CpuBackend::new(CpuOptions { threads, compute: CpuCompute::Fast, isa })?;
    println!("{:?}", backend.describe());
    println!("format  rows | layer ms               tokens/s | products ms          plain ms             plain/products    GB/s");
    for format in [WeightFormat::Int4, WeightFormat::Bf16] {
        let mut bench = Bench::new(&backend, format)?;
        for rows in [1, 8, 32, 128] {
            bench.report(format, rows)?;
        }
    }
    Ok(())
}

/// Weights of the experts one by one, and of stacks of them.
#[derive(Default)]
struct Weights {
    gates: Vec<Weight>,
    downs: Vec<Weight>,
    stacked_gates: Vec<Weight>,
    stacked_downs: Vec<Weight>,
}

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32
    }

    /// About uniform in -1..1.
    fn float(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 31) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.float().to_le_bytes()).collect()
    }
}

/// A checkpoint's bytes: INT4 codes with BF16 scales in groups of 32, or BF16.
struct Tensor {
    rows: usize,
    cols: usize,
    values: Vec<u8>,
    scales: Vec<u8>,
}

impl Tensor {
    fn new(rows: usize, cols: usize, format: WeightFormat, random: &mut Random) -> Self {
        let count = rows * cols;
        // 0x3c24 is 0.01 in BF16.
        let (words, scales) = match format {
            WeightFormat::Int4 => (count / 8, [0x24, 0x3c].repeat(count / 32)),
            _ => (0, Vec::new()),
        };
        let mut values: Vec<u8> = (0..words).flat_map(|_| (random.bits() as u32).to_le_bytes()).collect();
        if words == 0 {
            values = (0..count).flat_map(|_| [random.bits() as u8, 0x3c]).collect();
        }
        Self { rows, cols, values, scales }
    }

    fn view(&self) -> TensorView<'_> {
        let data = match self.scales.as_slice() {
            [] => TensorData::Bf16(&self.values),
            scales => TensorData::Int4Group { packed: &self.values, scales: ScaleData::Bf16(scales), group: 32 },
        };
        TensorView { name: "w", rows: self.rows, cols: self.cols, data, order: RowOrder::AsStored }
    }
}

impl Weights {
    fn new(backend: &CpuBackend, format: WeightFormat) -> Result<Self, AnyError> {
        let mut random = Random(1);
        let mut weights = Self::default();
        for _ in 0..STACKS {
            for (rows, cols) in [(2 * INNER, HIDDEN), (HIDDEN, INNER)] {
                let tensors: Vec<Tensor> = (0..TOP_K).map(|_| Tensor::new(rows, cols, format, &mut random)).collect();
                let views: Vec<TensorView<'_>> = tensors.iter().map(Tensor::view).collect();
                let (single, stacked) = match cols {
                    HIDDEN => (&mut weights.gates, &mut weights.stacked_gates),
                    _ => (&mut weights.downs, &mut weights.stacked_downs),
                };
                for view in &views {
                    single.push(backend.prepare_weight(&[*view], format, Activations::Coarse)?);
                }
                stacked.push(backend.prepare_weight(&views, format, Activations::Coarse)?);
            }
        }
        Ok(weights)
    }
}

struct Bench {
    threads: usize,
    queue: Box<dyn Queue>,
    weights: Weights,
    gates: Arc<[Weight]>,
    downs: Arc<[Weight]>,
    routing: ExpertBuffers,
    /// Logits of random choices, several times, and of balanced ones that begin with each stack.
    random_logits: Vec<Buffer>,
    balanced_logits: Vec<Buffer>,
    x: Buffer,
    slots: [Buffer; 4],
    plain: [Buffer; 2],
}

impl Bench {
    fn new(backend: &CpuBackend, format: WeightFormat) -> Result<Self, AnyError> {
        let weights = Weights::new(backend, format)?;
        let mut queue = backend.queue(Priority::Normal, Arc::new(|| {}));
        let mut upload = |bytes: Vec<u8>| -> Result<Buffer, AnyError> {
            let to = backend.allocate(bytes.len())?;
            queue.enqueue(Op::Upload(Upload { to: to.clone(), offset: 0, bytes }));
            Ok(to)
        };
        let mut random = Random(2);
        let random_logits = (0..STACKS).map(|_| upload(random.floats(MAX_ROWS * EXPERTS))).collect::<Result<_, _>>()?;
        let mut balanced = |first: usize| {
            let chosen = |i: usize| (first + i / EXPERTS) % STACKS == i % EXPERTS / TOP_K;
            let logit = |i: usize| if chosen(i) { 1.0f32 } else { 0.0 };
            upload((0..MAX_ROWS * EXPERTS).flat_map(|i| logit(i).to_le_bytes()).collect())
        };
        let balanced_logits = (0..STACKS).map(&mut balanced).collect::<Result<_, _>>()?;
        let x = upload(random.floats(MAX_ROWS * HIDDEN))?;
        let floats = |count: usize| backend.allocate(count * 4);
        let routing = ExpertBuffers {
            experts: EXPERTS,
            top_k: TOP_K,
            ids: floats(MAX_SLOTS)?,
            weights: floats(MAX_SLOTS)?,
            slots: floats(MAX_SLOTS)?,
            slot_rows: floats(MAX_SLOTS)?,
            starts: floats(EXPERTS + 1)?,
        };
        let slots = [
            floats(MAX_SLOTS * HIDDEN)?,
            floats(MAX_SLOTS * 2 * INNER)?,
            floats(MAX_SLOTS * INNER)?,
            floats(MAX_SLOTS * HIDDEN)?,
        ];
        let plain = [floats(MAX_ROWS * STACK_GATES)?, floats(MAX_ROWS * STACK_DOWNS)?];
        let (gates, downs) = (weights.gates.clone().into(), weights.downs.clone().into());
        let threads = backend.describe().threads;
        Ok(Self { threads, queue, weights, gates, downs, routing, random_logits, balanced_logits, x, slots, plain })
    }

    fn route(&self, rows: usize, logits: &Buffer) -> Vec<Op> {
        let rule = RouteRule { scoring: RouteScoring::Softmax, groups: 1, top_groups: 1, normalize: true, scale: 1.0 };
        let (x, by, [sent, ..]) = (self.x.clone(), self.routing.clone(), self.slots.clone());
        vec![
            Op::RouteRows(RouteRows { logits: logits.clone(), bias: None, rule, to: by.clone(), rows }),
            Op::DispatchRows(DispatchRows { x, by, out: sent, rows, width: HIDDEN }),
        ]
    }

    fn products(&self, rows: usize) -> [Op; 2] {
        let [sent, gated, inner, back] = self.slots.clone();
        let by = self.routing.clone();
        let (gates, downs) = (Arc::clone(&self.gates), Arc::clone(&self.downs));
        [
            Op::LinearExperts(LinearExperts { x: sent, weights: gates, by: by.clone(), out: gated, rows }),
            Op::LinearExperts(LinearExperts { x: inner, weights: downs, by, out: back, rows }),
        ]
    }

    fn layer(&self, rows: usize, turn: usize) -> Vec<Op> {
        let [_, gated, inner, back] = self.slots.clone();
        let [first, second] = self.products(rows);
        let gate = SiluMul { x: gated, out: inner, rows: rows * TOP_K, width: INNER };
        let combine = CombineRows { x: back, by: self.routing.clone(), out: self.x.clone(), rows, width: HIDDEN };
        let mut ops = self.route(rows, &self.random_logits[turn % STACKS]);
        ops.extend([first, Op::SiluMul(gate), second, Op::CombineRows(combine)]);
        ops
    }

    /// The same products as linear layers over stacks of experts, from stack `turn` on.
    fn plain(&self, rows: usize, turn: usize) -> Vec<Op> {
        let (stacks, rows) = if rows < STACKS { (rows, 1) } else { (STACKS, rows / STACKS) };
        let mut ops = Vec::new();
        let [gated, back] = &self.plain;
        for weights in [&self.weights.stacked_gates, &self.weights.stacked_downs] {
            for stack in 0..stacks {
                let weight = weights[(turn + stack) % STACKS].clone();
                let (x, out) = if weight.cols() == HIDDEN { (&self.x, gated) } else { (gated, back) };
                let (x, out) = (x.clone(), out.clone());
                ops.push(Op::Linear(Linear { x, weight, bias: None, out, rows, mode: LinearMode::Store }));
            }
        }
        ops
    }

    fn time(&mut self, ops: Vec<Op>) -> Result<Time, AnyError> {
        ops.into_iter().for_each(|op| self.queue.enqueue(op));
        let (start, used) = (Instant::now(), cpu_ms());
        let ticket = self.queue.submit();
        self.queue.wait(ticket)?;
        Ok(Time { wall: start.elapsed().as_secs_f64() * 1e3, cpu: (cpu_ms() - used) / self.threads as f64 })
    }

    fn report(&mut self, format: WeightFormat, rows: usize) -> Result<(), AnyError> {
        let (mut layers, mut products, mut plains) = (Vec::new(), Vec::new(), Vec::new());
        let begun = Instant::now();
        for turn in 0.. {
            if turn >= 5 && begun.elapsed().as_millis() > 3000 {
                break;
            }
            layers.push(self.time(self.layer(rows, turn))?);
            let balanced = self.balanced_logits[turn % STACKS].clone();
            self.time(self.route(rows, &balanced))?;
            products.push(self.time(self.products(rows).to_vec())?);
            // Other stacks than the experts just used, which caches may hold.
            plains.push(self.time(self.plain(rows, turn + STACKS / 2))?);
        }
        let [layer, products, plain] = [layers, products, plains].map(Time::median);
        let active = rows.min(STACKS) * TOP_K;
        let bytes = active * (self.gates[0].bytes() + self.downs[0].bytes());
        let (speed, bandwidth) = (rows as f64 / layer.wall * 1e3, bytes as f64 / products.cpu / 1e6);
        let ratio = Time { wall: plain.wall / products.wall, cpu: plain.cpu / products.cpu };
        println!("{format:>6} {rows:5} | {layer} {speed:10.1} | {products} {plain} {ratio} {bandwidth:7.1}");
        Ok(())
    }
}

/// Milliseconds of a submission: how long it took, and CPU time per thread.
struct Time {
    wall: f64,
    cpu: f64,
}

impl Time {
    fn median(times: Vec<Self>) -> Self {
        let middle = |of: fn(&Self) -> f64| {
            let mut values: Vec<f64> = times.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Self { wall: middle(|time| time.wall), cpu: middle(|time| time.cpu) }
    }
}

/// CPU time of this process so far.
fn cpu_ms() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:8.3} ({:8.3})  ", self.wall, self.cpu)
    }
}
