//! How activations lie in the scratch for a product. Follows from the weight and from what steps are like; knows no arithmetic.

/// What steps are like: how many rows products have for the most part. A form must not follow from the rows of one step, or a
/// row's result would depend on the rows beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepRows {
    /// One for each of some sequences: reading the weights is what takes time.
    Few,
    /// Chunks of prompts: multiplying is.
    Many,
}

/// The form of a row of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationForm {
    /// Not in the scratch: products read f32.
    Floats,
    /// INT8 in blocks.
    Blocks,
    /// The same, and what quantizing left over.
    BlocksAndRemainders,
    /// Both merged into numbers of 16 bits.
    Merged,
    /// BF16, for tiles.
    Bf16,
    /// Two BF16 numbers whose sum an activation is, for tiles.
    Bf16Pairs,
}

impl ActivationForm {
    /// Rows of the scratch that a row of activations takes.
    pub fn passes(self) -> usize {
        match self {
            Self::Floats | Self::Blocks | Self::Bf16 => 1,
            Self::BlocksAndRemainders | Self::Merged | Self::Bf16Pairs => 2,
        }
    }

    /// Whether products read the scratch.
    pub fn in_scratch(self) -> bool {
        self != Self::Floats
    }

    /// Whether products use tiles.
    pub(super) fn tiles(self) -> bool {
        matches!(self, Self::Bf16 | Self::Bf16Pairs)
    }
}
