//! Typed views over the tables of facts. Does not know what a kind means.

use crate::Table;

/// One fact for all rows, or a fact that the host did not send: then every row lacks it.
#[derive(Debug, Clone, Copy)]
pub struct Column<'a>(&'a [u32]);

impl Table {
    /// The column of a kind from [`crate::kind`].
    #[must_use]
    pub fn column(&self, kind: u32) -> Column<'_> {
        Column(self.columns.iter().find(|c| c.kind == kind).map_or(&[], |c| c.values.as_slice()))
    }
}

impl Column<'_> {
    /// The fact of a row, if the row has it.
    #[must_use]
    pub fn get(self, row: u32) -> Option<u32> {
        self.0.get(row as usize).copied().filter(|&value| value != u32::MAX)
    }

    /// The fact of a row, or `default`.
    #[must_use]
    pub fn or(self, row: u32, default: u32) -> u32 {
        self.get(row).unwrap_or(default)
    }

    /// A fact whose bits are a signed number; -1 looks like an absent value, so an absent column alone gives `default`.
    #[must_use]
    pub fn signed_or(self, row: u32, default: i32) -> i32 {
        self.0.get(row as usize).map_or(default, |value| value.cast_signed())
    }

    /// Whether the host sent the column.
    #[must_use]
    pub fn is_present(self) -> bool {
        !self.0.is_empty()
    }
}
