//! How a packed weight lies in memory: panels of 16 output rows, so that one 4-byte piece of an activation meets 16 rows in
//! one vector. Knows offsets; neither where values come from nor what is computed with them.
//!
//! ```text
//! weight = [panel 0][panel 1]..               panel p holds rows 16p .. 16p+15; missing rows are zeros
//!
//! integer panel = [codes of block 0][codes of block 1]..[scales of span 0][scales of span 1]..       block = 32 columns
//!   8-bit codes  = 8 lines of 64 bytes; line j: [row 0: columns 4j..4j+3][row 1: ..]..[row 15]
//!   4-bit codes  = 4 lines of 64 bytes; as above with columns 4j.. in the low and 16+4j.. in the high nibbles
//!   span         = blocks that share scales: a group of the checkpoint
//!   scales       = [scale of row 0]..[row 15], 16 or 32 bits each, then likewise the minima (f16) or zeros (a byte each)
//!
//! dense panel, a 64-byte line after the other:
//!   f32          = line k: [row 0]..[row 15] of column k
//!   bf16         = line k: [row 0: columns 2k, 2k+1]..[row 15]; lines of zeros fill up the last 32 columns
//!   fp8          = half line k (32 bytes): [row 0: columns 2k, 2k+1]..[row 15], one byte each; behind them per 128 columns
//!                  one line of f32: the block scales of the 16 rows, times 256
//! ```

use super::scale_type::ScaleType;

/// Output rows of a panel.
pub const PANEL_ROWS: usize = 16;
/// Columns that share a scale, of weights and of activations.
pub(super) const BLOCK_COLS: usize = 32;
/// Columns of a partial sum of a dense product, and of an FP8 scale block.
pub(super) const DENSE_BLOCK_COLS: usize = 128;
/// Columns of BF16 that a tile of 16 lines holds.
pub(super) const TILE_COLS: usize = 32;
const LINE_BYTES: usize = 64;

/// What a code is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codes {
    /// 4 bits, 0..=15.
    Nibbles,
    /// 8 bits of which only 0..=15 occur (4-bit codes, expanded).
    Narrow,
    /// 8 bits, 0..=255.
    Wide,
}

/// How codes become values, but for the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offset {
    /// value = scale * (code - 8 or 128).
    Centre,
    /// value = scale * code + minimum, both f16.
    Minimum,
    /// value = scale * (code - zero), a zero of 0..=15 beside every scale.
    Zero,
}

/// Layout of an integer weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IntLayout {
    pub(super) codes: Codes,
    pub(super) scale: ScaleType,
    pub(super) offset: Offset,
    /// Blocks along a row; the last one may be partial, and its missing codes mean nothing.
    pub(super) blocks: usize,
    /// Blocks that share a scale, at least 1; the last span may be shorter.
    pub(super) span: usize,
}

impl IntLayout {
    /// The code whose value is 0 in a weight with [`Offset::Centre`].
    pub(super) fn centre(&self) -> u8 {
        if self.codes == Codes::Wide { 128 } else { 8 }
    }

    /// Bytes of one block's codes, 16 rows.
    pub(super) fn code_bytes(&self) -> usize {
        if self.codes == Codes::Nibbles { 256 } else { 512 }
    }

    /// Bytes of one span's scales and what goes with them, 16 rows.
    pub(super) fn scale_bytes(&self) -> usize {
        let beside = match self.offset {
            Offset::Centre => 0,
            Offset::Minimum => 2,
            Offset::Zero => 1,
        };
        PANEL_ROWS * (self.scale.bytes() + beside)
    }

    /// Where the scales begin in a panel.
    pub(super) fn scales_offset(&self) -> usize {
        self.blocks * self.code_bytes()
    }

    /// Where the minimum or zero of a row lies within a span's scales.
    pub(super) fn beside_offset(&self, row: usize) -> usize {
        PANEL_ROWS * self.scale.bytes() + if self.offset == Offset::Minimum { row * 2 } else { row }
    }

    pub(super) fn spans(&self) -> usize {
        self.blocks.div_ceil(self.span)
    }

    pub(super) fn panel_bytes(&self) -> usize {
        (self.scales_offset() + self.spans() * self.scale_bytes()).next_multiple_of(LINE_BYTES)
    }
}

/// Element type of a dense weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    Bf16,
    Fp8,
}

/// Layout of a dense weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DenseLayout {
    pub(super) element: Element,
    pub(super) cols: usize,
}

impl DenseLayout {
    /// Where element (row of the panel, column) lies in a panel.
    pub(super) fn element_offset(&self, row: usize, col: usize) -> usize {
        match self.element {
            Element::F32 => (col * PANEL_ROWS + row) * 4,
            Element::Bf16 => (col / 2 * PANEL_ROWS + row) * 4 + col % 2 * 2,
            Element::Fp8 => (col / 2 * PANEL_ROWS + row) * 2 + col % 2,
        }
    }

    /// Where the FP8 block scales begin in a panel.
    pub(super) fn scales_offset(&self) -> usize {
        (self.cols.div_ceil(2) * 2 * PANEL_ROWS).next_multiple_of(LINE_BYTES)
    }

    pub(super) fn panel_bytes(&self) -> usize {
        match self.element {
            Element::F32 => self.cols * 64,
            Element::Bf16 => self.cols.div_ceil(TILE_COLS) * (TILE_COLS / 2 * LINE_BYTES),
            Element::Fp8 => self.scales_offset() + self.cols.div_ceil(DENSE_BLOCK_COLS) * 64,
        }
    }
}

/// Layout of any packed weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PanelLayout {
    Int(IntLayout),
    Dense(DenseLayout),
}

impl PanelLayout {
    pub(super) fn panel_bytes(&self) -> usize {
        match self {
            Self::Int(layout) => layout.panel_bytes(),
            Self::Dense(layout) => layout.panel_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn dense_elements_do_not_overlap() {
        for (element, size) in [(Element::F32, 4), (Element::Bf16, 2), (Element::Fp8, 1)] {
            let layout = DenseLayout { element, cols: 33 };
            let mut seen = BTreeSet::new();
            for row in 0..PANEL_ROWS {
                for col in 0..33 {
                    let at = layout.element_offset(row, col);
                    assert_eq!(at % size, 0);
                    assert!(at + size <= layout.panel_bytes() && seen.insert(at));
                }
            }
        }
    }

    #[test]
    fn four_bit_panels_are_as_small_as_the_checkpoint() {
        let layout = |codes, scale, offset, span| IntLayout { codes, scale, offset, blocks: 18, span }.panel_bytes();
        assert_eq!(layout(Codes::Nibbles, ScaleType::F16, Offset::Minimum, 1), 18 * 20 * 16);
        assert_eq!(layout(Codes::Wide, ScaleType::F16, Offset::Centre, 1), 18 * 34 * 16);
        // Groups of 64 with BF16 scales: 4.25 bits an element; a zero point is held in 8 bits where a checkpoint has 4.
        assert_eq!(layout(Codes::Nibbles, ScaleType::Bf16, Offset::Centre, 2), (18 * 16 + 9 * 2) * 16 + 32);
        assert_eq!(layout(Codes::Nibbles, ScaleType::Bf16, Offset::Zero, 2), (18 * 16 + 9 * 3) * 16 + 16);
    }
}
