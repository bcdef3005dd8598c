//! Every operation a step is made of, as plain data. An [`Op`] names buffers and sizes and says what is to be computed;
//! how is the backend's. All activations are f32, row-major.
//!
//! Inputs that change from step to step sit in fixed device buffers ([`StepBuffers`]), so that a step's list of operations
//! depends only on its shape and can be captured as a graph.

use crate::{Buffer, KvLayout, Weight};

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

/// Bytes of a slice of the plain structs above, for [`Upload`].
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

/// Copies host bytes (taken now) into a device buffer, in stream order.
#[derive(Debug, Clone)]
pub struct Upload {
    pub to: Buffer,
    pub offset: usize,
    pub bytes: Vec<u8>,
}

/// `tags[delta.page] = delta.tag` for the first `count` deltas, and zeroes pages where asked.
#[derive(Debug, Clone)]
pub struct ApplyTags {
    pub cache: KvCache,
    pub deltas: Buffer,
    pub count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckPoint {
    /// Before the step touches a page: clears the verdicts, then sets those that mismatch. A flagged sequence writes no KV
    /// and attends to nothing.
    Head,
    /// After sampling, before the records are read: adds mismatches and marks their records stale.
    Tail,
}

/// Compares the tags of every used entry of the first `sequences` page tables with the tag array.
#[derive(Debug, Clone)]
pub struct CheckTags {
    pub cache: KvCache,
    pub step: StepBuffers,
    pub sequences: usize,
    pub point: CheckPoint,
}

/// `out[r] = table[tokens[r]]`, f32 `[rows, cols]`.
#[derive(Debug, Clone)]
pub struct Embed {
    pub table: Weight,
    pub tokens: Buffer,
    pub out: Buffer,
    pub rows: usize,
}

/// `out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight`; `out` may be `x`.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    pub x: Buffer,
    /// f32 `[width]`.
    pub weight: Buffer,
    pub out: Buffer,
    pub rows: usize,
    pub width: usize,
    pub eps: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinearMode {
    Store,
    /// Adds to what `out` holds (residual).
    Add,
}

/// `out[r] (+)= weight * x[r] + bias`; x `[rows, weight.cols]`, out `[rows, weight.rows]`.
#[derive(Debug, Clone)]
pub struct Linear {
    pub x: Buffer,
    pub weight: Weight,
    /// f32 `[weight.rows]`.
    pub bias: Option<Buffer>,
    pub out: Buffer,
    pub rows: usize,
    pub mode: LinearMode,
}

/// Rotates pairs (i, i + rotary/2) of the first `rotary` channels of `heads` heads, in place, by `positions[r] * frequencies[i]`.
#[derive(Debug, Clone)]
pub struct Rope {
    /// f32 `[rows, stride]`; head h begins at column `offset + h * head_dim`.
    pub x: Buffer,
    pub stride: usize,
    pub offset: usize,
    pub heads: usize,
    pub head_dim: usize,
    /// f32 `[rotary / 2]`, radians per position, scaling applied.
    pub frequencies: Buffer,
    pub rotary: usize,
    pub positions: Buffer,
    pub rows: usize,
}

/// Writes keys and values of each row into its sequence's page, converting to the cache's format. A row whose page no longer
/// carries the expected tag writes nothing and flags its sequence.
#[derive(Debug, Clone)]
pub struct WriteKv {
    pub cache: KvCache,
    pub step: StepBuffers,
    pub layer: usize,
    /// f32 `[rows, stride]`; keys begin at column `key_offset`, values at `value_offset`.
    pub x: Buffer,
    pub stride: usize,
    pub key_offset: usize,
    pub value_offset: usize,
    pub rows: usize,
    pub sequences: usize,
}

/// Causal grouped-query attention of each row over its sequence's pages (positions 0..=its own).
#[derive(Debug, Clone)]
pub struct Attend {
    pub cache: KvCache,
    pub step: StepBuffers,
    pub layer: usize,
    /// f32 `[rows, stride]`; queries begin at column `query_offset`, head h at `+ h * head_dim`.
    pub x: Buffer,
    pub stride: usize,
    pub query_offset: usize,
    pub heads: usize,
    pub scale: f32,
    /// f32 `[rows, heads * head_dim]`; zeros for a flagged sequence.
    pub out: Buffer,
    pub rows: usize,
    pub sequences: usize,
}

/// `out[r][i] = silu(x[r][i]) * x[r][width + i]`; x `[rows, 2 * width]`, out `[rows, width]`.
#[derive(Debug, Clone)]
pub struct SiluMul {
    pub x: Buffer,
    pub out: Buffer,
    pub rows: usize,
    pub width: usize,
}

/// `out[i] = x[last row of segment samplers[i].segment]`, f32 `[count, width]`.
#[derive(Debug, Clone)]
pub struct GatherRows {
    pub x: Buffer,
    pub step: StepBuffers,
    pub out: Buffer,
    pub count: usize,
    pub width: usize,
}

/// Draws one token per logits row by `samplers[i]` and writes `records[samplers[i].segment]`; segments that no sampler names
/// get a record with token 0 and status Ok. Flagged sequences get status StalePage, logits with NaN or +inf NotFinite.
#[derive(Debug, Clone)]
pub struct Sample {
    /// f32 `[count, vocab]`.
    pub logits: Buffer,
    pub step: StepBuffers,
    pub count: usize,
    pub sequences: usize,
    pub vocab: usize,
    /// Written into the records.
    pub step_number: u32,
}

/// Copies pages as they are into staging slots; a page that does not carry its tag sets its verdict instead.
#[derive(Debug, Clone)]
pub struct ExportPages {
    pub cache: KvCache,
    /// Slots of `cache.layout.page_bytes()` bytes.
    pub staging: Buffer,
    /// [`StagedPage`] `[count]`.
    pub pages: Buffer,
    pub verdicts: Buffer,
    pub count: usize,
}

/// Converts staged pages (layout `from`) into this cache's format and writes them, each only where its page carries its tag;
/// else sets its verdict.
#[derive(Debug, Clone)]
pub struct ImportPages {
    pub cache: KvCache,
    pub from: KvLayout,
    pub staging: Buffer,
    pub pages: Buffer,
    pub verdicts: Buffer,
    pub count: usize,
}

/// Writes `records[i]` for `i < count`: token 0, status StalePage where `verdicts[i]` is set, else Ok. How a hand-off, which
/// samples nothing, tells the host what its page checks found.
#[derive(Debug, Clone)]
pub struct PublishVerdicts {
    /// u32 `[count]`.
    pub verdicts: Buffer,
    /// [`crate::StepRecord`] `[count]`.
    pub records: Buffer,
    pub count: usize,
    /// Written into the records.
    pub step_number: u32,
}

/// Everything a queue can be given.
#[derive(Debug, Clone)]
pub enum Op {
    Upload(Upload),
    ApplyTags(ApplyTags),
    CheckTags(CheckTags),
    Embed(Embed),
    RmsNorm(RmsNorm),
    Linear(Linear),
    Rope(Rope),
    WriteKv(WriteKv),
    Attend(Attend),
    SiluMul(SiluMul),
    GatherRows(GatherRows),
    Sample(Sample),
    ExportPages(ExportPages),
    ImportPages(ImportPages),
    PublishVerdicts(PublishVerdicts),
}

impl Op {
    /// For messages and profiles.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Upload(_) => "upload",
            Self::ApplyTags(_) => "apply_tags",
            Self::CheckTags(_) => "check_tags",
            Self::Embed(_) => "embed",
            Self::RmsNorm(_) => "rms_norm",
            Self::Linear(_) => "linear",
            Self::Rope(_) => "rope",
            Self::WriteKv(_) => "write_kv",
            Self::Attend(_) => "attend",
            Self::SiluMul(_) => "silu_mul",
            Self::GatherRows(_) => "gather_rows",
            Self::Sample(_) => "sample",
            Self::ExportPages(_) => "export_pages",
            Self::ImportPages(_) => "import_pages",
            Self::PublishVerdicts(_) => "publish_verdicts",
        }
    }
}
