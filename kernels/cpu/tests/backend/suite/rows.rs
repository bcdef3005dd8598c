//! Operations over rows of floats. Knows no cache.

use millrace_ops::{
    Activations, Embed, GatherRows, Linear, LinearMode, NormHeads, NormKind, Op, RmsNorm, Rope, RopePairs, RowOrder,
    SamplerParams, SiluMul, TensorData, TensorView, Weight, WeightFormat, as_bytes,
};

use super::{Rig, World, close, upload};

pub(crate) fn suite(rig: &mut Rig<'_>) {
    embed(rig);
    rms_norm(rig);
    for format in [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Int8] {
        for rows in [1, 3, 4, 5, 33] {
            linear(rig, format, rows);
        }
    }
    ropes(rig);
    norm_heads(rig);
    silu_mul(rig);
    gather(rig);
}

fn weight(rig: &Rig<'_>, values: &[f32], rows: usize, format: WeightFormat) -> Weight {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let cols = values.len() / rows;
    let view = TensorView { name: "t", rows, cols, data: TensorData::F32(&bytes), order: RowOrder::AsStored };
    rig.backend.prepare_weight(&[view], format, Activations::Coarse).expect("a weight")
}

fn embed(rig: &mut Rig<'_>) {
    let (vocab, cols, rows) = (37, 64, 9);
    let values = rig.random.floats(vocab * cols);
    let table = weight(rig, &values, vocab, WeightFormat::F32);
    let tokens: Vec<u32> = (0..rows).map(|_| rig.random.below(vocab) as u32).collect();
    let (tokens_buffer, out) = (rig.words(&tokens), rig.output(rows * cols));
    rig.run([Op::Embed(Embed { table, tokens: tokens_buffer, out: out.clone(), rows })]);
    let want: Vec<f32> = tokens.iter().flat_map(|t| values[*t as usize * cols..][..cols].to_vec()).collect();
    assert_eq!(rig.read_floats(&out), want);
}

fn rms_norm(rig: &mut Rig<'_>) {
    for (rows, width) in [(1, 576), (5, 64), (33, 48), (3, 17), (2, 1)] {
        let (x, weights) = (rig.random.floats(rows * width), rig.random.floats(width));
        let mut want = Vec::new();
        for row in x.chunks(width) {
            let mean: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64;
            let inverse = 1.0 / (mean + 1e-5f32 as f64).sqrt();
            want.extend(row.iter().zip(&weights).map(|(v, w)| f64::from(*v) * inverse * f64::from(*w)));
        }
        let (buffer, weight, out) = (rig.floats(&x), rig.floats(&weights), rig.output(rows * width));
        let op = RmsNorm { x: buffer.clone(), weight, out: out.clone(), rows, width, eps: 1e-5 };
        let in_place = RmsNorm { out: buffer.clone(), ..op.clone() };
        rig.run([Op::RmsNorm(op)]);
        close("rms_norm", &rig.read_floats(&out), &want, 2e-6);
        rig.run([Op::RmsNorm(in_place)]);
        close("rms_norm in place", &rig.read_floats(&buffer), &want, 2e-6);
    }
}

fn linear(rig: &mut Rig<'_>, format: WeightFormat, rows: usize) {
    let (cols, width) = (96, 40);
    let (x, w, bias) = (rig.random.floats(rows * cols), rig.random.floats(width * cols), rig.random.floats(width));
    let before = rig.random.floats(rows * width);
    let mut want = Vec::new();
    for (row, x) in x.chunks(cols).enumerate() {
        for (column, w) in w.chunks(cols).enumerate() {
            let product: f64 = x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            want.push(product + f64::from(bias[column]) + f64::from(before[row * width + column]));
        }
    }
    let weight = weight(rig, &w, width, format);
    let (x, bias, out) = (rig.floats(&x), rig.floats(&bias), rig.floats(&before));
    rig.run([Op::Linear(Linear { x, weight, bias: Some(bias), out: out.clone(), rows, mode: LinearMode::Add })]);
    // Rounding to the format and of the activations; a wrong element, scale or bias is off by about 1.
    let tolerance = match format {
        WeightFormat::F32 => 2e-5,
        WeightFormat::Bf16 => 5e-2,
        _ => 0.15,
    };
    close(&format!("linear {format} of {rows} rows"), &rig.read_floats(&out), &want, tolerance);
}

/// Where rotary channels lie in a row.
#[derive(Clone, Copy)]
struct Rotary {
    offset: usize,
    heads: usize,
    /// Columns from one head to the next.
    head_dim: usize,
    rotary: usize,
    /// Columns behind the last head's channels.
    tail: usize,
}

