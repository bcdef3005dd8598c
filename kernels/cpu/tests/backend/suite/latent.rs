//! AttendLatent against a softmax in f64 over what the pages hold, with all unused slots poisoned.

use millrace_ops::{AttendLatent, KvFormat, KvLayout, Op, PlaneColumns, PlaneShape, Selection, StaticScales, WriteKv, as_bytes};

use super::cache::FORMATS;
use super::{Rig, Sequence, Slot, World, upload};

/// (start, rows) of each sequence: decode rows, chunks that begin inside a page, an empty one.
const RAGGED: &[(usize, usize)] = &[(0, 1), (0, 37), (5, 1), (15, 1), (16, 1), (50, 33), (0, 0), (300, 1), (190, 3), (64, 8)];
/// Beyond the contexts that are summed part by part.
const LONG: &[(usize, usize)] = &[(4094, 5), (9000, 1), (17, 1)];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) latent: usize,
    pub(crate) rotary: usize,
}

const fn shape(heads: usize, latent: usize, rotary: usize) -> Shape {
    Shape { heads, latent, rotary }
}

pub(crate) fn suite(rig: &mut Rig<'_>) {
    for format in FORMATS {
        for page_tokens in [16, 32, 64] {
            agrees(rig, layout(shape(4, 64, 16), page_tokens, format), shape(4, 64, 16), RAGGED);
        }
        agrees(rig, layout(shape(64, 512, 64), 64, format), shape(64, 512, 64), &[(0, 3), (100, 1), (61, 6)]);
        for shape in [shape(1, 512, 64), shape(5, 24, 8), shape(3, 10, 6), shape(2, 24, 0), shape(9, 16, 2)] {
            agrees(rig, layout(shape, 16, format), shape, &[(0, 19), (140, 1), (7, 2), (90, 20)]);
        }
        agrees(rig, layout(shape(5, 24, 8), 64, format), shape(5, 24, 8), LONG);
        selections(rig, format);
        alone_and_in_a_batch(rig, format);
        chunks_change_nothing(rig, format);
        unseen_tokens_have_no_influence(rig, format);
        flagged_sequences(rig, format);
    }
}

/// Two layers, of which the second is used; in FP8 its scale lets no value of [`build`] saturate.
pub(crate) fn layout(shape: Shape, page_tokens: usize, format: KvFormat) -> KvLayout {
    let plane = PlaneShape { layers: 2, width: shape.latent + shape.rotary };
    let layout = KvLayout::latent(plane, None, page_tokens, format);
    KvLayout { latent_scales: StaticScales::new(&[1.0, 0.0047]), ..layout }
}

pub(crate) struct Built {
    pub(crate) world: World,
    pub(crate) op: AttendLatent,
    latent_queries: Vec<f32>,
    rotary_queries: Vec<f32>,
}

/// Writes a context and a step's latents, and makes its AttendLatent.
pub(crate) fn build(rig: &mut Rig<'_>, layout: KvLayout, shape: Shape, shapes: &[(usize, usize)]) -> Built {
    let Shape { heads, latent, rotary } = shape;
    let world = World::new(rig, layout, shapes);
    let layer = 1;
    // Everything up to the last row at once: what rows of the step are not to see lies in their pages already.
    world.set_step(rig, |s| (0, s.start + s.rows));
    let rows: usize = shapes.iter().map(|s| s.0 + s.1).sum();
    let width = latent + rotary;
    let x: Vec<f32> = rig.random.floats(rows * width).iter().map(|v| v * 2.0).collect();
    write(rig, &world, &x, shapes.len());
    world.set_step(rig, |s| (s.start, s.rows));
    let rows = world.rows();
    let (rotary_offset, rotary_step) = (2, rotary + 3);
    let stride = rotary_offset + heads * rotary_step;
    let (latent_queries, rotary_queries) = (rig.random.floats(rows * heads * latent), rig.random.floats(rows * stride));
    let op = AttendLatent {
        cache: world.cache.clone(),
        step: world.step.clone(),
        layer,
        latent_queries: rig.floats(&latent_queries),
        rotary_queries: rig.floats(&rotary_queries),
        stride,
        rotary_offset,
        rotary_step,
        heads,
        latent,
        rotary,
        scale: 2.0 / (width as f32).sqrt(),
        selection: None,
        out: rig.output(rows * heads * latent),
        rows,
        sequences: shapes.len(),
    };
    Built { world, op, latent_queries, rotary_queries }
}

