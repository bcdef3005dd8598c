//! Times the operations of the CPU backend other than matrix products, at the sizes of SmolLM2-135M (30 layers, 9 query heads
//! over 3 KV heads of 64, hidden 576, vocabulary 49,152), and of attention over latents (names that begin with `latent`). Knows no
//! model files: numbers are random.
//!
//! `cargo run --release -p millrace-cpu --example attention_bench -- [threads] [isa] [part of a name]`
//!
//! Times are the median of several submissions; in brackets the least, and the least CPU time of the process divided by the
//! threads. On a busy machine the brackets say more; CPU time counts workers that wait for each other as well.

mod latent;

use std::sync::Arc;
use std::time::Instant;

use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions, Isa, available_threads};
use millrace_ops::{
    Attend, Backend, Buffer, ImportPages, KvCache, KvFormat, KvLayout, Op, PageEntry, PlaneColumns, Priority, Queue, RmsNorm,
    Rope, RopePairs, Sample, SamplerParams, Segment, SiluMul, StagedPage, StepBuffers, TagDelta, Upload, WriteKv, as_bytes,
};

const LAYERS: usize = 30;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const WIDTH: usize = 64;
const STRIDE: usize = (HEADS + 2 * KV_HEADS) * WIDTH;
const VOCAB: usize = 49_152;
const PAGE_TOKENS: usize = 32;

struct Bench {
    backend: CpuBackend,
    queue: Box<dyn Queue>,
}

struct Spread {
    median: f64,
    least: f64,
    cpu: f64,
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:8.3} ({:8.3} {:8.3})", self.median, self.least, self.cpu)
    }
}

/// CPU time of this process so far.
fn cpu_ms() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

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
    let only = arguments.next().unwrap_or_default();
    let queue = backend.queue(Priority::Normal, Arc::new(|| {}));
    println!("{:?}", backend.describe());
    let mut bench = Bench { backend, queue };
    for format in [KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8] {
        for (name, shapes) in shapes().into_iter().filter(|(name, _)| format!("{format} {name}").contains(&only)) {
            bench.attend(&name, format, &shapes)?;
        }
    }
    bench.latents(&only)?;
    if !only.is_empty() {
        return Ok(());
    }
    bench.rows(1)?;
    bench.rows(512)?;
    bench.sample(1)?;
    bench.sample(32)?;
    bench.import()?;
    bench.empty_operations()?;
    Ok(())
}

/// (start, rows) of each sequence.
fn shapes() -> Vec<(String, Vec<(usize, usize)>)> {
    let mut shapes: Vec<(String, Vec<(usize, usize)>)> =
        [128, 512, 2048, 8191].map(|depth| (format!("decode 1 at {depth}"), vec![(depth, 1)])).to_vec();
    shapes.push(("decode 8 at 512".into(), vec![(512, 1); 8]));
    shapes.push(("decode 8 at 2048".into(), vec![(2048, 1); 8]));
    shapes.push(("decode 32 at 512".into(), vec![(512, 1); 32]));
    shapes.push(("prefill 512".into(), vec![(0, 512)]));
    shapes.push(("prefill 128 at 384".into(), vec![(384, 128)]));
    shapes.push(("prefill 16 at 384".into(), vec![(384, 16)]));
    shapes
}

/// Writes keys and values of all rows, layer by layer.
fn writes(cache: &KvCache, step: &StepBuffers, x: &Buffer, (rows, sequences): (usize, usize)) -> Vec<Op> {
    let plane = |plane, layer, offset| PlaneColumns { plane, layer, offset };
    let planes = |layer| vec![plane(0, layer, HEADS * WIDTH), plane(1, layer, (HEADS + KV_HEADS) * WIDTH)];
    let write = |layer| WriteKv {
        cache: cache.clone(),
        step: step.clone(),
        x: x.clone(),
        stride: STRIDE,
        planes: planes(layer),
        rows,
        sequences,
    };
    (0..LAYERS).map(|layer| Op::WriteKv(write(layer))).collect()
}

impl Bench {
    fn upload(&mut self, bytes: Vec<u8>) -> Result<Buffer, AnyError> {
        let to = self.backend.allocate(bytes.len().max(1))?;
        self.queue.enqueue(Op::Upload(Upload { to: to.clone(), offset: 0, bytes }));
        Ok(to)
    }

