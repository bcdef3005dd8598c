//! LinearHeads: each head's own product, over runs of columns with and without gaps between them.

use millrace_ops::{LinearHeads, Op, WeightFormat};

use super::Rig;
use super::weights::{FORMATS, Shape, Weights, activations, expect_products};

pub(crate) fn suite(rig: &mut Rig<'_>) {
    for format in FORMATS {
        for (heads, shape, place) in [
            (3, Shape { rows: 40, cols: 96 }, Place { offset: 0, gap: 0 }),
            (5, Shape { rows: 17, cols: 33 }, Place { offset: 7, gap: 4 }),
            (1, Shape { rows: 1, cols: 1 }, Place { offset: 3, gap: 0 }),
            (4, Shape { rows: 130, cols: 72 }, Place { offset: 1, gap: 64 }),
            (9, Shape { rows: 64, cols: 160 }, Place { offset: 0, gap: 1 }),
        ] {
            let weights = Weights::random(rig, heads, shape, format);
            for rows in [0, 1, 4, 5, 100] {
                separate(rig, &weights, place, rows);
            }
            shared_input(rig, &weights);
        }
    }
    for format in FORMATS {
        batch_independence(rig, format);
    }
}

/// Columns before the first head's and between those of two.
#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    gap: usize,
}

fn run(rig: &mut Rig<'_>, op: LinearHeads) -> Vec<f32> {
    let out = op.out.clone();
    rig.run([Op::LinearHeads(op)]);
    rig.read_floats(&out)
}

fn operation(rig: &mut Rig<'_>, weights: &Weights, place: Place, x: &[f32], rows: usize) -> LinearHeads {
    let heads = weights.packed.len();
    let x_stride = x.len().checked_div(rows).unwrap_or(10_000);
    LinearHeads {
        x: rig.floats(x),
        x_stride,
        x_offset: place.offset,
        x_step: weights.shape.cols + place.gap,
        weights: weights.packed.clone(),
        out: rig.output(rows * heads * weights.shape.rows),
        rows,
    }
}

/// Rows whose columns between heads are NaN, so that a product that reads them shows it.
fn spread(rig: &mut Rig<'_>, weights: &Weights, place: Place, rows: usize) -> (Vec<f32>, Vec<(f64, f64)>) {
    let (mut x, mut want) = (Vec::new(), Vec::new());
    for _ in 0..rows {
        x.extend(vec![f32::NAN; place.offset]);
        for head in 0..weights.packed.len() {
            let input = activations(rig, weights.shape.cols);
            want.extend(weights.product(head, &input));
            x.extend(input);
            x.extend(vec![f32::NAN; place.gap]);
        }
    }
    (x, want)
}

fn separate(rig: &mut Rig<'_>, weights: &Weights, place: Place, rows: usize) {
    let (x, want) = spread(rig, weights, place, rows);
    let op = operation(rig, weights, place, &x, rows);
    let Weights { shape, format, packed, .. } = weights;
    expect_products(&format!("{rows} rows of {} heads, {shape:?} {format}", packed.len()), &run(rig, op), &want);
}

/// A step of 0: all heads read the same columns.
fn shared_input(rig: &mut Rig<'_>, weights: &Weights) {
    let (x, heads) = (activations(rig, weights.shape.cols), weights.packed.len());
    let want: Vec<(f64, f64)> = (0..heads).flat_map(|head| weights.product(head, &x)).collect();
    let op = LinearHeads { x_step: 0, ..operation(rig, weights, Place { offset: 0, gap: 0 }, &x, 1) };
    expect_products(&format!("shared input, {}", weights.format), &run(rig, op), &want);
}

fn batch_independence(rig: &mut Rig<'_>, format: WeightFormat) {
    let (shape, place, rows) = (Shape { rows: 70, cols: 80 }, Place { offset: 2, gap: 3 }, 23);
    let weights = Weights::random(rig, 3, shape, format);
    let (x, _) = spread(rig, &weights, place, rows);
    let op = operation(rig, &weights, place, &x, rows);
    let whole = run(rig, op);
    let (stride, width) = (x.len() / rows, whole.len() / rows);
    for (first, count) in [(0, 1), (5, 2), (11, 7), (22, 1)] {
        let op = operation(rig, &weights, place, &x[first * stride..(first + count) * stride], count);
        assert_eq!(run(rig, op), whole[first * width..(first + count) * width], "{format}: rows {first}.. of {count}");
    }
}
