//! Formats of weights and KV as policies hear of them, one number for ever; see `wit/column-kinds.wit`, which a test compares with
//! this list. It does not know what a device makes of them.

/// Each tensor as the checkpoint has it.
pub const STORED: u32 = 0;
pub const F32: u32 = 1;
pub const BF16: u32 = 2;
pub const FP8_E4M3: u32 = 3;
pub const INT8: u32 = 4;
pub const INT4: u32 = 5;