fn rope(rig: &mut Rig<'_>, pairs: RopePairs, amplitude: f32, at: Rotary) {
    let Rotary { offset, heads, head_dim, rotary, tail } = at;
    let rows = 7;
    let stride = offset + (heads - 1) * head_dim + rotary + tail;
    let x = rig.random.floats(rows * stride);
    let positions: [u32; 7] = [0, 1, 63, 2048, 8191, 100_003, 131_071];
    let frequencies: Vec<f32> = (0..rotary / 2).map(|i| 100_000f32.powf(-2.0 * i as f32 / rotary as f32)).collect();
    let mut want: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    for (row, position) in positions.iter().enumerate() {
        for head in 0..heads {
            for (i, frequency) in frequencies.iter().enumerate() {
                // The angle in f32, as the reference implementations have it; the rest exact.
                let (sin, cos) = f64::from(*position as f32 * frequency).sin_cos();
                let (sin, cos) = (sin * f64::from(amplitude), cos * f64::from(amplitude));
                let first = row * stride + offset + head * head_dim;
                let (low, high) = match pairs {
                    RopePairs::Halves => (first + i, first + i + rotary / 2),
                    RopePairs::Adjacent => (first + 2 * i, first + 2 * i + 1),
                };
                let (a, b) = (want[low], want[high]);
                want[low] = a * cos - b * sin;
                want[high] = b * cos + a * sin;
            }
        }
    }
    let (x, positions, frequencies) = (rig.floats(&x), rig.words(&positions), rig.floats(&frequencies));
    let rope = Rope { x: x.clone(), stride, offset, heads, head_dim, frequencies, rotary, pairs, amplitude, positions, rows };
    rig.run([Op::Rope(rope)]);
    close(&format!("rope {pairs:?}"), &rig.read_floats(&x), &want, 1e-6);
}

fn ropes(rig: &mut Rig<'_>) {
    for (pairs, amplitude) in [(RopePairs::Halves, 1.0), (RopePairs::Adjacent, 1.0), (RopePairs::Adjacent, 1.369)] {
        for (heads, head_dim, rotary) in [(9, 64, 64), (3, 32, 16), (1, 80, 80), (2, 10, 6), (2, 8, 0), (4, 192, 64)] {
            rope(rig, pairs, amplitude, Rotary { offset: 3, heads, head_dim, rotary, tail: 5 });
            // The rotary channels of the last head may end the row, its head's other columns lying before them.
            rope(rig, pairs, amplitude, Rotary { offset: head_dim - rotary, heads, head_dim, rotary, tail: 0 });
        }
        // One head of rotary keys behind a latent.
        rope(rig, pairs, amplitude, Rotary { offset: 512, heads: 1, head_dim: 0, rotary: 64, tail: 0 });
    }
}

fn norm_heads(rig: &mut Rig<'_>) {
    for (heads, width) in [(1, 512), (9, 128), (3, 48), (2, 17), (5, 1)] {
        for (kind, with_bias) in [NormKind::Rms, NormKind::Layer].into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            let (rows, offset, eps) = (6, 3, 1e-5f32);
            let stride = offset + heads * width + 2;
            let x: Vec<f32> = rig.random.floats(rows * stride).iter().map(|v| v * 3.0 + 1.5).collect();
            let (weights, biases) = (rig.random.floats(width), rig.random.floats(width));
            let mut want: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            for row in want.chunks_mut(stride) {
                for run in row[offset..offset + heads * width].chunks_mut(width) {
                    let mean = if kind == NormKind::Layer { run.iter().sum::<f64>() / width as f64 } else { 0.0 };
                    let square = run.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
                    let inverse = 1.0 / (square + f64::from(eps)).sqrt();
                    for ((v, w), b) in run.iter_mut().zip(&weights).zip(&biases) {
                        *v = (*v - mean) * inverse * f64::from(*w) + if with_bias { f64::from(*b) } else { 0.0 };
                    }
                }
            }
            let (x, weight) = (rig.floats(&x), rig.floats(&weights));
            let bias = with_bias.then(|| rig.floats(&biases));
            let op = NormHeads { x: x.clone(), stride, offset, heads, width, kind, weight, bias, eps, rows };
            rig.run([Op::NormHeads(op)]);
            close(&format!("norm_heads {kind:?} of {width}"), &rig.read_floats(&x), &want, 4e-6);
        }
    }
}

fn silu_mul(rig: &mut Rig<'_>) {
    for (rows, width) in [(1, 1536), (3, 1000), (2, 7)] {
        let mut x: Vec<f32> = rig.random.floats(rows * 2 * width).iter().map(|v| v * 12.0).collect();
        x[0] = -200.0;
        x[1] = 200.0;
        x[2] = -88.5;
        let mut want = Vec::new();
        for row in x.chunks(2 * width) {
            let silu = |g: f32| f64::from(g) / (1.0 + (-f64::from(g)).exp());
            want.extend((0..width).map(|i| silu(row[i]) * f64::from(row[width + i])));
        }
        let (x, out) = (rig.floats(&x), rig.output(rows * width));
        rig.run([Op::SiluMul(SiluMul { x, out: out.clone(), rows, width })]);
        close("silu_mul", &rig.read_floats(&out), &want, 1e-6);
    }
}

fn gather(rig: &mut Rig<'_>) {
    let layout = millrace_ops::KvLayout::grouped_query(1, 1, 16, 16, millrace_ops::KvFormat::F32);
    let world = World::new(rig, layout, &[(0, 4), (3, 1), (0, 9)]);
    world.set_step(rig, |s| (s.start, s.rows));
    let width = 20;
    let x = rig.random.floats(14 * width);
    let samplers: Vec<SamplerParams> = [2, 0].map(|segment| SamplerParams { segment, ..SamplerParams::default() }).to_vec();
    let (buffer, out) = (rig.floats(&x), rig.output(2 * width));
    let op = GatherRows { x: buffer, step: world.step.clone(), out: out.clone(), count: 2, width };
    rig.run([upload(&world.step.samplers, as_bytes(&samplers)), Op::GatherRows(op)]);
    let want = [&x[13 * width..14 * width], &x[3 * width..4 * width]].concat();
    assert_eq!(rig.read_floats(&out), want);
}
