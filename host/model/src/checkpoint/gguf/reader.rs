//! A cursor over a GGUF header. Knows sizes of primitive values and the file's end; nothing of keys or tensors.

use std::path::Path;

use crate::CheckpointError;

/// Reads little-endian values one after the other; no read goes past the end.
pub(super) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self { path, bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    pub(super) fn seek(&mut self, at: usize) {
        self.at = at;
    }

    pub(super) fn take(&mut self, length: usize, what: &str) -> Result<&'a [u8], CheckpointError> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let Some(bytes) = end.and_then(|end| self.bytes.get(self.at..end)) else {
            let left = self.bytes.len().saturating_sub(self.at);
            return Err(self.damaged(what, self.at, format!("needs {length} bytes, the file has {left} left")));
        };
        self.at = self.at.saturating_add(length);
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], CheckpointError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, CheckpointError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, CheckpointError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count or length; one that 64 bits of address space cannot hold is damage.
    pub(super) fn size(&mut self, what: &str) -> Result<usize, CheckpointError> {
        let at = self.at;
        let value = self.u64(what)?;
        usize::try_from(value).map_err(|_| self.damaged(what, at, format!("{value} is too large")))
    }

    /// A length-prefixed string's bytes.
    pub(super) fn string_bytes(&mut self, what: &str) -> Result<&'a [u8], CheckpointError> {
        let length = self.size(what)?;
        self.take(length, what)
    }

    /// A length-prefixed UTF-8 string.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a str, CheckpointError> {
        let bytes = self.string_bytes(what)?;
        let start = self.at.saturating_sub(bytes.len());
        std::str::from_utf8(bytes).map_err(|e| self.damaged(what, start.saturating_add(e.valid_up_to()), "it is no UTF-8"))
    }

    /// Damage of what begins at byte `at`.
    pub(super) fn damaged(&self, what: &str, at: usize, why: impl Into<String>) -> CheckpointError {
        CheckpointError::damaged_at(self.path, what, at, why)
    }
}
