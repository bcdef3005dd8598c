//! Views of a checkpoint's tensors and the exact values of their formats: the reference that every device agrees with.
//! Does not know files or devices.

use half::{bf16, f16};

use crate::{TensorFormat, e4m3_to_f32};

/// Bytes of a two-dimensional tensor `[rows, cols]` (or a vector: one row) in its own format.
#[derive(Debug, Clone, Copy)]
pub enum TensorData<'a> {
    F32(&'a [u8]),
    F16(&'a [u8]),
    Bf16(&'a [u8]),
    /// 34 bytes per 32 elements.
    Q8_0(&'a [u8]),
    /// 18 bytes per 32 elements; byte j holds element j (low nibble) and j + 16 (high nibble).
    Q4_0(&'a [u8]),
    /// 20 bytes per 32 elements; nibbles as in Q4_0.
    Q4_1(&'a [u8]),
    /// `scales`: f32 `[ceil(rows/128), ceil(cols/128)]`.
    Fp8Block {
        codes: &'a [u8],
        scales: &'a [u8],
    },
    /// `packed`: u32 `[rows, cols/8]`, element c in bits 4*(c%8) of word c/8; `scales`: BF16 `[rows, cols/group]`.
    Int4Group {
        packed: &'a [u8],
        scales: &'a [u8],
        group: usize,
    },
}

/// Which stored row is logical row r.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    AsStored,
    /// GGUF stores q and k of Llama with rotary pairs side by side; logically the halves of a head are apart:
    /// within a head of `head_dim` rows, logical row `i * head_dim/2 + j` is stored row `2 * j + i`.
    RotaryPairs {
        head_dim: usize,
    },
}

/// One tensor of a checkpoint, borrowed from the mapped file. Sizes were checked by whoever made it.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub rows: usize,
    pub cols: usize,
    pub data: TensorData<'a>,
    pub order: RowOrder,
}

impl<'a> TensorView<'a> {
    pub fn format(&self) -> TensorFormat {
        match self.data {
            TensorData::F32(_) => TensorFormat::F32,
            TensorData::F16(_) => TensorFormat::F16,
            TensorData::Bf16(_) => TensorFormat::Bf16,
            TensorData::Q8_0(_) => TensorFormat::Q8_0,
            TensorData::Q4_0(_) => TensorFormat::Q4_0,
            TensorData::Q4_1(_) => TensorFormat::Q4_1,
            TensorData::Fp8Block { .. } => TensorFormat::Fp8Block,
            TensorData::Int4Group { .. } => TensorFormat::Int4Group,
        }
    }

    /// Index of the stored row that is logical row `row`.
    pub fn stored_row(&self, row: usize) -> usize {
        match self.order {
            RowOrder::AsStored => row,
            RowOrder::RotaryPairs { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                let (i, j) = (within / (head_dim / 2), within % (head_dim / 2));
                head * head_dim + 2 * j + i
            }
        }
    }

    /// Stored bytes of logical row `row`, for the formats whose rows are runs of bytes (all but the scales of
    /// `Fp8Block` and `Int4Group`, of which this gives the codes).
    pub fn row_bytes(&self, row: usize) -> &'a [u8] {
        let (bytes, per_row) = match self.data {
            TensorData::F32(b) => (b, self.cols * 4),
            TensorData::F16(b) | TensorData::Bf16(b) => (b, self.cols * 2),
            TensorData::Q8_0(b) => (b, self.cols / 32 * 34),
            TensorData::Q4_0(b) => (b, self.cols / 32 * 18),
            TensorData::Q4_1(b) => (b, self.cols / 32 * 20),
            TensorData::Fp8Block { codes, .. } => (codes, self.cols),
            TensorData::Int4Group { packed, .. } => (packed, self.cols / 2),
        };
        let start = self.stored_row(row) * per_row;
        &bytes[start..start + per_row]
    }

    /// The exact values of logical row `row`; `out` has `cols` elements.
    pub fn row_values(&self, row: usize, out: &mut [f32]) {
        let bytes = self.row_bytes(row);
        match self.data {
            TensorData::F32(_) => fill(out, bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            TensorData::F16(_) => fill(out, bytes.chunks_exact(2).map(|b| f16_at(b, 0))),
            TensorData::Bf16(_) => fill(out, bytes.chunks_exact(2).map(|b| bf16_at(b, 0))),
            TensorData::Q8_0(_) => blocks(out, bytes, 34, |b, i| f16_at(b, 0) * f32::from(b[2 + i] as i8)),
            TensorData::Q4_0(_) => blocks(out, bytes, 18, |b, i| f16_at(b, 0) * (f32::from(nibble(&b[2..], i)) - 8.0)),
            TensorData::Q4_1(_) => blocks(out, bytes, 20, |b, i| f16_at(b, 0) * f32::from(nibble(&b[4..], i)) + f16_at(b, 2)),
            TensorData::Fp8Block { scales, .. } => {
                let start = self.stored_row(row) / 128 * self.cols.div_ceil(128) * 4;
                for (c, (value, &code)) in out.iter_mut().zip(bytes).enumerate() {
                    let at = start + c / 128 * 4;
                    let scale = f32::from_le_bytes([scales[at], scales[at + 1], scales[at + 2], scales[at + 3]]);
                    *value = e4m3_to_f32(code) * scale;
                }
            }
            TensorData::Int4Group { scales, group, .. } => {
                let start = self.stored_row(row) * (self.cols / group) * 2;
                for (c, value) in out.iter_mut().enumerate() {
                    let code = (bytes[c / 2] >> (4 * (c % 2))) & 0xf;
                    *value = (f32::from(code) - 8.0) * bf16_at(scales, start + c / group * 2);
                }
            }
        }
    }
}

fn fill(out: &mut [f32], values: impl Iterator<Item = f32>) {
    for (slot, value) in out.iter_mut().zip(values) {
        *slot = value;
    }
}

fn blocks(out: &mut [f32], bytes: &[u8], block_bytes: usize, value: impl Fn(&[u8], usize) -> f32) {
    for (chunk, block) in out.chunks_exact_mut(32).zip(bytes.chunks_exact(block_bytes)) {
        for (i, slot) in chunk.iter_mut().enumerate() {
            *slot = value(block, i);
        }
    }
}

fn nibble(bytes: &[u8], i: usize) -> u8 {
    if i < 16 { bytes[i] & 0xf } else { bytes[i - 16] >> 4 }
}

fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn bf16_at(bytes: &[u8], at: usize) -> f32 {
    bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(rows: usize, cols: usize, data: TensorData<'a>) -> TensorView<'a> {
        TensorView { name: "t", rows, cols, data, order: RowOrder::AsStored }
    }

    #[test]
    fn q4_1_is_scale_times_nibble_plus_minimum() {
        let mut block = Vec::new();
        block.extend(f16::from_f32(0.5).to_le_bytes());
        block.extend(f16::from_f32(-1.0).to_le_bytes());
        block.extend((0..16u8).map(|j| j | (15 - j) << 4));
        let mut out = [0.0; 32];
        view(1, 32, TensorData::Q4_1(&block)).row_values(0, &mut out);
        assert_eq!(out[3], 0.5);
        assert_eq!(out[16], 6.5);
        assert_eq!(out[31], -1.0);
    }

    #[test]
    fn int4_groups_hold_the_first_element_in_the_lowest_bits() {
        let packed = 0xfedc_ba98u32.to_le_bytes();
        let packed: Vec<u8> = packed.iter().copied().cycle().take(16).collect();
        let scales = bf16::from_f32(2.0).to_le_bytes();
        let mut out = [0.0; 32];
        view(1, 32, TensorData::Int4Group { packed: &packed, scales: &scales, group: 32 }).row_values(0, &mut out);
        assert_eq!(out[..8], [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
    }

    #[test]
    fn fp8_blocks_may_be_partial() {
        let codes = vec![0x38u8; 130 * 130]; // 1.0
        let scales: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|s| s.to_le_bytes()).collect();
        let tensor = view(130, 130, TensorData::Fp8Block { codes: &codes, scales: &scales });
        let mut out = vec![0.0; 130];
        tensor.row_values(129, &mut out);
        assert_eq!((out[127], out[128]), (3.0, 4.0));
    }

    #[test]
    fn rotary_pairs_come_apart_into_halves() {
        let stored: Vec<u8> = (0..8u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let mut tensor = view(8, 1, TensorData::F32(&stored));
        tensor.order = RowOrder::RotaryPairs { head_dim: 4 };
        let logical: Vec<usize> = (0..8).map(|r| tensor.stored_row(r)).collect();
        assert_eq!(logical, [0, 2, 1, 3, 4, 6, 5, 7]);
    }
}
