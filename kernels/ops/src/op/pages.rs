//! Operations on pages and tags: uploads, tag changes and checks, KV writes, the hand-off's copies. Know no arithmetic of a model.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{KvCache, StepBuffers};
use crate::{Buffer, KvLayout};

/// Copies host bytes (taken now) into a device buffer, in stream order.
#[derive(Debug, Clone)]
pub struct Upload {
    pub to: Buffer,
    pub offset: usize,
    pub bytes: Vec<u8>,
}

/// Copies the first pieces of a device buffer to the host, in stream order; they are there once the submission has completed. For
/// pages on their way to another process, never for a step.
#[derive(Debug, Clone)]
pub struct Download {
    pub from: Buffer,
    /// Of each piece; piece `i` begins at `i * piece_bytes`.
    pub piece_bytes: usize,
    pub to: HostPieces,
}

/// Where a download ends: host memory that the device fills and the host takes. A clone is the same memory.
#[derive(Clone)]
pub struct HostPieces(Arc<[Mutex<Vec<u8>>]>);

impl HostPieces {
    /// So many empty pieces.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| Mutex::default()).collect())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// For the backend: the bytes of one piece.
    pub fn put(&self, piece: usize, bytes: &[u8]) {
        if let Some(held) = self.0.get(piece) {
            *held.lock().unwrap_or_else(PoisonError::into_inner) = bytes.to_vec();
        }
    }

    /// The bytes of one piece, which it loses; empty where nothing was put.
    pub fn take(&self, piece: usize) -> Vec<u8> {
        let held = self.0.get(piece).map(|held| held.lock().unwrap_or_else(PoisonError::into_inner));
        held.map(|mut held| std::mem::take(&mut *held)).unwrap_or_default()
    }
}

impl fmt::Debug for HostPieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostPieces({})", self.0.len())
    }
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

/// Columns of a row that go into one plane: the plane's heads, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneColumns {
    /// Index of the plane in the cache's layout.
    pub plane: usize,
    /// Layer of that plane.
    pub layer: usize,
    /// First column.
    pub offset: usize,
}

/// Writes columns of each row into its sequence's page, converting to the cache's format. A row whose page no longer carries
/// the expected tag writes nothing and flags its sequence.
#[derive(Debug, Clone)]
pub struct WriteKv {
    pub cache: KvCache,
    pub step: StepBuffers,
    /// f32 `[rows, stride]`.
    pub x: Buffer,
    pub stride: usize,
    /// Keys and values, a latent, or index keys.
    pub planes: Vec<PlaneColumns>,
    pub rows: usize,
    pub sequences: usize,
}

/// Copies pages as they are into staging slots; a page that does not carry its tag sets its verdict instead.
#[derive(Debug, Clone)]
pub struct ExportPages {
    pub cache: KvCache,
    /// Slots of `cache.layout.page_bytes()` bytes.
    pub staging: Buffer,
    /// [`crate::StagedPage`] `[count]`.
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
