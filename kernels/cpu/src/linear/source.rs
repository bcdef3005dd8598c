//! Rows of checkpoint tensors on their way into panels: as integer codes with 16-bit scales, or as values of a format.
//! Knows the formats of tensors; not where a row will lie.

use half::bf16;
use millrace_ops::{ScaleData, TensorData, TensorView, e4m3_from_f32, e4m3_to_f32};

use super::layout::{BLOCK_COLS, Codes, DENSE_BLOCK_COLS, IntLayout, Offset};
use super::quantize::{self, NotFinite, Quantized};
use super::scale_type::ScaleType;

/// One row of an integer weight, in the terms of its [`IntLayout`].
pub(super) struct IntRow {
    /// `blocks * 32`.
    pub(super) codes: Vec<u8>,
    /// One per span; bits of the layout's type.
    pub(super) scales: Vec<u32>,
    /// One per span, f16 bits; only meaningful with [`Offset::Minimum`].
    pub(super) minima: Vec<u32>,
    /// One per span; only meaningful with [`Offset::Zero`].
    pub(super) zeros: Vec<u8>,
    values: Vec<f32>,
}

impl IntRow {
    pub(super) fn new(layout: &IntLayout, cols: usize) -> Self {
        let spans = layout.spans();
        let codes = vec![0; layout.blocks * BLOCK_COLS];
        Self { codes, scales: vec![0; spans], minima: vec![0; spans], zeros: vec![0; spans], values: vec![0.0; cols] }
    }

    /// The row's values as the layout holds them.
    pub(super) fn values(&self, layout: &IntLayout, out: &mut [f32]) {
        for (i, value) in out.iter_mut().enumerate() {
            let (code, span) = (f32::from(self.codes[i]), i / BLOCK_COLS / layout.span);
            let scale = layout.scale.decode(self.scales[span]);
            *value = match layout.offset {
                Offset::Minimum => scale * code + ScaleType::F16.decode(self.minima[span]),
                Offset::Centre => scale * (code - f32::from(layout.centre())),
                Offset::Zero => scale * (code - f32::from(self.zeros[span])),
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
                    // Minima go with F16 scales and groups of 32.
                    (self.scales[b], self.minima[b]) = (u16_at(block, 0), u16_at(block, 2));
                    if !(ScaleType::F16.is_finite(self.scales[b]) && ScaleType::F16.is_finite(self.minima[b])) {
                        return Err(NotFinite);
                    }
                }
                Ok(())
            }
            TensorData::Q4_0(_) => {
                for (b, block) in bytes.chunks_exact(18).enumerate() {
                    unpack_nibbles(&block[2..], &mut self.codes[b * 32..][..32]);
                    self.settle(b, (ScaleType::F16, u16_at(block, 0)), 8, layout)?;
                }
                Ok(())
            }
            TensorData::Q8_0(_) if layout.codes != Codes::Nibbles => {
                for (b, block) in bytes.chunks_exact(34).enumerate() {
                    for (code, q) in self.codes[b * 32..][..32].iter_mut().zip(&block[2..]) {
                        *code = q ^ 0x80;
                    }
                    self.settle(b, (ScaleType::F16, u16_at(block, 0)), 128, layout)?;
                }
                Ok(())
            }
            TensorData::Int4Group { scales, group, .. } | TensorData::Int4ZeroPoint { scales, group, .. } => {
                let (codes, padding) = self.codes.split_at_mut(bytes.len() * 2);
                for (pair, byte) in codes.chunks_exact_mut(2).zip(bytes) {
                    pair.copy_from_slice(&[byte & 0xf, byte >> 4]);
                }
                // Of the row before, shifted perhaps.
                padding.fill(0);
                for b in 0..layout.blocks {
                    let (index, zero) = view.int4_group(row, b * BLOCK_COLS / group);
                    self.settle(b, (ScaleType::of(&scales), scales.bits(index)), zero, layout)?;
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
                Codes::Wide => (quantize::int8_block(x, layout.scale)?, 128),
                Codes::Nibbles | Codes::Narrow => (quantize::int4_block(x, layout.scale)?, 8),
            };
            self.codes[b * BLOCK_COLS..][..BLOCK_COLS].copy_from_slice(&block.codes);
            self.settle(b, (layout.scale, layout.scale.encode(block.scale)), zero, layout)?;
        }
        self.values = values;
        Ok(())
    }

    /// Brings block `b`, whose codes are there with `zero` as the code of 0, into the layout's terms. `scale`: type and bits.
    fn settle(&mut self, b: usize, scale: (ScaleType, u32), zero: u8, layout: &IntLayout) -> Result<(), NotFinite> {
        let span = b / layout.span;
        let bits = layout.scale.convert(scale.0, scale.1);
        self.scales[span] = bits;
        match layout.offset {
            Offset::Minimum => {
                // Exact: zero is a power of two here. Only an overflow can spoil it.
                self.minima[span] = ScaleType::F16.encode(-f32::from(zero) * layout.scale.decode(bits));
                return if ScaleType::F16.is_finite(self.minima[span]) { Ok(()) } else { Err(NotFinite) };
            }
            Offset::Zero => self.zeros[span] = zero,
            Offset::Centre => {
                // Four-bit zeros below the centre of eight bits; else they are the centre already.
                let shift = layout.centre() - zero;
                if shift > 0 {
                    self.codes[b * BLOCK_COLS..][..BLOCK_COLS].iter_mut().for_each(|code| *code += shift);
                }
            }
        }
        if layout.scale.is_finite(bits) { Ok(()) } else { Err(NotFinite) }
    }
}

fn unpack_nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (byte & 0xf, byte >> 4);
    }
}

/// A part of an FP8 weight: its own codes and scales, or the scales found for it.
pub(super) enum Fp8Part<'a> {
    Stored(TensorView<'a>),
    /// f32 `[ceil(rows/128), ceil(cols/128)]` over logical rows.
    Quantized {
        view: TensorView<'a>,
        scales: Vec<f32>,
    },
}

impl<'a> Fp8Part<'a> {
    pub(super) fn new(view: &TensorView<'a>) -> Result<Self, NotFinite> {
        if view.format().is_fp8() {
            return Ok(Self::Stored(*view));
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
            Self::Stored(view) => {
                codes.copy_from_slice(view.row_bytes(row));
                row_scales.iter_mut().enumerate().for_each(|(block, scale)| *scale = view.fp8_scale(row, block));
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

/// The scales of a packed INT4 tensor, and columns that share one.
pub(super) fn int4_scales<'a>(view: &TensorView<'a>) -> Option<(ScaleData<'a>, usize)> {
    match view.data {
        TensorData::Int4Group { scales, group, .. } | TensorData::Int4ZeroPoint { scales, group, .. } => Some((scales, group)),
        _ => None,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}
