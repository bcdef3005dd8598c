//! Random tensors in every checkpoint format.

use half::{bf16, f16};
use millrace_ops::{RowOrder, TensorData, TensorFormat, TensorView, e4m3_from_f32};

/// A small linear congruential generator (Knuth's constants).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 48) as u8
    }

    /// Between -1 and 1.
    pub(super) fn unit(&mut self) -> f32 {
        let bits = u32::from_le_bytes([self.byte(), self.byte(), self.byte(), 0]);
        bits as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }
}

/// A tensor with its bytes.
pub(super) struct Tensor {
    pub(super) format: TensorFormat,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) order: RowOrder,
    data: Vec<u8>,
    scales: Vec<u8>,
    group: usize,
}

impl Tensor {
    pub(super) fn random(format: TensorFormat, rows: usize, cols: usize, random: &mut Random) -> Self {
        let group = if cols.is_multiple_of(32) { 32 } else { cols };
        let mut tensor = Self { format, rows, cols, order: RowOrder::AsStored, data: Vec::new(), scales: Vec::new(), group };
        match format {
            TensorFormat::F32 => (0..rows * cols).for_each(|_| tensor.data.extend(random.unit().to_le_bytes())),
            TensorFormat::F16 => (0..rows * cols).for_each(|_| tensor.data.extend(f16::from_f32(random.unit()).to_le_bytes())),
            TensorFormat::Bf16 => (0..rows * cols).for_each(|_| tensor.data.extend(bf16::from_f32(random.unit()).to_le_bytes())),
            TensorFormat::Q8_0 => tensor.blocks(random, 32, false),
            TensorFormat::Q4_0 => tensor.blocks(random, 16, false),
            TensorFormat::Q4_1 => tensor.blocks(random, 16, true),
            TensorFormat::Fp8Block => {
                tensor.data.extend((0..rows * cols).map(|_| e4m3_from_f32(random.unit() * 448.0)));
                for _ in 0..rows.div_ceil(128) * cols.div_ceil(128) {
                    tensor.scales.extend((0.002 + 0.001 * random.unit()).to_le_bytes());
                }
            }
            TensorFormat::Int4Group => {
                tensor.data.extend((0..rows * cols / 2).map(|_| random.byte()));
                for _ in 0..rows * (cols / group) {
                    tensor.scales.extend(bf16::from_f32(0.1 + 0.05 * random.unit()).to_le_bytes());
                }
            }
        }
        tensor
    }

    fn blocks(&mut self, random: &mut Random, code_bytes: usize, minimum: bool) {
        let scale = if code_bytes == 32 { 0.008 } else { 0.12 };
        for _ in 0..self.rows * self.cols / 32 {
            self.data.extend(f16::from_f32(scale * (1.0 + 0.5 * random.unit())).to_le_bytes());
            if minimum {
                self.data.extend(f16::from_f32(-8.0 * scale * (1.0 + 0.5 * random.unit())).to_le_bytes());
            }
            self.data.extend((0..code_bytes).map(|_| random.byte()));
        }
    }

    pub(super) fn with_group(mut self, group: usize) -> Self {
        self.group = group;
        self
    }

    /// Overwrites one stored byte.
    pub(super) fn spoil(&mut self, at: usize, byte: u8) {
        self.data[at] = byte;
    }

    pub(super) fn view(&self) -> TensorView<'_> {
        let (data, scales) = (self.data.as_slice(), self.scales.as_slice());
        let data = match self.format {
            TensorFormat::F32 => TensorData::F32(data),
            TensorFormat::F16 => TensorData::F16(data),
            TensorFormat::Bf16 => TensorData::Bf16(data),
            TensorFormat::Q8_0 => TensorData::Q8_0(data),
            TensorFormat::Q4_0 => TensorData::Q4_0(data),
            TensorFormat::Q4_1 => TensorData::Q4_1(data),
            TensorFormat::Fp8Block => TensorData::Fp8Block { codes: data, scales },
            TensorFormat::Int4Group => TensorData::Int4Group { packed: data, scales, group: self.group },
        };
        TensorView { name: "t", rows: self.rows, cols: self.cols, data, order: self.order }
    }
}

pub(super) const FORMATS: [TensorFormat; 8] = [
    TensorFormat::F32,
    TensorFormat::F16,
    TensorFormat::Bf16,
    TensorFormat::Q8_0,
    TensorFormat::Q4_0,
    TensorFormat::Q4_1,
    TensorFormat::Fp8Block,
    TensorFormat::Int4Group,
];

/// Shapes that a format can have, among them odd ones.
pub(super) fn shapes(format: TensorFormat) -> &'static [(usize, usize)] {
    match format {
        TensorFormat::Q8_0 | TensorFormat::Q4_0 | TensorFormat::Q4_1 => &[(1, 32), (40, 96), (77, 160)],
        TensorFormat::Int4Group => &[(3, 8), (40, 96), (77, 160), (18, 200)],
        _ => &[(1, 1), (17, 33), (45, 200), (64, 80), (139, 259)],
    }
}