    fn floats(&mut self, count: usize) -> Result<Buffer, AnyError> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        self.upload((0..count).flat_map(|_| next().to_le_bytes()).collect())
    }

    /// Milliseconds of a submission of `ops`.
    fn time(&mut self, ops: &[Op]) -> Result<Spread, AnyError> {
        let mut times = Vec::new();
        let mut cpu = f64::INFINITY;
        let begun = Instant::now();
        while times.len() < 5 || (times.len() < 200 && begun.elapsed().as_millis() < 400) {
            for op in ops {
                self.queue.enqueue(op.clone());
            }
            let (start, used) = (Instant::now(), cpu_ms());
            let ticket = self.queue.submit();
            self.queue.wait(ticket)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            cpu = cpu.min((cpu_ms() - used) / self.backend.describe().threads as f64);
        }
        times.sort_by(f64::total_cmp);
        Ok(Spread { median: times[times.len() / 2], least: times[0], cpu })
    }

    fn step(&mut self, sequences: &[(usize, usize)]) -> Result<(StepBuffers, usize), AnyError> {
        let table_stride = sequences.iter().map(|s| (s.0 + s.1).div_ceil(PAGE_TOKENS)).max().unwrap_or(1);
        let (mut segments, mut tables, mut deltas) = (Vec::new(), Vec::new(), Vec::new());
        let (mut first_row, mut page) = (0, 0);
        for (start, rows) in sequences {
            let pages = (start + rows).div_ceil(PAGE_TOKENS);
            segments.push(Segment { first_row, rows: *rows as u32, start: *start as u32, pages: pages as u32 });
            first_row += *rows as u32;
            for i in 0..table_stride {
                let entry = PageEntry { page: page.min(u32::MAX / 2), reserved: 0, tag: 1 };
                tables.push(entry);
                if i < pages {
                    deltas.push(TagDelta { page, zero: 0, tag: 1 });
                    page += 1;
                }
            }
        }
        let count = sequences.len();
        let step = StepBuffers {
            tokens: self.backend.allocate(first_row as usize * 4)?,
            positions: self.backend.allocate(first_row as usize * 4)?,
            segments: self.upload(as_bytes(&segments))?,
            tables: self.upload(as_bytes(&tables))?,
            table_stride,
            verdicts: self.backend.allocate(count * 4)?,
            samplers: self.backend.allocate(count * size_of::<SamplerParams>())?,
            deltas: self.upload(as_bytes(&deltas))?,
            records: self.backend.allocate(count * 8)?,
        };
        Ok((step, deltas.len()))
    }

    fn cache(&mut self, step: &StepBuffers, layout: KvLayout, pages: usize) -> Result<KvCache, AnyError> {
        let buffer = self.backend.allocate(pages * layout.page_bytes())?;
        let cache = KvCache { pages: buffer, tags: self.backend.allocate(pages * 8)?, layout, page_count: pages };
        let deltas = step.deltas.clone();
        self.queue.enqueue(Op::ApplyTags(millrace_ops::ApplyTags { cache: cache.clone(), deltas, count: pages }));
        Ok(cache)
    }

    fn attend(&mut self, name: &str, format: KvFormat, sequences: &[(usize, usize)]) -> Result<(), AnyError> {
        // As engines have it: decode in queues of their own.
        let priority = if sequences.iter().all(|s| s.1 == 1) { Priority::High } else { Priority::Normal };
        self.queue = self.backend.queue(priority, Arc::new(|| {}));
        let (step, pages) = self.step(sequences)?;
        let layout = KvLayout::grouped_query(LAYERS, KV_HEADS, WIDTH, PAGE_TOKENS, format);
        let cache = self.cache(&step, layout, pages)?;
        self.fill(&cache, sequences)?;
        let rows: usize = sequences.iter().map(|s| s.1).sum();
        let (x, out) = (self.floats(rows * STRIDE)?, self.backend.allocate(rows * HEADS * WIDTH * 4)?);
        let count = sequences.len();
        let attend = |layer| {
            Op::Attend(Attend {
                cache: cache.clone(),
                step: step.clone(),
                layer,
                x: x.clone(),
                stride: STRIDE,
                query_offset: 0,
                heads: HEADS,
                scale: 0.125,
                out: out.clone(),
                rows,
                sequences: count,
            })
        };
        let writes = writes(&cache, &step, &x, (rows, count));
        let attends: Vec<Op> = (0..LAYERS).map(attend).collect();
        let (write, attend) = (self.time(&writes)?, self.time(&attends)?);
        println!("{format:>5}  {name:<20} attend {attend} ms   write_kv {write} ms   (30 layers)");
        Ok(())
    }

    /// Writes all that the sequences have in their pages: memory that nobody wrote is one page of zeros to the system, wherever it is.
    fn fill(&mut self, cache: &KvCache, sequences: &[(usize, usize)]) -> Result<(), AnyError> {
        let whole: Vec<(usize, usize)> = sequences.iter().map(|(start, rows)| (0, start + rows)).collect();
        let rows = whole.iter().map(|s| s.1).sum();
        let (step, _) = self.step(&whole)?;
        let x = self.floats(rows * STRIDE)?;
        writes(cache, &step, &x, (rows, whole.len())).into_iter().for_each(|op| self.queue.enqueue(op));
        let ticket = self.queue.submit();
        Ok(self.queue.wait(ticket)?)
    }

    fn rows(&mut self, rows: usize) -> Result<(), AnyError> {
        let (x, out) = (self.floats(rows * 3072)?, self.backend.allocate(rows * 1536 * 4)?);
        let (weight, frequencies) = (self.floats(576)?, self.floats(32)?);
        let positions = self.upload((0..rows as u32).flat_map(|p| (p + 1000).to_le_bytes()).collect())?;
        let norm = RmsNorm { x: x.clone(), weight, out: out.clone(), rows, width: 576, eps: 1e-5 };
        let rope = Rope {
            x: x.clone(),
            stride: STRIDE,
            offset: 0,
            heads: HEADS + KV_HEADS,
            head_dim: WIDTH,
            frequencies,
            rotary: WIDTH,
            pairs: RopePairs::Halves,
            amplitude: 1.0,
            positions,
            rows,
        };
        let silu = SiluMul { x, out, rows, width: 1536 };
        for (name, op) in [("rms_norm", Op::RmsNorm(norm)), ("rope", Op::Rope(rope)), ("silu_mul", Op::SiluMul(silu))] {
            let ms = self.time(&vec![op; LAYERS])?;
            println!("       {name:<9} of {rows:>3} rows      {ms} ms   (30 layers)");
        }
        Ok(())
    }

    fn sample(&mut self, rows: usize) -> Result<(), AnyError> {
        let (step, _) = self.step(&vec![(0, 1); rows])?;
        let logits = self.floats(rows * VOCAB)?;
        let sample = Sample { logits, step: step.clone(), count: rows, sequences: rows, vocab: VOCAB, step_number: 1 };
        for (name, temperature, top_k, top_p) in
            [("greedy", 0.0, 0, 1.0), ("hot", 0.8, 0, 1.0), ("top_k 40", 0.8, 40, 1.0), ("top_p 0.9", 0.2, 0, 0.9)]
        {
            let make = |segment| SamplerParams { temperature, top_p, min_p: 0.0, top_k, seed: 1, position: 7, segment };
            let samplers: Vec<SamplerParams> = (0..rows as u32).map(make).collect();
            self.queue.enqueue(Op::Upload(Upload { to: step.samplers.clone(), offset: 0, bytes: as_bytes(&samplers) }));
            let ms = self.time(&[Op::Sample(sample.clone())])?;
            println!("       sample {name:<9} of {rows:>2} rows {ms} ms");
        }
        Ok(())
    }

    fn import(&mut self) -> Result<(), AnyError> {
        let (step, pages) = self.step(&[(0, 512)])?;
        let layout = |format| KvLayout::grouped_query(LAYERS, KV_HEADS, WIDTH, PAGE_TOKENS, format);
        for (from, to) in [(KvFormat::Bf16, KvFormat::Fp8), (KvFormat::Bf16, KvFormat::Bf16), (KvFormat::F32, KvFormat::Fp8)] {
            let cache = self.cache(&step, layout(to), pages)?;
            let element = f32::to_le_bytes(0.3);
            let element = if from == KvFormat::F32 { &element[..] } else { &element[2..] };
            let staging = self.upload(element.repeat(pages * layout(from).page_bytes() / element.len()))?;
            let page = |i: usize| StagedPage { slot: i as u32, page: i as u32, tag: 1, tokens: 32, verdict: 0, reserved: 0 };
            let staged: Vec<StagedPage> = (0..pages).map(page).collect();
            let staged = self.upload(as_bytes(&staged))?;
            let verdicts = self.backend.allocate(4)?;
            let import = ImportPages { cache, from: layout(from), staging, pages: staged, verdicts, count: pages };
            let ms = self.time(&[Op::ImportPages(import)])?;
            println!("       import 512 tokens {from} -> {to} {ms} ms");
        }
        Ok(())
    }

    /// What the pool itself costs: phases in which there is nothing to do.
    fn empty_operations(&mut self) -> Result<(), AnyError> {
        let to = self.backend.allocate(64)?;
        let ops = vec![Op::Upload(Upload { to, offset: 0, bytes: Vec::new() }); 1000];
        let ms = self.time(&ops)?;
        println!("       an empty phase            {ms} us");
        Ok(())
    }
}
