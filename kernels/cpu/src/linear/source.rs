//! Rows of checkpoint tensors on their way into panels: as integer codes with 16-bit scales, or as values of a format.
//! Knows the formats of tensors; not where a row will lie.

use half::{bf16, f16};
use millrace_ops::{TensorData, TensorFormat, TensorView, e4m3_from_f32, e4m3_to_f32};

use super::layout::{BLOCK_COLS, Codes, DENSE_BLOCK_COLS, IntLayout, Scales};
use super::quantize::{self, NotFinite, Quantized};

/// One row of an integer weight, in the terms of its [`IntLayout`].
pub(super) struct IntRow {
    /// `blocks * 32`.
    pub(super) codes: Vec<u8>,
    pub(super) scales: Vec<u16>,
    /// f16 bits; only meaningful in affine layouts.
    pub(super) minima: Vec<u16>,
    values: Vec<f32>,
}

impl IntRow {
    pub(super) fn new(layout: &IntLayout, cols: usize) -> Self {
        let blocks = layout.blocks;
        Self { codes: vec![0; blocks * BLOCK_COLS], scales: vec![0; blocks], minima: vec![0; blocks], values: vec![0.0; cols] }
    }

    /// The row's values as the layout holds them.
    pub(super) fn values(&self, layout: &IntLayout, out: &mut [f32]) {
        for (i, value) in out.iter_mut().enumerate() {
            let (code, block) = (f32::from(self.codes[i]), i / BLOCK_COLS);
            let scale = quantize::decode(self.scales[block], layout.scales);
            *value = match layout.scales {
                Scales::AffineF16 => scale * code + f16::from_bits(self.minima[block]).to_f32(),
                Scales::F16 | Scales::Bf16 => scale * (code - f32::from(layout.zero())),
            };
        }
    }

    /// Takes logical row `row` of `view`, whose format settled the layout (see `pack::int_layout`).
    pub(super) fn take(&mut self, view: &TensorView<'_>, row: usize, layout: &IntLayout) -> Result<(), NotFinite> {
        let bytes = view.row_bytes(row);
        match view.data {
            TensorData::Q4_1(_) => {
                for (b, block) in bytes.chunks_exact(20).enumerate() {
                    unpack_nibbles(&block[4..], &mut self.codes[b * 32..][..32]);
                    self.scales[b] = u16::from_le_bytes([block[0], block[1]]);
                    self.minima[b] = u16::from_le_bytes([block[2], block[3]]);
                }
                Ok(())
            }
            TensorData::Q4_0(_) => {
                for (b, block) in bytes.chunks_exact(18).enumerate() {
                    unpack_nibbles(&block[2..], &mut self.codes[b * 32..][..32]);
                    self.settle(b, u16::from_le_bytes([block[0], block[1]]), 8, layout)?;
                }
                Ok(())
            }
            TensorData::Q8_0(_) if layout.codes != Codes::Nibbles => {
                for (b, block) in bytes.chunks_exact(34).enumerate() {
                    for (code, q) in self.codes[b * 32..][..32].iter_mut().zip(&block[2..]) {
                        *code = q ^ 0x80;
                    }
                    self.settle(b, u16::from_le_bytes([block[0], block[1]]), 128, layout)?;
                }
                Ok(())
            }
            TensorData::Int4Group { scales, group, .. } => {
                for (pair, byte) in self.codes.chunks_exact_mut(2).zip(bytes) {
                    pair.copy_from_slice(&[byte & 0xf, byte >> 4]);
                }
                let first = view.stored_row(row) * (view.cols / group);
                for b in 0..layout.blocks {
                    let at = (first + b * BLOCK_COLS / group) * 2;
                    self.settle(b, u16::from_le_bytes([scales[at], scales[at + 1]]), 8, layout)?;
                }
                Ok(())
            }
            _ => self.quantize(view, row, layout),
        }
    }

    fn quantize(&mut self, view: &TensorView<'_>, row: usize, layout: &IntLayout) -> Result<(), NotFinite> {
        let mut values = std::mem::take(&mut self.values);
        view.row_values(row, &mut values);
        for (b, x) in values.chunks(BLOCK_COLS).enumerate() {
            let (block, zero): (Quantized, u8) = match layout.codes {
                Codes::Wide => (quantize::int8_block(x, layout.scales)?, 128),
                Codes::Nibbles | Codes::Narrow => (quantize::int4_block(x, layout.scales)?, 8),
            };
            self.codes[b * BLOCK_COLS..][..BLOCK_COLS].copy_from_slice(&block.codes);
            self.settle(b, block.scale, zero, layout)?;
        }
        self.values = values;
        Ok(())
    }

