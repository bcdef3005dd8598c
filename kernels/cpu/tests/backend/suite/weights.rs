//! Weights and activations that every format holds exactly, so that products are compared with f64 as closely in INT4 as in
//! f32. Knows no operation.

use std::sync::Arc;

use half::bf16;
use millrace_ops::{Activations, RowOrder, TensorData, TensorView, Weight, WeightFormat, e4m3_to_f32};

use super::Rig;

pub(crate) const FORMATS: [WeightFormat; 5] =
    [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Fp8, WeightFormat::Int8, WeightFormat::Int4];

/// Columns that share a scale in INT8 and INT4, and of activations.
const BLOCK: usize = 32;
/// Rows and columns that share a scale in FP8.
const FP8_BLOCK: usize = 128;

/// Shape of a weight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// Weights of one shape with their exact values.
pub(crate) struct Weights {
    pub(crate) shape: Shape,
    pub(crate) format: WeightFormat,
    values: Vec<Vec<f32>>,
    pub(crate) packed: Arc<[Weight]>,
}

impl Weights {
    pub(crate) fn random(rig: &mut Rig<'_>, count: usize, shape: Shape, format: WeightFormat) -> Self {
        let values: Vec<Vec<f32>> = (0..count).map(|_| values(rig, shape, format)).collect();
        let packed = values.iter().map(|values| prepare(rig, values, shape, format)).collect();
        Self { shape, format, values, packed }
    }

    /// Products of one input row, in f64, and for each the sum of magnitudes that rounding errors scale with.
    pub(crate) fn product(&self, index: usize, x: &[f32]) -> Vec<(f64, f64)> {
        let terms = |w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).collect::<Vec<_>>();
        let sums = |terms: Vec<f64>| (terms.iter().sum(), terms.iter().map(|term| term.abs()).sum());
        self.values[index].chunks(self.shape.cols).map(|w| sums(terms(w))).collect()
    }
}

fn prepare(rig: &Rig<'_>, values: &[f32], Shape { rows, cols }: Shape, format: WeightFormat) -> Weight {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = TensorView { name: "w", rows, cols, data: TensorData::F32(&bytes), order: RowOrder::AsStored };
    rig.backend.prepare_weight(&[view], format, Activations::Coarse).expect("a weight")
}

/// Values on the grid of a format, with an end of the grid in every block, so that its scale is a power of two.
fn values(rig: &mut Rig<'_>, Shape { rows, cols }: Shape, format: WeightFormat) -> Vec<f32> {
    let mut value = |row: usize, col: usize| match format {
        WeightFormat::F32 => rig.random.float(),
        WeightFormat::Bf16 => bf16::from_f32(rig.random.float()).to_f32(),
        WeightFormat::Fp8 if row.is_multiple_of(FP8_BLOCK) && col.is_multiple_of(FP8_BLOCK) => 448.0 / 512.0,
        WeightFormat::Fp8 => {
            let sign = if rig.random.below(2) == 0 { 0 } else { 0x80 };
            e4m3_to_f32(rig.random.below(0x7f) as u8 | sign) / 512.0
        }
        WeightFormat::Int8 if col.is_multiple_of(BLOCK) => -127.0 / 128.0,
        WeightFormat::Int8 => (rig.random.below(255) as f32 - 127.0) / 128.0,
        WeightFormat::Int4 if col.is_multiple_of(BLOCK) => -1.0,
        WeightFormat::Int4 => (rig.random.below(16) as f32 - 8.0) / 8.0,
    };
    (0..rows * cols).map(|i| value(i / cols, i % cols)).collect()
}

/// One input of a product: multiples of 1/128, with 127 of them in every block.
pub(crate) fn activations(rig: &mut Rig<'_>, cols: usize) -> Vec<f32> {
    let step =
        |rig: &mut Rig<'_>, col: usize| if col.is_multiple_of(BLOCK) { 127.0 } else { rig.random.below(255) as f32 - 127.0 };
    (0..cols).map(|col| step(rig, col) / 128.0).collect()
}

/// f32 sums of exact values: a few roundings of the sum of magnitudes.
pub(crate) fn expect_products(what: &str, got: &[f32], want: &[(f64, f64)]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (got, (want, size))) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= 1e-6 * size + 1e-7, "{what}: element {i} is {got}, want {want} (error {error:e} of {size})");
    }
}
