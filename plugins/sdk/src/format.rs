//! Formats of weights and KV: values of the column kinds that end in `_FORMAT`, as `wit/column-kinds.wit` numbers them.
//! Does not know which of them is finer.

use crate::Column;

/// What weights or KV are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Each tensor as the checkpoint has it.
    Stored,
    F32,
    Bf16,
    Fp8E4m3,
    Int8,
    Int4,
    /// One that came later than this SDK, by its number.
    Other(u32),
}

impl From<u32> for Format {
    fn from(number: u32) -> Self {
        match number {
            0 => Self::Stored,
            1 => Self::F32,
            2 => Self::Bf16,
            3 => Self::Fp8E4m3,
            4 => Self::Int8,
            5 => Self::Int4,
            other => Self::Other(other),
        }
    }
}

impl Column<'_> {
    /// The fact of a row as a format, if the row has it.
    #[must_use]
    pub fn format(self, row: u32) -> Option<Format> {
        self.get(row).map(Format::from)
    }
}
