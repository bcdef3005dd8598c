//! Random tensors in every checkpoint format.

use half::{bf16, f16};
use millrace_ops::{RowOrder, ScaleData, TensorData, TensorFormat, TensorView, e4m3_from_f32};

use crate::linear::scale_type::ScaleType;

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
    scales: Vec<f32>,
    scale_type: ScaleType,
    /// `scales` in `scale_type`.
    scale_bytes: Vec<u8>,
    zeros: Vec<u8>,
    group: usize,
}

impl Tensor {
    /// FP8 scales are F32, INT4 scales BF16 in groups of 32 where the columns allow it, else one per row; see
    /// [`Self::packed`] and [`Self::with_scales`].
    pub(super) fn random(format: TensorFormat, rows: usize, cols: usize, random: &mut Random) -> Self {
        let group = if cols.is_multiple_of(32) { 32 } else { cols };
        let scale_type = if format.is_fp8() { ScaleType::F32 } else { ScaleType::Bf16 };
        let mut tensor = Self {
            format,
            rows,
            cols,
            order: RowOrder::AsStored,
            data: Vec::new(),
            scales: Vec::new(),
            scale_type,
            scale_bytes: Vec::new(),
            zeros: Vec::new(),
            group,
        };
        match format {
            TensorFormat::F32 => (0..rows * cols).for_each(|_| tensor.data.extend(random.unit().to_le_bytes())),
            TensorFormat::F16 => (0..rows * cols).for_each(|_| tensor.data.extend(f16::from_f32(random.unit()).to_le_bytes())),
            TensorFormat::Bf16 => (0..rows * cols).for_each(|_| tensor.data.extend(bf16::from_f32(random.unit()).to_le_bytes())),
            TensorFormat::Q8_0 => tensor.blocks(random, 32, false),
            TensorFormat::Q4_0 => tensor.blocks(random, 16, false),
            TensorFormat::Q4_1 => tensor.blocks(random, 16, true),
            TensorFormat::Fp8Block | TensorFormat::Fp8Channel | TensorFormat::Fp8Tensor => {
                tensor.data.extend((0..rows * cols).map(|_| e4m3_from_f32(random.unit() * 448.0)));
                let scales = match format {
                    TensorFormat::Fp8Block => rows.div_ceil(128) * cols.div_ceil(128),
                    TensorFormat::Fp8Channel => rows,
                    _ => 1,
                };
                tensor.scales.extend((0..scales).map(|_| 0.002 + 0.001 * random.unit()));
            }
            TensorFormat::Int4Group | TensorFormat::Int4ZeroPoint => return Self::packed(tensor, random),
        }
        tensor.with_scales(scale_type)
    }

    /// Codes, scales and zeros of a packed tensor of `group` columns.
    fn packed(mut self, random: &mut Random) -> Self {
        let groups = self.cols / self.group;
        self.data = (0..self.rows * self.cols.div_ceil(8) * 4).map(|_| random.byte()).collect();
        self.scales = (0..self.rows * groups).map(|_| 0.1 + 0.05 * random.unit()).collect();
        self.zeros = (0..self.rows.div_ceil(8) * groups * 4).map(|_| random.byte()).collect();
        let scale_type = self.scale_type;
        self.with_scales(scale_type)
    }

    /// The same tensor, its scales rounded to another type.
    pub(super) fn with_scales(mut self, scale_type: ScaleType) -> Self {
        self.scale_type = scale_type;
        self.scale_bytes = vec![0; self.scales.len() * scale_type.bytes()];
        for (scale, to) in self.scales.iter().zip(self.scale_bytes.chunks_exact_mut(scale_type.bytes())) {
            scale_type.put(scale_type.encode(*scale), to);
        }
        self
    }

    /// The same tensor with one scale replaced.
    pub(super) fn with_scale(mut self, index: usize, scale: f32) -> Self {
        self.scales[index] = scale;
        let scale_type = self.scale_type;
        self.with_scales(scale_type)
    }

    /// A packed tensor of other groups.
    pub(super) fn with_group(mut self, group: usize, random: &mut Random) -> Self {
        self.group = group;
        self.packed(random)
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

    /// Overwrites one stored byte.
    pub(super) fn spoil(&mut self, at: usize, byte: u8) {
        self.data[at] = byte;
    }

    pub(super) fn view(&self) -> TensorView<'_> {
        let (data, group) = (self.data.as_slice(), self.group);
        let scales = match self.scale_type {
            ScaleType::F32 => ScaleData::F32(&self.scale_bytes),
            ScaleType::F16 => ScaleData::F16(&self.scale_bytes),
            ScaleType::Bf16 => ScaleData::Bf16(&self.scale_bytes),
        };
        let data = match self.format {
            TensorFormat::F32 => TensorData::F32(data),
            TensorFormat::F16 => TensorData::F16(data),
            TensorFormat::Bf16 => TensorData::Bf16(data),
            TensorFormat::Q8_0 => TensorData::Q8_0(data),
            TensorFormat::Q4_0 => TensorData::Q4_0(data),
            TensorFormat::Q4_1 => TensorData::Q4_1(data),
            TensorFormat::Fp8Block => TensorData::Fp8Block { codes: data, scales },
            TensorFormat::Fp8Channel => TensorData::Fp8Channel { codes: data, scales },
            TensorFormat::Fp8Tensor => TensorData::Fp8Tensor { codes: data, scale: scales.value(0) },
            TensorFormat::Int4Group => TensorData::Int4Group { packed: data, scales, group },
            TensorFormat::Int4ZeroPoint => TensorData::Int4ZeroPoint { packed: data, scales, zeros: &self.zeros, group },
        };
        TensorView { name: "t", rows: self.rows, cols: self.cols, data, order: self.order }
    }
}

/// Shapes that a format can have, among them odd ones.
pub(super) fn shapes(format: TensorFormat) -> &'static [(usize, usize)] {
    match format {
        TensorFormat::Q8_0 | TensorFormat::Q4_0 | TensorFormat::Q4_1 => &[(1, 32), (40, 96), (77, 160)],
        TensorFormat::Int4Group | TensorFormat::Int4ZeroPoint => &[(3, 8), (9, 37), (40, 96), (77, 160), (18, 200)],
        _ => &[(1, 1), (17, 33), (45, 200), (64, 80), (139, 259)],
    }
}

/// Packed INT4 tensors in every group size and scale type: groups of 32, 64, 128, 96 and whole rows, of 32 columns and odd ones.
pub(super) fn packed_int4(random: &mut Random) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    for format in [TensorFormat::Int4Group, TensorFormat::Int4ZeroPoint] {
        for scale_type in [ScaleType::F16, ScaleType::Bf16, ScaleType::F32] {
            for (rows, cols, group) in
                [(45, 256, 32), (21, 192, 64), (45, 256, 128), (33, 192, 96), (19, 256, 256), (17, 75, 75), (40, 140, 140)]
            {
                tensors.push(Tensor::random(format, rows, cols, random).with_group(group, random).with_scales(scale_type));
            }
        }
    }
    tensors
}
