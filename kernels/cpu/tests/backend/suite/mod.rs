//! One test body for every backend: each operation against a naive reference in f64, written here.
//! Knows the seam only; a backend that forbids reads is read through the backend it wraps.

pub(crate) mod attention;
mod cache;
mod download;
pub(crate) mod experts;
mod hand_off;
mod invalid;
mod invalid_experts;
mod invalid_sparse;
pub(crate) mod latent;
mod linear_heads;
mod programs;
mod routing;
mod rows;
pub(crate) mod sampling;
pub(crate) mod select;
mod weights;

use std::sync::Arc;

use millrace_ops::{
    Backend, BackendError, Buffer, KvCache, KvFormat, KvLayout, Op, PageEntry, PlaneColumns, PlaneKind, Priority, Queue,
    SamplerParams, Segment, StepBuffers, StepRecord, TagDelta, Upload, as_bytes,
};

/// Runs every test of the suite, on queues for steps of many rows and of few. `tolerance`: the error allowed where results are sums
/// of products of about 1.
pub(crate) fn backend_suite(backend: &dyn Backend, reader: &dyn Backend, tolerance: f64) {
    for priority in [Priority::Normal, Priority::High] {
        let mut rig = Rig::new(backend, reader, tolerance).on(priority);
        rows::suite(&mut rig);
        cache::suite(&mut rig);
        hand_off::suite(&mut rig);
        download::suite(&mut rig);
        attention::suite(&mut rig);
        latent::suite(&mut rig);
        select::suite(&mut rig);
        sampling::suite(&mut rig);
        linear_heads::suite(&mut rig);
        programs::suite(&mut rig);
        routing::suite(&mut rig);
        experts::suite(&mut rig);
        invalid::suite(&mut rig);
        invalid_experts::suite(&mut rig);
        invalid_sparse::suite(&mut rig);
    }
}

/// A small generator of its own, so that runs repeat.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 >> 32) ^ self.0;
        mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (self.0 >> 29)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.bits() >> 16) as usize % bound
    }

    /// About uniform in -1..1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// A backend under test with a queue and buffers.
pub(crate) struct Rig<'a> {
    pub(crate) backend: &'a dyn Backend,
    reader: &'a dyn Backend,
    queue: Box<dyn Queue>,
    pub(crate) random: Random,
    pub(crate) tolerance: f64,
}

impl<'a> Rig<'a> {
    pub(crate) fn new(backend: &'a dyn Backend, reader: &'a dyn Backend, tolerance: f64) -> Self {
        let queue = backend.queue(Priority::Normal, Arc::new(|| {}));
        Self { backend, reader, queue, random: Random::new(0x1234_5678), tolerance }
    }

    /// The same on a queue of that priority.
    pub(crate) fn on(self, priority: Priority) -> Self {
        Self { queue: self.backend.queue(priority, Arc::new(|| {})), ..self }
    }

    pub(crate) fn empty(&self, bytes: usize) -> Buffer {
        self.backend.allocate(bytes).expect("memory")
    }

    pub(crate) fn bytes(&mut self, bytes: Vec<u8>) -> Buffer {
        let buffer = self.empty(bytes.len());
        self.run([upload(&buffer, bytes)]);
        buffer
    }