/// Writes latents of the step's rows into the second layer.
fn write(rig: &mut Rig<'_>, world: &World, x: &[f32], sequences: usize) {
    let stride = world.cache.layout.planes[0].width;
    let rows = x.len() / stride;
    let x = rig.floats(x);
    let (cache, step) = (world.cache.clone(), world.step.clone());
    let planes = vec![PlaneColumns { plane: 0, layer: 1, offset: 0 }];
    rig.run([Op::WriteKv(WriteKv { cache, step, x, stride, planes, rows, sequences })]);
}

fn agrees(rig: &mut Rig<'_>, layout: KvLayout, shape: Shape, shapes: &[(usize, usize)]) {
    let built = build(rig, layout.clone(), shape, shapes);
    rig.run([Op::AttendLatent(built.op.clone())]);
    expect(rig, &built, None);
}

/// Compares the output of some heads.
fn expect(rig: &Rig<'_>, built: &Built, lines: Option<&[Vec<u32>]>) {
    let Built { world, op, .. } = built;
    let pages = rig.read(&world.cache.pages);
    let got = rig.read_floats(&op.out);
    let mut heads = if op.heads > 9 { vec![0, 6, 31, op.heads - 1] } else { (0..op.heads).collect() };
    heads.dedup();
    let mut row = 0;
    for (s, sequence) in world.sequences.iter().enumerate() {
        let latents = latents(built, &pages, s);
        for i in 0..sequence.rows {
            let all: Vec<u32> = (0..=(sequence.start + i) as u32).collect();
            let seen = lines.map_or(&all, |lines| &lines[row]);
            for &head in &heads {
                let want = attend(built, (row, head), seen, &latents);
                let got = &got[(row * op.heads + head) * op.latent..][..op.latent];
                let what = format!("attend_latent {} row {row} head {head} of {}", op.cache.layout.id(), op.heads);
                rig.expect_close(&what, got, &want);
            }
            row += 1;
        }
    }
}

/// Latents of a sequence, `[tokens, width]`.
fn latents(built: &Built, pages: &[u8], sequence: usize) -> Vec<f64> {
    let Built { world, op, .. } = built;
    let tokens = world.sequences[sequence].start + world.sequences[sequence].rows;
    let width = op.latent + op.rotary;
    let at = |channel| Slot { plane: 0, layer: op.layer, head: 0, channel };
    (0..tokens * width).map(|i| world.stored(pages, sequence, i / width, at(i % width))).collect()
}

fn attend(built: &Built, (row, head): (usize, usize), seen: &[u32], latents: &[f64]) -> Vec<f64> {
    let op = &built.op;
    let width = op.latent + op.rotary;
    let mut query = built.latent_queries[(row * op.heads + head) * op.latent..][..op.latent].to_vec();
    query.extend(&built.rotary_queries[row * op.stride + op.rotary_offset + head * op.rotary_step..][..op.rotary]);
    let token = |t: &u32| &latents[*t as usize * width..][..width];
    let score = |t| query.iter().zip(token(t)).map(|(q, c)| f64::from(*q) * c).sum::<f64>() * f64::from(op.scale);
    let scores: Vec<f64> = seen.iter().map(score).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; op.latent];
    for (weight, t) in weights.iter().zip(seen) {
        for (o, c) in out.iter_mut().zip(token(t)) {
            *o += weight / sum * c;
        }
    }
    out
}

/// A row's positions: some up to its own, or all where they are no more than `limit`.
fn random_line(rig: &mut Rig<'_>, position: usize, limit: usize) -> Vec<u32> {
    let mut all: Vec<u32> = (0..=position as u32).collect();
    while all.len() > limit {
        all.remove(rig.random.below(all.len()));
    }
    all
}