    /// Brings block `b`, whose codes are there with `zero` as the code of 0, into the layout's terms.
    fn settle(&mut self, b: usize, scale: u16, zero: u8, layout: &IntLayout) -> Result<(), NotFinite> {
        self.scales[b] = scale;
        if layout.scales == Scales::AffineF16 {
            // Exact: zero is a power of two. Only an overflow can spoil it.
            let minimum = f16::from_f32(-f32::from(zero) * f16::from_bits(scale).to_f32());
            self.minima[b] = minimum.to_bits();
            return if minimum.is_finite() { Ok(()) } else { Err(NotFinite) };
        }
        let shift = layout.zero() - zero;
        if shift > 0 {
            self.codes[b * BLOCK_COLS..][..BLOCK_COLS].iter_mut().for_each(|code| *code += shift);
        }
        Ok(())
    }
}

fn unpack_nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (byte & 0xf, byte >> 4);
    }
}

/// A part of an FP8 weight: its own blocks, or the scales found for it.
pub(super) enum Fp8Part<'a> {
    Stored {
        codes: TensorView<'a>,
        scales: &'a [u8],
    },
    /// f32 `[ceil(rows/128), ceil(cols/128)]` over logical rows.
    Quantized {
        view: TensorView<'a>,
        scales: Vec<f32>,
    },
}

impl<'a> Fp8Part<'a> {
    pub(super) fn new(view: &TensorView<'a>) -> Result<Self, NotFinite> {
        if let TensorData::Fp8Block { scales, .. } = view.data {
            return Ok(Self::Stored { codes: *view, scales });
        }
        let across = view.cols.div_ceil(DENSE_BLOCK_COLS);
        let mut scales = vec![0.0f32; view.rows.div_ceil(DENSE_BLOCK_COLS) * across];
        let mut values = vec![0.0; view.cols];
        for row in 0..view.rows {
            view.row_values(row, &mut values);
            let line = &mut scales[row / DENSE_BLOCK_COLS * across..][..across];
            for (scale, x) in line.iter_mut().zip(values.chunks(DENSE_BLOCK_COLS)) {
                *scale = scale.max(quantize::largest(x)?);
            }
        }
        scales.iter_mut().for_each(|scale| *scale = quantize::fp8_scale(*scale));
        Ok(Self::Quantized { view: *view, scales })
    }

    /// Codes of logical row `row` and one scale per 128 columns. NaN codes and scales that overflow are refused.
    pub(super) fn take(&self, row: usize, codes: &mut [u8], row_scales: &mut [f32]) -> Result<(), NotFinite> {
        match self {
            Self::Stored { codes: view, scales } => {
                codes.copy_from_slice(view.row_bytes(row));
                let first = view.stored_row(row) / DENSE_BLOCK_COLS * row_scales.len();
                for (scale, bytes) in row_scales.iter_mut().zip(scales.chunks_exact(4).skip(first)) {
                    *scale = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            Self::Quantized { view, scales } => {
                let mut values = vec![0.0; view.cols];
                view.row_values(row, &mut values);
                row_scales.copy_from_slice(&scales[row / DENSE_BLOCK_COLS * row_scales.len()..][..row_scales.len()]);
                for (c, (code, v)) in codes.iter_mut().zip(&values).enumerate() {
                    *code = e4m3_from_f32(v / row_scales[c / DENSE_BLOCK_COLS]);
                }
            }
        }
        let finite = row_scales.iter().all(|scale| (scale * 256.0).is_finite()) && codes.iter().all(|code| code & 0x7f != 0x7f);
        if finite { Ok(()) } else { Err(NotFinite) }
    }
}

/// Values of FP8 codes, for reference products.
pub(super) fn fp8_values(codes: &[u8], scales: &[f32], out: &mut [f32]) {
    for (c, (value, &code)) in out.iter_mut().zip(codes).enumerate() {
        *value = e4m3_to_f32(code) * scales[c / DENSE_BLOCK_COLS];
    }
}

/// Rounds values to BF16.
pub(super) fn round_to_bf16(values: &mut [f32]) {
    values.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32());
}

/// Whether a tensor's codes are 4-bit ones, kept as they are.
pub(super) fn is_four_bit(format: TensorFormat) -> bool {
    matches!(format, TensorFormat::Q4_0 | TensorFormat::Q4_1 | TensorFormat::Int4Group)
}