    pub(crate) fn floats(&mut self, values: &[f32]) -> Buffer {
        self.bytes(values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    pub(crate) fn words(&mut self, values: &[u32]) -> Buffer {
        self.bytes(as_bytes(values))
    }

    /// An output buffer whose contents are NaN, so that what is not written shows.
    pub(crate) fn output(&mut self, count: usize) -> Buffer {
        self.floats(&vec![f32::NAN; count])
    }

    pub(crate) fn run(&mut self, ops: impl IntoIterator<Item = Op>) {
        self.try_run(ops).expect("a valid submission");
    }

    pub(crate) fn try_run(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<(), BackendError> {
        for op in ops {
            self.queue.enqueue(op);
        }
        let ticket = self.queue.submit();
        self.queue.wait(ticket)
    }

    /// A queue that failed stays failed; tests of failures go on with a new one.
    pub(crate) fn renew(&mut self) {
        self.queue = self.backend.queue(Priority::Normal, Arc::new(|| {}));
    }

    pub(crate) fn read(&self, buffer: &Buffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.bytes()];
        let queue = self.reader.queue(Priority::Normal, Arc::new(|| {}));
        queue.read(buffer, 0, &mut bytes).expect("a readable buffer");
        bytes
    }

    pub(crate) fn read_floats(&self, buffer: &Buffer) -> Vec<f32> {
        self.read(buffer).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    pub(crate) fn read_words(&self, buffer: &Buffer) -> Vec<u32> {
        self.read(buffer).chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    pub(crate) fn records(&self, buffer: &Buffer, count: usize) -> Vec<StepRecord> {
        let mut records = vec![StepRecord::default(); count];
        self.queue.read_records(buffer, &mut records).expect("records");
        records
    }

    pub(crate) fn expect_close(&self, what: &str, got: &[f32], want: &[f64]) {
        close(what, got, want, self.tolerance);
    }
}

pub(crate) fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*g) - w).abs();
        assert!(error <= tolerance * w.abs().max(1.0), "{what}: element {i} is {g}, want {w} (error {error:e})");
    }
}

pub(crate) fn upload(to: &Buffer, bytes: Vec<u8>) -> Op {
    Op::Upload(Upload { to: to.clone(), offset: 0, bytes })
}

/// One sequence of a made-up step.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) start: usize,
    pub(crate) rows: usize,
    pub(crate) table: Vec<PageEntry>,
}

/// A pool whose unused slots are poisoned with NaN, with sequences over shuffled pages, and the buffers of a step.
pub(crate) struct World {
    pub(crate) cache: KvCache,
    pub(crate) step: StepBuffers,
    pub(crate) sequences: Vec<Sequence>,
}

impl World {
    /// `shapes`: (start, rows) of each sequence. Every page in use has a tag of its own, already applied.
    pub(crate) fn new(rig: &mut Rig<'_>, layout: KvLayout, shapes: &[(usize, usize)]) -> Self {
        let pages_of = |(start, rows): &(usize, usize)| (start + rows).div_ceil(layout.page_tokens);
        let used: usize = shapes.iter().map(pages_of).sum();
        let page_count = used + 2;
        let mut order: Vec<u32> = (0..page_count as u32).collect();
        for i in (1..order.len()).rev() {
            let j = rig.random.below(i + 1);
            order.swap(i, j);
        }
        let mut free = order.into_iter();
        let mut sequences = Vec::new();
        for shape in shapes {
            let entry = |page| PageEntry { page, reserved: 0, tag: 0x0bad_0000_0000 + u64::from(page) };
            let table = free.by_ref().take(pages_of(shape)).map(entry).collect();
            sequences.push(Sequence { start: shape.0, rows: shape.1, table });
        }
        let pages = rig.bytes(vec![0xff; page_count * layout.page_bytes()]);
        let tags = rig.empty(page_count * 8);
        let cache = KvCache { pages, tags, layout, page_count };
        let step = step_buffers(rig, shapes, sequences.iter().map(|s| s.table.len()).max().unwrap_or(0) + 1);
        let world = Self { cache, step, sequences };
        let entries = world.sequences.iter().flat_map(|s| &s.table);
        let deltas: Vec<TagDelta> = entries.map(|entry| TagDelta { page: entry.page, zero: 0, tag: entry.tag }).collect();
        let count = deltas.len();
        rig.run([
            upload(&world.step.deltas, as_bytes(&deltas)),
            Op::ApplyTags(millrace_ops::ApplyTags { cache: world.cache.clone(), deltas: world.step.deltas.clone(), count }),
        ]);
        world
    }