/// A line per row of the step, and the buffer with them; what lies behind a line is no position.
fn selection(rig: &mut Rig<'_>, world: &World, limit: usize) -> (Vec<Vec<u32>>, Selection) {
    let positions = |s: &Sequence| s.start..s.start + s.rows;
    let positions: Vec<usize> = world.sequences.iter().flat_map(positions).collect();
    let lines: Vec<Vec<u32>> = positions.iter().map(|position| random_line(rig, *position, limit)).collect();
    let mut words = vec![u32::MAX; lines.len() * limit];
    for (to, line) in words.chunks_mut(limit).zip(&lines) {
        to[..line.len()].copy_from_slice(line);
    }
    let tokens = rig.words(&words);
    (lines, Selection { tokens, limit })
}

fn selections(rig: &mut Rig<'_>, format: KvFormat) {
    for (limit, shape) in [(1, shape(5, 24, 8)), (20, shape(4, 64, 16)), (150, shape(64, 512, 64))] {
        let mut built = build(rig, layout(shape, 32, format), shape, &[(0, 40), (200, 1), (170, 3), (0, 0), (19, 1)]);
        let (lines, selection) = selection(rig, &built.world, limit);
        built.op.selection = Some(selection);
        rig.run([Op::AttendLatent(built.op.clone())]);
        expect(rig, &built, Some(&lines));
    }
    // A selection of all tokens is none.
    let shape = shape(5, 24, 8);
    let mut built = build(rig, layout(shape, 32, format), shape, &[(0, 40), (2200, 1)]);
    rig.run([Op::AttendLatent(built.op.clone())]);
    let all = rig.read_words(&built.op.out);
    built.op.selection = Some(selection(rig, &built.world, 2300).1);
    built.op.out = rig.output(41 * 5 * 24);
    rig.run([Op::AttendLatent(built.op.clone())]);
    assert_eq!(rig.read_words(&built.op.out), all, "a selection of everything over {format}");
}

/// Runs rows `first..first + rows` of one sequence alone, at `first_row` of the step that `built` is for.
fn alone(rig: &mut Rig<'_>, built: &Built, (first_row, rows): (usize, usize), lines: Option<&[u32]>) -> Vec<u32> {
    let op = &built.op;
    let latent_queries = rig.floats(&built.latent_queries[first_row * op.heads * op.latent..]);
    let rotary_queries = rig.floats(&built.rotary_queries[first_row * op.stride..]);
    let out = rig.output(rows * op.heads * op.latent);
    let selection = op.selection.as_ref().zip(lines).map(|(s, lines)| {
        let tokens = rig.words(&lines[first_row * s.limit..][..rows * s.limit]);
        Selection { tokens, limit: s.limit }
    });
    let alone = AttendLatent { latent_queries, rotary_queries, selection, out: out.clone(), rows, ..op.clone() };
    rig.run([Op::AttendLatent(alone)]);
    rig.read_words(&out)
}

/// A row's result does not depend on what it is computed with.
fn alone_and_in_a_batch(rig: &mut Rig<'_>, format: KvFormat) {
    for (shape, limit) in [(shape(9, 64, 16), None), (shape(9, 64, 16), Some(300)), (shape(64, 512, 64), None)] {
        let mut built = build(rig, layout(shape, 32, format), shape, &[(4800, 1), (10, 30), (600, 1)]);
        let lines = limit.map(|limit| {
            let (_, selection) = selection(rig, &built.world, limit);
            let words = rig.read_words(&selection.tokens);
            built.op.selection = Some(selection);
            words
        });
        rig.run([Op::AttendLatent(built.op.clone())]);
        let together = rig.read_words(&built.op.out);
        let width = shape.heads * shape.latent;
        for (sequence, first_row) in [(0, 0), (1, 1), (2, 31)] {
            let rows = built.world.sequences[sequence].rows;
            let others_are_empty = |s: &Sequence| {
                let this = s.table[0].page == built.world.sequences[sequence].table[0].page;
                if this { (s.start, s.rows) } else { (s.start, 0) }
            };
            built.world.set_step(rig, others_are_empty);
            let alone = alone(rig, &built, (first_row, rows), lines.as_deref());
            assert_eq!(alone, &together[first_row * width..][..rows * width], "sequence {sequence} over {format} alone");
        }
    }
}

