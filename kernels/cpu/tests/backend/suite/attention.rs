//! Attend against a softmax in f64 over what the pages hold, with all unused slots poisoned.

use millrace_ops::{Attend, KvFormat, KvLayout, Op, WriteKv};

use super::cache::FORMATS;
use super::{Rig, Slot, World, keys_and_values};

/// (start, rows) of each sequence: decode rows, chunks that begin inside a page, long contexts, an empty one.
const RAGGED: &[(usize, usize)] = &[(0, 1), (0, 37), (5, 1), (15, 1), (16, 1), (50, 33), (0, 0), (700, 1), (1300, 3), (64, 8)];

pub(crate) fn suite(rig: &mut Rig<'_>) {
    for format in FORMATS {
        for page_tokens in [16, 32, 64] {
            agrees(rig, KvLayout::grouped_query(2, 3, 64, page_tokens, format), 9, RAGGED);
        }
        for (kv_heads, group, head_dim) in [(1, 1, 16), (2, 4, 128), (1, 7, 32), (2, 2, 80), (1, 3, 24), (2, 2, 10)] {
            let layout = KvLayout::grouped_query(1, kv_heads, head_dim, 16, format);
            agrees(rig, layout, kv_heads * group, &[(0, 19), (40, 1), (7, 2), (90, 20)]);
        }
        alone_and_in_a_batch(rig, format);
        chunks_change_nothing(rig, format);
        later_tokens_have_no_influence(rig, format);
    }
}

pub(crate) struct Built {
    pub(crate) world: World,
    pub(crate) op: Attend,
    pub(crate) queries: Vec<f32>,
}

/// Writes a context and a step's keys and values, and makes its Attend.
pub(crate) fn build(rig: &mut Rig<'_>, layout: KvLayout, heads: usize, shapes: &[(usize, usize)]) -> Built {
    let world = World::new(rig, layout.clone(), shapes);
    let (kv_heads, width, layer) = (layout.planes[0].heads, layout.planes[0].width, layout.planes[0].layers - 1);
    let sequences = shapes.len();
    let stride = 2 * kv_heads * width;
    // Everything up to the last row at once: what rows of the step are not to see lies in their pages already.
    world.set_step(rig, |s| (0, s.start + s.rows));
    let rows: usize = shapes.iter().map(|s| s.0 + s.1).sum();
    let x: Vec<f32> = rig.random.floats(rows * stride).iter().map(|v| v * 2.0).collect();
    let x = rig.floats(&x);
    let (cache, step) = (world.cache.clone(), world.step.clone());
    let value_offset = kv_heads * width;
    let planes = keys_and_values(layer, 0, value_offset);
    rig.run([Op::WriteKv(WriteKv { cache, step, x, stride, planes, rows, sequences })]);
    world.set_step(rig, |s| (s.start, s.rows));
    let rows = world.rows();
    let (query_offset, stride) = (2, heads * width + 5);
    let queries = rig.random.floats(rows * stride);
    let (x, out) = (rig.floats(&queries), rig.output(rows * heads * width));
    let (cache, step, scale) = (world.cache.clone(), world.step.clone(), 1.0 / (width as f32).sqrt() * 2.0);
    let op = Attend { cache, step, layer, x, stride, query_offset, heads, scale, out, rows, sequences };
    Built { world, op, queries }
}

fn agrees(rig: &mut Rig<'_>, layout: KvLayout, heads: usize, shapes: &[(usize, usize)]) {
    let built = build(rig, layout.clone(), heads, shapes);
    let want = expected(rig, &built);
    rig.run([Op::Attend(built.op.clone())]);
    let got = rig.read_floats(&built.op.out);
    rig.expect_close(&format!("attend {} with {heads} heads", layout.id()), &got, &want);
}

/// A head's keys or values of one sequence, `[tokens, width]`.
fn stored(built: &Built, pages: &[u8], sequence: usize, plane: usize, head: usize) -> Vec<f64> {
    let Built { world, op, .. } = built;
    let tokens = world.sequences[sequence].start + world.sequences[sequence].rows;
    let width = op.cache.layout.planes[plane].width;
    let value = |i: usize| world.stored(pages, sequence, i / width, Slot { plane, layer: op.layer, head, channel: i % width });
    (0..tokens * width).map(value).collect()
}

fn expected(rig: &Rig<'_>, built: &Built) -> Vec<f64> {
    let Built { world, op, queries } = built;
    let pages = rig.read(&world.cache.pages);
    let layout = &op.cache.layout.planes[0];
    let (group, width) = (op.heads / layout.heads, layout.width);
    let mut want = vec![0.0; op.rows * op.heads * width];
    for head in 0..op.heads {
        let mut row = 0;
        for (s, sequence) in world.sequences.iter().enumerate() {
            let keys = stored(built, &pages, s, 0, head / group);
            let values = stored(built, &pages, s, 1, head / group);
            for i in 0..sequence.rows {
                let query = &queries[row * op.stride + op.query_offset + head * width..][..width];
                let out = &mut want[(row * op.heads + head) * width..][..width];
                let seen = (sequence.start + i + 1) * width;
                attend(query, &keys[..seen], &values[..seen], f64::from(op.scale), out);
                row += 1;
            }
        }
    }
    want
}

