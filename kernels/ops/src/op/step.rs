//! What changes from step to step, as plain data with one layout on every device, and the fixed buffers it sits in.
//! Knows no operation.

use crate::{Buffer, KvLayout};

/// One entry of a page table: the page and the tag it must carry. 16 bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PageEntry {
    pub page: u32,
    pub reserved: u32,
    pub tag: u64,
}

/// A change of one page's tag, applied in stream order before the new owner's first write. 16 bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct TagDelta {
    pub page: u32,
    /// 1: also fill the page with zeros (its tenant's data ends here).
    pub zero: u32,
    pub tag: u64,
}

/// The part of a step that belongs to one sequence. 16 bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Segment {
    /// First row of this sequence among the step's rows.
    pub first_row: u32,
    /// Rows of this sequence (1 in decode, the chunk in prefill).
    pub rows: u32,
    /// Position of its first row: the tokens already in its pages.
    pub start: u32,
    /// Used entries of its page table.
    pub pages: u32,
}

/// How one sequence's next token is drawn. 32 bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct SamplerParams {
    /// 0: the highest logit, ties to the lowest id.
    pub temperature: f32,
    /// 1: off.
    pub top_p: f32,
    /// 0: off.
    pub min_p: f32,
    /// 0: off.
    pub top_k: u32,
    pub seed: u64,
    /// Position of the token being drawn; with `seed` it names the random number, so a draw does not depend on its batch.
    pub position: u32,
    /// Which of the step's segments this logits row belongs to.
    pub segment: u32,
}

/// A hand-off page that waits in the staging ring. 32 bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct StagedPage {
    /// Slot of the staging ring.
    pub slot: u32,
    /// Page to read (export) or write (import), and the tag it must carry.
    pub page: u32,
    pub tag: u64,
    /// Tokens of the page that are filled.
    pub tokens: u32,
    /// Index of the verdict word that a mismatch sets.
    pub verdict: u32,
    pub reserved: u64,
}

/// Bytes of a slice of the plain structs above, for [`crate::Upload`].
pub fn as_bytes<T: PlainStep>(items: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(items));
    for item in items {
        item.write(&mut bytes);
    }
    bytes
}

/// Structs with a fixed little-endian layout on every device.
pub trait PlainStep {
    fn write(&self, out: &mut Vec<u8>);
}

macro_rules! plain {
    ($type:ty: $($field:ident),+) => {
        impl PlainStep for $type {
            fn write(&self, out: &mut Vec<u8>) {
                $(out.extend_from_slice(&self.$field.to_le_bytes());)+
            }
        }
    };
}
plain!(PageEntry: page, reserved, tag);
plain!(TagDelta: page, zero, tag);
plain!(Segment: first_row, rows, start, pages);
plain!(SamplerParams: temperature, top_p, min_p, top_k, seed, position, segment);
plain!(StagedPage: slot, page, tag, tokens, verdict, reserved);
impl PlainStep for u32 {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

/// A pool's pages and, beside them, the tag array.
#[derive(Debug, Clone)]
pub struct KvCache {
    /// `pages * layout.page_bytes()` bytes.
    pub pages: Buffer,
    /// u64 `[pages]`: the tag that each page carries now.
    pub tags: Buffer,
    pub layout: KvLayout,
    pub page_count: usize,
}

/// The fixed device buffers that hold one engine's step inputs and outputs.
#[derive(Debug, Clone)]
pub struct StepBuffers {
    /// u32 `[max_rows]`.
    pub tokens: Buffer,
    /// u32 `[max_rows]`.
    pub positions: Buffer,
    /// [`Segment`] `[max_sequences]`.
    pub segments: Buffer,
    /// [`PageEntry`] `[max_sequences, table_stride]`.
    pub tables: Buffer,
    pub table_stride: usize,
    /// u32 `[max_sequences]`: 0, or 1 once a tag check failed. Set to 0 by the head check.
    pub verdicts: Buffer,
    /// [`SamplerParams`] `[max_sequences]`.
    pub samplers: Buffer,
    /// [`TagDelta`] `[max_deltas]`.
    pub deltas: Buffer,
    /// [`crate::StepRecord`] `[max_sequences]`.
    pub records: Buffer,
}
