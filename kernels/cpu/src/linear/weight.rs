//! A packed weight: its panels, its sizes, and the exact values of its rows. Does not know how it was packed or is multiplied.

use std::any::Any;

use half::bf16;
use millrace_ops::{TensorView, WeightFormat, WeightMemory, e4m3_to_f32};

use super::form::{ActivationForm, StepRows};
use super::layout::{BLOCK_COLS, Codes, DENSE_BLOCK_COLS, DenseLayout, Element, IntLayout, Offset, PANEL_ROWS, PanelLayout};
use super::pack;
use super::scale_type::ScaleType;
use super::storage::Storage;
use crate::Isa;

/// How products are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuCompute {
    /// In f32 on exactly the values that the weight's format holds: slow and accurate.
    Reference,
    /// In the weight's format: INT8 activations for Int8 and Int4, f32 activations for the others, rounded to BF16 where products
    /// use tiles ([`Isa::Amx`]) or dot products of BF16 ([`Isa::Avx512Bf16`]).
    Fast,
    /// The same with activations of 15 bits and a sign for Int8 and Int4, of 16 bits in these: two products for one, but where 16
    /// bits cost no more.
    Precise,
}

/// A matrix `[rows = out, cols = in]` in panels of 16 rows.
pub struct PackedWeight {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) format: WeightFormat,
    pub(super) compute: CpuCompute,
    pub(super) layout: PanelLayout,
    pub(super) isa: Isa,
    pub(super) storage: Storage,
}

impl PackedWeight {
    /// Packs `parts`, stacked along their rows, into one weight of `format`.
    ///
    /// 4-bit codes with their scales and minima or zero points, Q8_0 and FP8 codes are kept as they are where the format
    /// allows it; other values are quantized: Int8 and Int4 symmetric in groups of 32, Fp8 with a scale per 128x128 block of a part.
    ///
    /// # Errors
    /// A sentence that names the tensor, when a shape or format cannot be held, `isa` is not this machine's, or memory is
    /// exhausted.
    pub fn pack(parts: &[TensorView<'_>], format: WeightFormat, compute: CpuCompute, isa: Isa) -> Result<Self, String> {
        pack::pack(parts, format, compute, isa)
    }

    /// The form that [`super::multiply`] wants activations in.
    pub fn form(&self, rows: StepRows) -> ActivationForm {
        let precise = self.compute == CpuCompute::Precise;
        match &self.layout {
            PanelLayout::Int(_) if !precise => ActivationForm::Blocks,
            PanelLayout::Int(layout) if layout.codes == Codes::Wide && self.isa == Isa::Avx2 => ActivationForm::Merged,
            PanelLayout::Int(_) => ActivationForm::BlocksAndRemainders,
            PanelLayout::Dense(DenseLayout { element: Element::F32, .. }) => ActivationForm::Floats,
            // Few rows leave most of a tile empty, and filling it costs more than vectors need.
            PanelLayout::Dense(_) if !self.isa.multiplies_bf16() || rows == StepRows::Few => ActivationForm::Floats,
            PanelLayout::Dense(_) if precise => ActivationForm::Bf16Pairs,
            PanelLayout::Dense(_) => ActivationForm::Bf16,
        }
    }

    /// Panels of 16 output rows; the last one may be partial.
    pub fn panel_count(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    /// How many panels a worker should take at a time when `workers` of them share a product.
    pub fn chunk_panels(&self, workers: usize) -> usize {
        chunk_panels(self.panel_count(), workers)
    }

    /// The values of row `row`, exactly as the format holds them; `out` has `cols` elements.
    ///
    /// Panics where `row` or `out` do not fit.
    pub fn lookup(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row {row} of {}, {} values of {}", self.rows, out.len(), self.cols);
        let bytes = self.layout.panel_bytes();
        let panel = &self.storage.as_slice()[row / PANEL_ROWS * bytes..][..bytes];
        match &self.layout {
            PanelLayout::Int(layout) => int_row(layout, panel, row % PANEL_ROWS, out),
            PanelLayout::Dense(layout) => dense_row(layout, panel, row % PANEL_ROWS, out),
        }
    }
}

/// How many panels a worker should take at a time when `workers` of them share `panels`, of one weight or of several.
pub fn chunk_panels(panels: usize, workers: usize) -> usize {
    if workers <= 1 {
        return panels.max(1);
    }
    // Kernels take two or four panels at a time; four chunks per worker even out their speeds.
    (panels / (workers * 4)).next_multiple_of(4).max(4)
}

impl WeightMemory for PackedWeight {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn bytes(&self) -> usize {
        self.storage.bytes()
    }

    fn format(&self) -> WeightFormat {
        self.format
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn int_row(layout: &IntLayout, panel: &[u8], row: usize, out: &mut [f32]) {
    let (codes, scales) = panel.split_at(layout.scales_offset());
    for (b, (chunk, codes)) in out.chunks_mut(BLOCK_COLS).zip(codes.chunks_exact(layout.code_bytes())).enumerate() {
        let scales = &scales[b / layout.span * layout.scale_bytes()..][..layout.scale_bytes()];
        let scale = layout.scale.get(scales, row);
        for (col, value) in chunk.iter_mut().enumerate() {
            let code = f32::from(code_at(layout.codes, codes, row, col));
            *value = match layout.offset {
                Offset::Centre => scale * (code - f32::from(layout.centre())),
                Offset::Minimum => scale * code + ScaleType::F16.get(&scales[layout.beside_offset(0)..], row),
                Offset::Zero => scale * (code - f32::from(scales[layout.beside_offset(row)])),
            };
        }
    }
}

/// The code of (row, column) in a block's codes.
pub(super) fn code_at(codes: Codes, block: &[u8], row: usize, col: usize) -> u8 {
    match codes {
        Codes::Nibbles => block[col % 16 / 4 * 64 + row * 4 + col % 4] >> (col / 16 * 4) & 0xf,
        Codes::Narrow | Codes::Wide => block[col / 4 * 64 + row * 4 + col % 4],
    }
}

fn dense_row(layout: &DenseLayout, panel: &[u8], row: usize, out: &mut [f32]) {
    for (col, value) in out.iter_mut().enumerate() {
        let at = layout.element_offset(row, col);
        *value = match layout.element {
            Element::F32 => f32_at(panel, at),
            Element::Bf16 => bf16::from_bits(u16_at(panel, at)).to_f32(),
            // The scale is held times 256; undoing that is exact.
            Element::Fp8 => {
                let scale = f32_at(panel, layout.scales_offset() + col / DENSE_BLOCK_COLS * 64 + row * 4) / 256.0;
                e4m3_to_f32(panel[at]) * scale
            }
        };
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