fn attend(query: &[f32], keys: &[f64], values: &[f64], scale: f64, out: &mut [f64]) {
    let width = query.len();
    let dot = |key: &[f64]| query.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum::<f64>() * scale;
    let scores: Vec<f64> = keys.chunks(width).map(dot).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    for (weight, value) in weights.iter().zip(values.chunks(width)) {
        for (o, v) in out.iter_mut().zip(value) {
            *o += weight / sum * v;
        }
    }
}

/// A row's result does not depend on what it is computed with.
fn alone_and_in_a_batch(rig: &mut Rig<'_>, format: KvFormat) {
    let layout = KvLayout::grouped_query(1, 3, 64, 32, format);
    let built = build(rig, layout, 9, &[(1500, 1), (10, 30), (600, 1)]);
    rig.run([Op::Attend(built.op.clone())]);
    let together = rig.read_floats(&built.op.out);
    let width = 9 * 64;
    for (sequence, first_row) in [(0, 0), (1, 1), (2, 31)] {
        let rows = built.world.sequences[sequence].rows;
        let others_are_empty = |s: &super::Sequence| {
            let this = s.table[0].page == built.world.sequences[sequence].table[0].page;
            if this { (s.start, s.rows) } else { (s.start, 0) }
        };
        built.world.set_step(rig, others_are_empty);
        let x = rig.floats(&built.queries[first_row * built.op.stride..]);
        let out = rig.output(rows * width);
        rig.run([Op::Attend(Attend { x, out: out.clone(), rows, ..built.op.clone() })]);
        let alone = rig.read_floats(&out);
        let same = alone.iter().zip(&together[first_row * width..]).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "sequence {sequence} over {format} differs alone");
    }
}

/// A row comes to the same whether its prompt is computed at once, in chunks, or token by token.
fn chunks_change_nothing(rig: &mut Rig<'_>, format: KvFormat) {
    let layout = KvLayout::grouped_query(1, 3, 64, 32, format);
    let (start, rows) = (235, 90);
    let built = build(rig, layout, 9, &[(start, rows)]);
    rig.run([Op::Attend(built.op.clone())]);
    let at_once = rig.read_floats(&built.op.out);
    let width = 9 * 64;
    for (first, rows) in [(0, 1), (20, 1), (21, 1), (89, 1), (0, 33), (33, 57)] {
        built.world.set_step(rig, |_| (start + first, rows));
        let x = rig.floats(&built.queries[first * built.op.stride..]);
        let out = rig.output(rows * width);
        rig.run([Op::Attend(Attend { x, out: out.clone(), rows, ..built.op.clone() })]);
        let part = rig.read_floats(&out);
        let same = part.iter().zip(&at_once[first * width..]).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "rows {first}..{} over {format} differ as a chunk", first + rows);
    }
}

/// Not even where a later token of the same sequence holds what is not finite, in its key or in its value alone.
fn later_tokens_have_no_influence(rig: &mut Rig<'_>, format: KvFormat) {
    let layout = KvLayout::grouped_query(1, 1, 32, 16, format);
    let rows = 24;
    for (bad, columns) in [(f32::NAN, 0..64), (f32::NAN, 32..64), (f32::INFINITY, 32..64)] {
        let built = build(rig, layout.clone(), 2, &[(0, rows)]);
        rig.run([Op::Attend(built.op.clone())]);
        let before = rig.read_floats(&built.op.out);
        let mut x = vec![0.5; 64];
        x[columns.clone()].fill(bad);
        let (cache, step) = (built.op.cache.clone(), built.op.step.clone());
        let x = rig.floats(&x);
        built.world.set_step(rig, |_| (20, 1));
        let write = WriteKv { cache, step, x, stride: 64, planes: keys_and_values(0, 0, 32), rows: 1, sequences: 1 };
        rig.run([Op::WriteKv(write)]);
        built.world.set_step(rig, |s| (s.start, s.rows));
        rig.run([Op::Attend(built.op.clone())]);
        let after = rig.read_floats(&built.op.out);
        let (earlier, later) = after.split_at(20 * 64);
        assert_eq!(earlier, &before[..20 * 64], "rows before {bad} in columns {columns:?} over {format}");
        assert!(later.iter().all(|v| !v.is_finite()), "rows that see {bad} in columns {columns:?} over {format} show it");
    }
}
