//! DispatchRows, LinearExperts and CombineRows, each by itself and as the layer that they make.

use millrace_ops::{CombineRows, DispatchRows, ExpertBuffers, LinearExperts, Op, RouteRows, RouteRule, SiluMul, WeightFormat};

use super::routing::{Choice, PLAIN, buffers, grouped, routed};
use super::weights::{FORMATS, Shape, Weights, activations, expect_products};
use super::{Rig, close};

pub(crate) fn suite(rig: &mut Rig<'_>) {
    for rows in [0, 1, 7, 100] {
        dispatch_and_combine(rig, rows, 24);
    }
    dispatch_and_combine(rig, 3, 1100);
    for format in FORMATS {
        for shape in [Shape { rows: 40, cols: 96 }, Shape { rows: 17, cols: 33 }, Shape { rows: 200, cols: 72 }] {
            products(rig, shape, format);
        }
        batch_independence(rig, format);
    }
}

/// Rows' experts, `top_k` different ones each, none of them `spared`.
fn random_ids(rig: &mut Rig<'_>, Choice { experts, top_k }: Choice, rows: usize, spared: Option<u32>) -> Vec<u32> {
    let mut ids = Vec::new();
    for _ in 0..rows {
        let mut left: Vec<u32> = (0..experts as u32).filter(|id| Some(*id) != spared).collect();
        for _ in 0..top_k {
            ids.push(left.swap_remove(rig.random.below(left.len())));
        }
    }
    ids
}

fn dispatch_and_combine(rig: &mut Rig<'_>, rows: usize, width: usize) {
    let choice = Choice { experts: 9, top_k: 3 };
    let ids = random_ids(rig, choice, rows, Some(4));
    let (weights, x) = (rig.random.floats(ids.len()), rig.random.floats(rows * width));
    let by = routed(rig, choice, &ids, &weights);
    let (slots, slot_rows, _) = grouped(choice, &ids);
    let (buffer, out) = (rig.floats(&x), rig.output(ids.len() * width));
    rig.run([Op::DispatchRows(DispatchRows { x: buffer, by: by.clone(), out: out.clone(), rows, width })]);
    let want: Vec<f32> = slot_rows.iter().flat_map(|row| x[*row as usize * width..][..width].to_vec()).collect();
    assert_eq!(rig.read_floats(&out), want, "dispatch of {rows} rows");
    let (slot_values, before) = (rig.random.floats(ids.len() * width), rig.random.floats(rows * width));
    let (x, out) = (rig.floats(&slot_values), rig.floats(&before));
    rig.run([Op::CombineRows(CombineRows { x, by, out: out.clone(), rows, width })]);
    let sum = |row: usize, column: usize| {
        let term = |j: usize| f64::from(weights[j]) * f64::from(slot_values[slots[j] as usize * width + column]);
        (row * choice.top_k..(row + 1) * choice.top_k).map(term).sum::<f64>()
    };
    let want: Vec<f64> = before.iter().enumerate().map(|(i, v)| f64::from(*v) + sum(i / width, i % width)).collect();
    close("combine", &rig.read_floats(&out), &want, 5e-7);
}

/// Every slot by its expert's weight, for routings of all kinds.
fn products(rig: &mut Rig<'_>, shape: Shape, format: WeightFormat) {
    let weights = Weights::random(rig, 7, shape, format);
    let choice = |top_k| Choice { experts: 7, top_k };
    let mut cases = vec![(choice(1), vec![]), (choice(1), vec![6; 100]), (choice(1), vec![3])];
    for (top_k, rows, spared) in [(2, 100, Some(3)), (3, 1, None), (7, 9, None), (1, 33, Some(0)), (2, 5, None)] {
        cases.push((choice(top_k), random_ids(rig, choice(top_k), rows, spared)));
    }
    for (choice, ids) in cases {
        let (rows, slots) = (ids.len() / choice.top_k, ids.len());
        let by = routed(rig, choice, &ids, &vec![1.0; slots]);
        let (_, _, starts) = grouped(choice, &ids);
        let (mut x, mut want) = (Vec::new(), Vec::new());
        for slot in 0..slots as u32 {
            let expert = starts.iter().rposition(|start| *start <= slot).expect("starts begin at 0");
            let input = activations(rig, shape.cols);
            want.extend(weights.product(expert, &input));
            x.extend(input);
        }
        let (x, out) = (rig.floats(&x), rig.output(slots * shape.rows));
        rig.run([Op::LinearExperts(LinearExperts { x, weights: weights.packed.clone(), by, out: out.clone(), rows })]);
        let what = format!("{rows} rows of {} at {shape:?} {format}", choice.top_k);
        expect_products(&what, &rig.read_floats(&out), &want);
    }
}