    pub(crate) fn rows(&self) -> usize {
        self.sequences.iter().map(|s| s.rows).sum()
    }

    /// Uploads segments and tables as they are now, with (start, rows) as given by `part`.
    pub(crate) fn set_step(&self, rig: &mut Rig<'_>, part: impl Fn(&Sequence) -> (usize, usize)) {
        let mut first_row = 0;
        let mut segments = Vec::new();
        let mut tables = vec![PageEntry { page: u32::MAX, reserved: 7, tag: 7 }; self.step.table_stride * self.sequences.len()];
        for (i, sequence) in self.sequences.iter().enumerate() {
            let (start, rows) = part(sequence);
            let (start, rows) = (start as u32, rows as u32);
            segments.push(Segment { first_row, rows, start, pages: sequence.table.len() as u32 });
            first_row += rows;
            tables[i * self.step.table_stride..][..sequence.table.len()].copy_from_slice(&sequence.table);
        }
        rig.run([upload(&self.step.segments, as_bytes(&segments)), upload(&self.step.tables, as_bytes(&tables))]);
    }

    /// The stored value of (sequence, position), decoded from page bytes.
    pub(crate) fn stored(&self, bytes: &[u8], sequence: usize, position: usize, at: Slot) -> f64 {
        let layout = &self.cache.layout;
        let entry = self.sequences[sequence].table[position / layout.page_tokens];
        let token = position % layout.page_tokens;
        let block = entry.page as usize * layout.page_bytes() + layout.block_offset(at.plane, at.layer);
        decode(&bytes[block..], layout, at, token)
    }
}

/// Keys and values of grouped-query attention, as WriteKv takes them.
pub(crate) fn keys_and_values(layer: usize, key_offset: usize, value_offset: usize) -> Vec<PlaneColumns> {
    vec![PlaneColumns { plane: 0, layer, offset: key_offset }, PlaneColumns { plane: 1, layer, offset: value_offset }]
}

/// Which number of a token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) plane: usize,
    pub(crate) layer: usize,
    pub(crate) head: usize,
    pub(crate) channel: usize,
}

/// The value at a slot of a layer's block.
pub(crate) fn decode(block: &[u8], layout: &KvLayout, at: Slot, token: usize) -> f64 {
    let plane = &layout.planes[at.plane];
    let index = plane.element_index(token, at.channel);
    let element = &block[at.head * plane.head_bytes() + index * plane.format.element_bytes()..];
    match plane.format {
        KvFormat::F32 => f64::from(f32::from_le_bytes([element[0], element[1], element[2], element[3]])),
        KvFormat::Bf16 => half::bf16::from_le_bytes([element[0], element[1]]).to_f64(),
        KvFormat::Fp8 if plane.kind == PlaneKind::Latent => {
            f64::from(millrace_ops::e4m3_to_f32(element[0])) * f64::from(layout.latent_scales.of(at.layer))
        }
        KvFormat::Fp8 => {
            let scale = &block[plane.scales_offset(at.head) + token * 2..];
            f64::from(millrace_ops::e4m3_to_f32(element[0])) * half::bf16::from_le_bytes([scale[0], scale[1]]).to_f64()
        }
    }
}

fn step_buffers(rig: &mut Rig<'_>, shapes: &[(usize, usize)], table_stride: usize) -> StepBuffers {
    let rows: usize = shapes.iter().map(|s| s.0 + s.1).sum();
    let count = shapes.len();
    StepBuffers {
        tokens: rig.empty(rows * 4),
        positions: rig.empty(rows * 4),
        segments: rig.empty(count * size_of::<Segment>()),
        tables: rig.empty(count * table_stride * size_of::<PageEntry>()),
        table_stride,
        verdicts: rig.empty(count * 4),
        samplers: rig.empty(count.max(64) * size_of::<SamplerParams>()),
        deltas: rig.empty((count * table_stride).max(1024) * size_of::<TagDelta>()),
        records: rig.empty(count.max(64) * 8),
    }
}
