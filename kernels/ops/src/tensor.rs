//! Views of a checkpoint's tensors and the exact values of their formats: the reference that every device agrees with.
//! Does not know files or devices.

use half::{bf16, f16};

use crate::{ScaleData, TensorFormat, e4m3_to_f32};

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
    /// `scales`: `[ceil(rows/128), ceil(cols/128)]`.
    Fp8Block {
        codes: &'a [u8],
        scales: ScaleData<'a>,
    },
    /// `scales`: `[rows]`.
    Fp8Channel {
        codes: &'a [u8],
        scales: ScaleData<'a>,
    },
    Fp8Tensor {
        codes: &'a [u8],
        scale: f32,
    },
    /// `packed`: u32 `[rows, ceil(cols/8)]`, element c in bits 4*(c%8) of word c/8; `scales`: `[rows, cols/group]`.
    Int4Group {
        packed: &'a [u8],
        scales: ScaleData<'a>,
        group: usize,
    },
    /// As above; `zeros`: u32 `[ceil(rows/8), cols/group]`, packed along the rows: the zero of (row, group) in bits
    /// 4*(row%8) of word (row/8, group).
    Int4ZeroPoint {
        packed: &'a [u8],
        scales: ScaleData<'a>,
        zeros: &'a [u8],
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
            TensorData::Fp8Channel { .. } => TensorFormat::Fp8Channel,
            TensorData::Fp8Tensor { .. } => TensorFormat::Fp8Tensor,
            TensorData::Int4Group { .. } => TensorFormat::Int4Group,
            TensorData::Int4ZeroPoint { .. } => TensorFormat::Int4ZeroPoint,
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

    /// Stored bytes of logical row `row`; of the formats that keep scales apart (FP8, INT4) the codes.
    pub fn row_bytes(&self, row: usize) -> &'a [u8] {
        let (bytes, per_row) = match self.data {
            TensorData::F32(b) => (b, self.cols * 4),
            TensorData::F16(b) | TensorData::Bf16(b) => (b, self.cols * 2),
            TensorData::Q8_0(b) => (b, self.cols / 32 * 34),
            TensorData::Q4_0(b) => (b, self.cols / 32 * 18),
            TensorData::Q4_1(b) => (b, self.cols / 32 * 20),
            TensorData::Fp8Block { codes, .. } | TensorData::Fp8Channel { codes, .. } | TensorData::Fp8Tensor { codes, .. } => {
                (codes, self.cols)
            }
            TensorData::Int4Group { packed, .. } | TensorData::Int4ZeroPoint { packed, .. } => {
                (packed, self.cols.div_ceil(8) * 4)
            }
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
            TensorData::Fp8Block { .. } | TensorData::Fp8Channel { .. } | TensorData::Fp8Tensor { .. } => {
                for (block, (values, codes)) in out.chunks_mut(128).zip(bytes.chunks(128)).enumerate() {
                    let scale = self.fp8_scale(row, block);
                    fill(values, codes.iter().map(|&code| e4m3_to_f32(code) * scale));
                }
            }
            TensorData::Int4Group { scales, group, .. } | TensorData::Int4ZeroPoint { scales, group, .. } => {
                for (g, values) in out.chunks_mut(group).enumerate() {
                    let (index, zero) = self.int4_group(row, g);
                    let scale = scales.value(index);
                    fill(values, (g * group..).map(|c| (f32::from(packed_nibble(bytes, c)) - f32::from(zero)) * scale));
                }
            }
        }
    }

    /// Scale of columns `128 * block ..` of logical row `row` of an FP8 tensor; 1 for other formats.
    pub fn fp8_scale(&self, row: usize, block: usize) -> f32 {
        match self.data {
            TensorData::Fp8Block { scales, .. } => scales.value(self.stored_row(row) / 128 * self.cols.div_ceil(128) + block),
            TensorData::Fp8Channel { scales, .. } => scales.value(self.stored_row(row)),
            TensorData::Fp8Tensor { scale, .. } => scale,
            _ => 1.0,
        }
    }

    /// Which of its scales group `g` of logical row `row` of a packed INT4 tensor has, and its zero; (0, 8) for other formats.
    pub fn int4_group(&self, row: usize, g: usize) -> (usize, u8) {
        let row = self.stored_row(row);
        match self.data {
            TensorData::Int4Group { group, .. } => (row * (self.cols / group) + g, 8),
            TensorData::Int4ZeroPoint { zeros, group, .. } => {
                let groups = self.cols / group;
                // Word (row/8, g), of which rows 2k and 2k + 1 share byte k.
                let byte = zeros[(row / 8 * groups + g) * 4 + row % 8 / 2];
                (row * groups + g, byte >> (4 * (row % 2)) & 0xf)
            }
            _ => (0, 8),
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

/// Element `c` of a row of packed INT4 words: little-endian, so nibbles follow each other as bytes do.
fn packed_nibble(bytes: &[u8], c: usize) -> u8 {
    bytes[c / 2] >> (4 * (c % 2)) & 0xf
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
        let data = TensorData::Int4Group { packed: &packed, scales: ScaleData::Bf16(&scales), group: 32 };
        view(1, 32, data).row_values(0, &mut out);
        assert_eq!(out[..8], [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
    }

    #[test]
    fn fp8_blocks_may_be_partial() {
        let codes = vec![0x38u8; 130 * 130]; // 1.0
        let scales: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|s| s.to_le_bytes()).collect();
        let tensor = view(130, 130, TensorData::Fp8Block { codes: &codes, scales: ScaleData::F32(&scales) });
        let mut out = vec![0.0; 130];
        tensor.row_values(129, &mut out);
        assert_eq!((out[127], out[128]), (3.0, 4.0));
    }

    #[test]
    fn fp8_scales_may_be_one_per_row_or_one() {
        let codes = vec![0x38u8; 3 * 2]; // 1.0
        let scales: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|s| s.to_le_bytes()).collect();
        let mut out = [0.0; 2];
        view(3, 2, TensorData::Fp8Channel { codes: &codes, scales: ScaleData::F32(&scales) }).row_values(2, &mut out);
        assert_eq!(out, [3.0; 2]);
        view(3, 2, TensorData::Fp8Tensor { codes: &codes, scale: 0.25 }).row_values(2, &mut out);
        assert_eq!(out, [0.25; 2]);
    }

    /// Row 9 of 10, two groups of 2 columns and a row that ends within a word.
    #[test]
    fn zero_points_are_packed_along_the_rows() {
        let mut packed = vec![0u8; 10 * 4];
        packed[36..38].copy_from_slice(&[0x21, 0x43]); // codes 1, 2, 3, 4 of row 9
        let scales: Vec<u8> = (0..20).flat_map(|i| (if i == 19 { 0.5f32 } else { 1.0 }).to_le_bytes()).collect();
        let mut zeros = vec![0u8; 2 * 2 * 4];
        zeros[8] = 0x30; // word (1, 0): row 9 has its bits 4..8
        zeros[12] = 0xf0; // word (1, 1)
        let data = TensorData::Int4ZeroPoint { packed: &packed, scales: ScaleData::F32(&scales), zeros: &zeros, group: 2 };
        let mut out = [0.0; 4];
        view(10, 4, data).row_values(9, &mut out);
        assert_eq!(out, [-2.0, -1.0, -6.0, -5.5]);
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