/// A whole layer with its buffers; the router is part of the input.
struct Layer {
    gates: Weights,
    downs: Weights,
    choice: Choice,
    rule: RouteRule,
}

const HIDDEN: usize = 80;
const WIDTH: usize = 40;

impl Layer {
    fn new(rig: &mut Rig<'_>, format: WeightFormat) -> Self {
        let choice = Choice { experts: 6, top_k: 3 };
        let gates = Weights::random(rig, choice.experts, Shape { rows: 2 * WIDTH, cols: HIDDEN }, format);
        let downs = Weights::random(rig, choice.experts, Shape { rows: HIDDEN, cols: WIDTH }, format);
        Self { gates, downs, choice, rule: PLAIN }
    }

    /// Rows of `x` with their logits, as a batch of their own; bits of what comes out.
    fn run(&self, rig: &mut Rig<'_>, x: &[f32], logits: &[f32]) -> Vec<u32> {
        let rows = x.len() / HIDDEN;
        let slots = rows * self.choice.top_k;
        let by: ExpertBuffers = buffers(rig, self.choice, rows);
        let (x, logits) = (rig.floats(x), rig.floats(logits));
        let [sent, gated, inner, back] = [HIDDEN, 2 * WIDTH, WIDTH, HIDDEN].map(|width| rig.output(slots * width));
        let experts = |weights: &Weights, x, out| {
            Op::LinearExperts(LinearExperts { x, weights: weights.packed.clone(), by: by.clone(), out, rows })
        };
        rig.run([
            Op::RouteRows(RouteRows { logits, bias: None, rule: self.rule, to: by.clone(), rows }),
            Op::DispatchRows(DispatchRows { x: x.clone(), by: by.clone(), out: sent.clone(), rows, width: HIDDEN }),
            experts(&self.gates, sent, gated.clone()),
            Op::SiluMul(SiluMul { x: gated, out: inner.clone(), rows: slots, width: WIDTH }),
            experts(&self.downs, inner, back.clone()),
            Op::CombineRows(CombineRows { x: back, by: by.clone(), out: x.clone(), rows, width: HIDDEN }),
        ]);
        rig.read_words(&x)
    }
}

/// Bits of a layer's results for a batch, then for parts of it: a host may cut batches as it likes.
pub(crate) fn layer_bits(rig: &mut Rig<'_>, format: WeightFormat, parts: &[(usize, usize)]) -> Vec<Vec<u32>> {
    let layer = Layer::new(rig, format);
    let rows = parts.iter().map(|(first, count)| first + count).max().unwrap_or(0);
    let (x, logits) = (rig.random.floats(rows * HIDDEN), rig.random.floats(rows * layer.choice.experts));
    let run = |(first, count): &(usize, usize)| {
        let end = first + count;
        let logits = &logits[first * layer.choice.experts..end * layer.choice.experts];
        layer.run(rig, &x[first * HIDDEN..end * HIDDEN], logits)
    };
    parts.iter().map(run).collect()
}

fn batch_independence(rig: &mut Rig<'_>, format: WeightFormat) {
    let parts = [(0, 40), (0, 1), (17, 1), (39, 1), (3, 2), (20, 19)];
    let bits = layer_bits(rig, format, &parts);
    for ((first, count), part) in parts.iter().zip(&bits) {
        assert!(part.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{format}");
        assert_eq!(part[..], bits[0][first * HIDDEN..(first + count) * HIDDEN], "{format}: {count} rows from {first} on");
    }
}
