//! The table of a checkpoint's tensors under hub names: where each lies, in which type and shape. Knows no file format;
//! whoever fills it has checked offsets and sizes, and every access is checked again.

use std::collections::BTreeMap;
use std::path::Path;

use super::file::MappedFile;
use crate::CheckpointError;

/// Element type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StoredType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    F8E4m3,
    I8,
    I32,
    I64,
    /// Present but never used as a weight.
    Other(&'static str),
}

impl StoredType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::F8E4m3 => "F8_E4M3",
            Self::I8 => "I8",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::Other(name) => name,
        }
    }

    /// Bytes of a row of `cols` elements; None where rows of that length do not exist or the type is no weight's.
    pub(crate) fn row_bytes(self, cols: usize) -> Option<usize> {
        let blocks = |bytes: usize| if cols.is_multiple_of(32) { (cols / 32).checked_mul(bytes) } else { None };
        match self {
            Self::F32 | Self::I32 => cols.checked_mul(4),
            Self::F16 | Self::Bf16 => cols.checked_mul(2),
            Self::I64 => cols.checked_mul(8),
            Self::F8E4m3 | Self::I8 => Some(cols),
            Self::Q8_0 => blocks(34),
            Self::Q4_0 => blocks(18),
            Self::Q4_1 => blocks(20),
            Self::Other(_) => None,
        }
    }

    /// Whether elements are neither values nor codes of a format that is read.
    pub(crate) fn is_no_weight(self) -> bool {
        matches!(self, Self::I8 | Self::I32 | Self::I64 | Self::Other(_))
    }

    /// Whether a checkpoint that holds such tensors was quantized.
    pub(crate) fn is_quantized(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::F8E4m3 | Self::I32)
    }
}

/// One stored tensor.
#[derive(Debug, Clone)]
pub(crate) struct StoredTensor {
    /// Index into the checkpoint's files.
    pub(crate) file: usize,
    /// Offset of its first byte in that file; no alignment is assumed.
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) kind: StoredType,
    /// Outermost dimension first, as the hub writes it.
    pub(crate) shape: Vec<usize>,
    /// Rows of q and k in GGUF files of Llama: heads of this many rows hold rotary pairs side by side.
    pub(crate) rotary_pairs: Option<usize>,
}

impl StoredTensor {
    /// (rows, cols) of a matrix; a vector is one row.
    pub(crate) fn matrix(&self) -> Option<(usize, usize)> {
        match self.shape.as_slice() {
            [cols] => Some((1, *cols)),
            [rows, cols] => Some((*rows, *cols)),
            _ => None,
        }
    }
}

/// All tensors and the files they lie in.
pub(crate) struct TensorTable {
    pub(crate) files: Vec<MappedFile>,
    pub(crate) entries: BTreeMap<String, StoredTensor>,
}

impl TensorTable {
    /// The bytes of a tensor.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] where they are not inside its file.
    pub(crate) fn bytes(&self, name: &str, tensor: &StoredTensor) -> Result<&[u8], CheckpointError> {
        let range = tensor.start..tensor.start.saturating_add(tensor.bytes);
        let file = self.files.get(tensor.file);
        file.and_then(|f| f.bytes().get(range)).ok_or_else(|| self.error(tensor, name, "lies outside its file"))
    }

    pub(crate) fn error(&self, tensor: &StoredTensor, name: &str, why: impl Into<String>) -> CheckpointError {
        let path = self.files.get(tensor.file).map_or(Path::new(""), MappedFile::path);
        CheckpointError::tensor(path, name, why)
    }

    /// Values that no writer gives.
    pub(crate) fn damaged(&self, tensor: &StoredTensor, name: &str, why: impl Into<String>) -> CheckpointError {
        let path = self.files.get(tensor.file).map_or(Path::new(""), MappedFile::path);
        CheckpointError::damaged_at(path, format!("tensor `{name}`"), tensor.start, why)
    }

    /// Bytes of all files.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.len() as u64).sum()
    }
}