/// A row comes to the same whether its prompt is computed at once, in chunks, or token by token.
fn chunks_change_nothing(rig: &mut Rig<'_>, format: KvFormat) {
    for (shape, start) in [(shape(9, 64, 16), 235), (shape(2, 24, 8), 4060), (shape(64, 512, 64), 50)] {
        let rows = 90;
        let built = build(rig, layout(shape, 32, format), shape, &[(start, rows)]);
        rig.run([Op::AttendLatent(built.op.clone())]);
        let at_once = rig.read_words(&built.op.out);
        let width = shape.heads * shape.latent;
        for (first, rows) in [(0, 1), (20, 1), (21, 1), (89, 1), (0, 33), (33, 57)] {
            built.world.set_step(rig, |_| (start + first, rows));
            let part = alone(rig, &built, (first, rows), None);
            let same = part == at_once[first * width..][..rows * width];
            assert!(same, "rows {first}..{} over {format} differ as a chunk of {shape:?}", first + rows);
        }
    }
}

/// Not even where a later token, or one that is not selected, holds NaN.
fn unseen_tokens_have_no_influence(rig: &mut Rig<'_>, format: KvFormat) {
    let shape = shape(3, 32, 16);
    let (rows, bad) = (24, 12);
    let mut built = build(rig, layout(shape, 16, format), shape, &[(0, rows)]);
    let (lines, selection) = selection(rig, &built.world, 9);
    rig.run([Op::AttendLatent(built.op.clone())]);
    let dense = rig.read_floats(&built.op.out);
    let sparse = AttendLatent { selection: Some(selection), out: rig.output(dense.len()), ..built.op.clone() };
    rig.run([Op::AttendLatent(sparse.clone())]);
    let chosen = rig.read_floats(&sparse.out);
    built.world.set_step(rig, |_| (bad, 1));
    write(rig, &built.world, &[f32::NAN; 48], 1);
    built.world.set_step(rig, |s| (s.start, s.rows));
    built.op.out = rig.output(dense.len());
    rig.run([Op::AttendLatent(built.op.clone()), Op::AttendLatent(sparse.clone())]);
    let width = shape.heads * shape.latent;
    let after = rig.read_floats(&built.op.out);
    let (earlier, later) = after.split_at(bad * width);
    assert_eq!(earlier, &dense[..bad * width], "rows before a NaN over {format}");
    assert!(later.iter().all(|v| v.is_nan()), "rows that see a NaN over {format} show it");
    let after = rig.read_floats(&sparse.out);
    let rows = after.chunks(width).zip(chosen.chunks(width)).zip(&lines);
    for (row, ((after, before), line)) in rows.enumerate() {
        let sees = line.contains(&(bad as u32));
        assert!(if sees { after.iter().all(|v| v.is_nan()) } else { after == before }, "row {row} over {format} sees {line:?}");
    }
    assert!(lines[bad + 1..].iter().any(|line| !line.contains(&(bad as u32))), "some row leaves it out");
}

fn flagged_sequences(rig: &mut Rig<'_>, format: KvFormat) {
    let shape = shape(4, 64, 16);
    let mut built = build(rig, layout(shape, 16, format), shape, &[(700, 1), (3, 5), (20, 7)]);
    let width = shape.heads * shape.latent;
    for limit in [None, Some(8)] {
        built.op.selection = limit.map(|limit| {
            let (_, selection) = selection(rig, &built.world, limit);
            // Lines of flagged sequences are not even looked at.
            let mut words = rig.read_words(&selection.tokens);
            words[..limit].fill(u32::MAX);
            words[6 * limit..].fill(u32::MAX);
            Selection { tokens: rig.words(&words), limit }
        });
        built.op.out = rig.output(13 * width);
        rig.run([upload(&built.world.step.verdicts, as_bytes(&[1u32, 0, 1])), Op::AttendLatent(built.op.clone())]);
        let out = rig.read_floats(&built.op.out);
        assert!(out[..width].iter().chain(&out[6 * width..]).all(|v| *v == 0.0), "flagged sequences get zeros");
        assert!(out[width..6 * width].iter().all(|v| v.is_finite() && *v != 0.0));
    }
}
