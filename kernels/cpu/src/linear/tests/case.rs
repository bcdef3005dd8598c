//! A product as tests run it, and what it should come to, in f64. Knows no single test.

use half::bf16;
use millrace_ops::{LinearMode, WeightFormat};

use super::tensors::Tensor;
use crate::Isa;
use crate::linear::activations::quantize_block;
use crate::linear::layout::BLOCK_COLS;
use crate::linear::{CpuCompute, LinearTask, PackedWeight, QuantizedRows, StepRows, multiply, quantize};

/// What is in the output before, and must still be where nothing is to be written.
pub(super) const BEFORE: f32 = -7.25;

/// A product with padded rows of `x` and `out`.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) weight: &'a PackedWeight,
    pub(super) x: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) mode: LinearMode,
    pub(super) steps: StepRows,
    /// Panels per call of `multiply`.
    pub(super) chunk: usize,
}

impl<'a> Case<'a> {
    pub(super) fn new(weight: &'a PackedWeight, x: &'a [f32]) -> Self {
        Self { weight, x, bias: None, mode: LinearMode::Store, steps: StepRows::Many, chunk: usize::MAX }
    }

    /// Runs rows `first .. first + count` and returns `count` rows of outputs.
    pub(super) fn run(&self, first: usize, count: usize) -> Vec<f32> {
        let (rows, cols) = (self.weight.rows, self.weight.cols);
        let stride = rows + 3;
        let mut out = vec![BEFORE; count * stride];
        let task = LinearTask {
            weight: self.weight,
            form: self.weight.form(self.steps),
            x: self.x[first * cols..].as_ptr(),
            x_stride: cols,
            rows: count,
            quantized_row: first % 3,
            out: out.as_mut_ptr(),
            out_stride: stride,
            bias: self.bias.map(<[f32]>::as_ptr),
            mode: self.mode,
        };
        let mut scratch = QuantizedRows::new();
        scratch.reserve((first % 3 + count) * task.passes(), cols).unwrap();
        let chunk = self.chunk.min(self.weight.panel_count());
        // SAFETY: `x`, `out` and `bias` hold what the task says; one thread does everything in order.
        unsafe {
            if task.form.in_scratch() {
                quantize(&task, 0..count, &scratch);
            }
            for panel in (0..self.weight.panel_count()).step_by(chunk) {
                multiply(&task, panel..panel + chunk, &scratch);
            }
        }
        for row in out.chunks(stride) {
            assert!(row[rows..].iter().all(|&v| v == BEFORE), "wrote beyond the row");
        }
        out.chunks(stride).flat_map(|row| row[..rows].to_vec()).collect()
    }
}

/// What products differ by: instruction sets, and for those with products of BF16 what steps are like.
pub(super) fn kernels() -> Vec<(Isa, StepRows)> {
    let many = Isa::available().into_iter().map(|isa| (isa, StepRows::Many));
    many.chain(with_bf16().into_iter().map(|isa| (isa, StepRows::Few))).collect()
}

/// Instruction sets of this machine that multiply in BF16.
pub(super) fn with_bf16() -> Vec<Isa> {
    let sets: Vec<Isa> = Isa::available().into_iter().filter(|isa| isa.multiplies_bf16()).collect();
    if sets.is_empty() {
        eprintln!("nothing to test: this machine has no {}", Isa::Avx512Bf16);
    }
    sets
}

pub(super) fn pack(tensor: &Tensor, format: WeightFormat, isa: Isa) -> PackedWeight {
    PackedWeight::pack(&[tensor.view()], format, CpuCompute::Fast, isa).unwrap()
}

/// What the kernel multiplies by: the activations, quantized or in parts where the weight wants it.
pub(super) fn effective(weight: &PackedWeight, steps: StepRows, x: &[f32]) -> Vec<f64> {
    let form = weight.form(steps);
    if form.tiles() {
        return x.iter().map(|&v| in_parts(v, form.passes())).collect();
    }
    if !form.in_scratch() {
        return x.iter().map(|&v| f64::from(v)).collect();
    }
    let rows = x.chunks(weight.cols);
    let blocks = rows.flat_map(|row| row.chunks(BLOCK_COLS));
    blocks
        .flat_map(|chunk| {
            let block = quantize_block(chunk);
            (0..chunk.len()).map(move |i| f64::from(block.q[i]) * f64::from(block.scale)).collect::<Vec<f64>>()
        })
        .collect()
}

/// The sum of the parts in BF16 that a value is split into.
pub(super) fn in_parts(v: f32, parts: usize) -> f64 {
    let (mut left, mut sum) = (v, 0.0);
    for _ in 0..parts {
        let part = bf16::from_f32(left).to_f32();
        left -= part;
        sum += f64::from(part);
    }
    sum
}

/// The product in f64, and for each output the sum of magnitudes that rounding errors scale with.
pub(super) fn product(weight: &PackedWeight, x: &[f64]) -> Vec<(f64, f64)> {
    let matrix: Vec<Vec<f32>> = (0..weight.rows)
        .map(|row| {
            let mut values = vec![0.0; weight.cols];
            weight.lookup(row, &mut values);
            values
        })
        .collect();
    let dot = |row: &[f32], x: &[f64]| {
        row.iter().zip(x).fold((0.0, 0.0), |(sum, size), (&w, x)| (sum + f64::from(w) * x, size + (f64::from(w) * x).abs()))
    };
    x.chunks(weight.cols).flat_map(|x| matrix.iter().map(|row| dot(row, x)).collect::<Vec<_>>()).collect()
}

/// `tolerance` is relative to the sum of magnitudes.
pub(super) fn check(out: &[f32], right: &[(f64, f64)], tolerance: f64, what: &str) {
    for (i, (&got, &(want, size))) in out.iter().zip(right).enumerate() {
        assert!((f64::from(got) - want).abs() <= tolerance * size + 1e-9, "{what}: output {i} is {got}, not {want} ({size})");
    }
}
