//! SelectTokens against a sort by index scores in f64. Where numbers are small integers, every score is exact in f32 whatever
//! the order of its sum, so the choice must be the same to the last tie.

use millrace_ops::{KvFormat, KvLayout, Op, PlaneColumns, PlaneShape, SelectTokens, Selection, WriteKv, as_bytes};

use super::cache::FORMATS;
use super::{Rig, Sequence, Slot, World, upload};

/// (start, rows) of each sequence.
const RAGGED: &[(usize, usize)] = &[(0, 1), (0, 37), (5, 1), (150, 1), (50, 33), (0, 0), (700, 1), (190, 3), (64, 8)];

pub(crate) fn suite(rig: &mut Rig<'_>) {
    for format in FORMATS {
        for (page_tokens, heads, width, limit) in
            [(16, 4, 32, 10), (32, 32, 128, 64), (64, 64, 128, 200), (16, 1, 12, 1), (16, 5, 24, 33), (16, 3, 10, 7)]
        {
            let case = Case { page_tokens, heads, width, limit, numbers: Numbers::Whole };
            choices(rig, case, format, RAGGED);
            choices(rig, Case { numbers: Numbers::Any, ..case }, format, RAGGED);
        }
        let long = Case { page_tokens: 64, heads: 2, width: 16, limit: 2048, numbers: Numbers::Whole };
        choices(rig, long, format, &[(9000, 2), (2047, 3)]);
        nan_is_lowest(rig, format);
        flagged_sequences(rig, format);
        alone_and_in_a_batch(rig, format);
    }
    let wide = Case { page_tokens: 64, heads: 1, width: 2, limit: 100, numbers: Numbers::Whole };
    choices(rig, wide, KvFormat::Bf16, &[(150_000, 1)]);
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Numbers {
    /// Integers of at most 7, which all formats hold.
    Whole,
    Any,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    page_tokens: usize,
    heads: usize,
    width: usize,
    limit: usize,
    numbers: Numbers,
}

pub(crate) struct Built {
    pub(crate) world: World,
    pub(crate) op: SelectTokens,
    queries: Vec<f32>,
    head_weights: Vec<f32>,
}

fn numbers(rig: &mut Rig<'_>, count: usize, kind: Numbers) -> Vec<f32> {
    let numbers = rig.random.floats(count);
    if kind == Numbers::Any { numbers } else { numbers.iter().map(|v| (v * 7.9).trunc()).collect() }
}

/// Writes index keys up to the step's last rows, and makes its SelectTokens.
fn build(rig: &mut Rig<'_>, case: Case, format: KvFormat, shapes: &[(usize, usize)]) -> Built {
    let Case { page_tokens, heads, width, limit, numbers: kind } = case;
    let index_keys = Some(PlaneShape { layers: 2, width });
    let layout = KvLayout::latent(PlaneShape { layers: 3, width: 16 }, index_keys, page_tokens, format);
    let world = World::new(rig, layout, shapes);
    world.set_step(rig, |s| (0, s.start + s.rows));
    let rows: usize = shapes.iter().map(|s| s.0 + s.1).sum();
    let mut x = numbers(rig, rows * width, kind);
    if kind == Numbers::Whole {
        // A largest magnitude of 7 makes the scale of every FP8 token 2^-6.
        x.iter_mut().step_by(width).for_each(|v| *v = 7.0);
    }
    write(rig, &world, &x, shapes.len());
    world.set_step(rig, |s| (s.start, s.rows));
    let rows = world.rows();
    let (queries, head_weights) = (numbers(rig, rows * heads * width, kind), numbers(rig, rows * heads, kind));
    let op = SelectTokens {
        cache: world.cache.clone(),
        step: world.step.clone(),
        plane: 1,
        layer: 1,
        queries: rig.floats(&queries),
        head_weights: rig.floats(&head_weights),
        heads,
        selection: Selection { tokens: rig.words(&vec![u32::MAX; rows * limit]), limit },
        rows,
        sequences: shapes.len(),
    };
    Built { world, op, queries, head_weights }
}

/// A selection as tests of threads want it: numbers of every kind.
pub(crate) fn build_any(rig: &mut Rig<'_>, format: KvFormat, shapes: &[(usize, usize)]) -> Built {
    build(rig, Case { page_tokens: 64, heads: 32, width: 128, limit: 100, numbers: Numbers::Any }, format, shapes)
}

/// The same with keys so narrow that contexts may be long.
pub(crate) fn build_narrow(rig: &mut Rig<'_>, format: KvFormat, shapes: &[(usize, usize)]) -> Built {
    build(rig, Case { page_tokens: 64, heads: 1, width: 2, limit: 100, numbers: Numbers::Any }, format, shapes)
}

/// Writes index keys of the step's rows.
fn write(rig: &mut Rig<'_>, world: &World, x: &[f32], sequences: usize) {
    let stride = world.cache.layout.planes[1].width;
    let rows = x.len() / stride;
    let x = rig.floats(x);
    let (cache, step) = (world.cache.clone(), world.step.clone());
    let planes = vec![PlaneColumns { plane: 1, layer: 1, offset: 0 }];
    rig.run([Op::WriteKv(WriteKv { cache, step, x, stride, planes, rows, sequences })]);
}

/// Scores of the tokens up to each row's own.
fn scores(rig: &Rig<'_>, built: &Built) -> Vec<Vec<f64>> {
    let Built { world, op, .. } = built;
    let pages = rig.read(&world.cache.pages);
    let width = world.cache.layout.planes[1].width;
    let mut all = Vec::new();
    for (s, sequence) in world.sequences.iter().enumerate() {
        let at = |channel| Slot { plane: 1, layer: 1, head: 0, channel };
        let tokens = sequence.start + sequence.rows;
        let keys: Vec<f64> = (0..tokens * width).map(|i| world.stored(&pages, s, i / width, at(i % width))).collect();
        for i in 0..sequence.rows {
            let queries = &built.queries[all.len() * op.heads * width..][..op.heads * width];
            let weights = &built.head_weights[all.len() * op.heads..][..op.heads];
            let score = |key: &[f64]| {
                let of_head = |(query, weight): (&[f32], &f32)| {
                    let product: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum();
                    f64::from(*weight) * if product < 0.0 { 0.0 } else { product }
                };
                queries.chunks(width).zip(weights).map(of_head).sum()
            };
            all.push(keys[..(sequence.start + i + 1) * width].chunks(width).map(score).collect());
        }
    }
    all
}

/// The indices of the highest scores, by sorting.
fn highest(scores: &[f64], count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    let value = |i: u32| if scores[i as usize].is_nan() { f64::NEG_INFINITY } else { scores[i as usize] };
    order.sort_by(|a, b| value(*b).total_cmp(&value(*a)).then(a.cmp(b)));
    order.truncate(count);
    order.sort_unstable();
    order
}

fn choices(rig: &mut Rig<'_>, case: Case, format: KvFormat, shapes: &[(usize, usize)]) {
    let built = build(rig, case, format, shapes);
    rig.run([Op::SelectTokens(built.op.clone())]);
    let got = rig.read_words(&built.op.selection.tokens);
    for (row, (scores, line)) in scores(rig, &built).iter().zip(got.chunks(case.limit)).enumerate() {
        let count = case.limit.min(scores.len());
        let (line, rest) = line.split_at(count);
        let what = format!("row {row} of {case:?} over {format}");
        assert!(rest.iter().all(|token| *token == u32::MAX), "{what}: nothing is written behind a line");
        let want = highest(scores, count);
        if case.numbers == Numbers::Whole {
            assert_eq!(line, want, "{what}");
            continue;
        }
        assert!(line.is_sorted_by(|a, b| a < b), "{what}: ascending");
        // Rounding may exchange neighbours in rank, no others.
        let lowest = want.iter().map(|token| scores[*token as usize]).fold(f64::INFINITY, f64::min);
        let error = rig.tolerance * case.heads as f64;
        for token in line {
            assert!(scores[*token as usize] >= lowest - error, "{what}: token {token} is too low for {lowest}");
        }
    }
}

/// Of 30 tokens, three have keys that are NaN; then a query is.
fn nan_is_lowest(rig: &mut Rig<'_>, format: KvFormat) {
    let case = Case { page_tokens: 16, heads: 2, width: 32, limit: 28, numbers: Numbers::Whole };
    let mut built = build(rig, case, format, &[(29, 1)]);
    for bad in [4, 17, 22] {
        built.world.set_step(rig, |_| (bad, 1));
        let mut key = [1.0; 32];
        key[bad] = f32::NAN;
        write(rig, &built.world, &key, 1);
    }
    built.world.set_step(rig, |s| (s.start, s.rows));
    // Every head counts, so that no weight of 0 hides a product; NaN times 0 is NaN as well.
    built.op.head_weights = rig.floats(&[1.0, 0.0]);
    rig.run([Op::SelectTokens(built.op.clone())]);
    let want: Vec<u32> = (0..30).filter(|token| ![17, 22].contains(token)).collect();
    assert_eq!(rig.read_words(&built.op.selection.tokens), want, "the first NaN fills the line over {format}");
    built.queries[33] = f32::NAN;
    built.op.queries = rig.floats(&built.queries);
    rig.run([Op::SelectTokens(built.op.clone())]);
    let first: Vec<u32> = (0..28).collect();
    assert_eq!(rig.read_words(&built.op.selection.tokens), first, "ties of NaN go to the lowest positions");
}

/// Their lines are valid, and those of others what they were.
fn flagged_sequences(rig: &mut Rig<'_>, format: KvFormat) {
    let case = Case { page_tokens: 16, heads: 4, width: 16, limit: 12, numbers: Numbers::Whole };
    let built = build(rig, case, format, &[(300, 1), (40, 2), (5, 1)]);
    rig.run([upload(&built.world.step.verdicts, as_bytes(&[1u32, 0, 1])), Op::SelectTokens(built.op.clone())]);
    let got = rig.read_words(&built.op.selection.tokens);
    let scores = scores(rig, &built);
    let first: Vec<u32> = (0..12).collect();
    assert_eq!((&got[..12], &got[36..42]), (&first[..], &first[..6]));
    assert_eq!(got[12..24], highest(&scores[1], 12));
    assert_eq!(got[24..36], highest(&scores[2], 12));
}

fn alone_and_in_a_batch(rig: &mut Rig<'_>, format: KvFormat) {
    let built = build_any(rig, format, &[(5000, 1), (150, 40), (600, 1)]);
    let (op, limit) = (&built.op, built.op.selection.limit);
    rig.run([Op::SelectTokens(op.clone())]);
    let together = rig.read_words(&op.selection.tokens);
    for (sequence, first_row, skip, rows) in [(0, 0, 0, 1), (1, 1, 0, 40), (2, 41, 0, 1), (1, 20, 19, 1)] {
        let table = &built.world.sequences[sequence].table[0];
        let others_are_empty = |s: &Sequence| if s.table[0].page == table.page { (s.start + skip, rows) } else { (s.start, 0) };
        built.world.set_step(rig, others_are_empty);
        let queries = rig.floats(&built.queries[first_row * op.heads * 128..]);
        let head_weights = rig.floats(&built.head_weights[first_row * op.heads..]);
        let tokens = rig.words(&vec![u32::MAX; rows * limit]);
        let selection = Selection { tokens: tokens.clone(), limit };
        rig.run([Op::SelectTokens(SelectTokens { queries, head_weights, selection, rows, ..op.clone() })]);
        let alone = rig.read_words(&tokens);
        assert_eq!(alone, &together[first_row * limit..][..rows * limit], "sequence {sequence} over {format} alone");
    }
}
