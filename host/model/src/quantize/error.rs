//! What can keep a checkpoint from being quantized. Knows no exit code.

use std::path::{Path, PathBuf};

use crate::CheckpointError;

/// Why no quantized checkpoint was written. Nothing is left under the destination's name.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QuantizeError {
    /// The source cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A source that holds something else than floats or FP8 blocks.
    #[error("{}: {found}; give a hub directory in BF16, F16, F32 or FP8 with 128x128 blocks", path.display())]
    Source { path: PathBuf, found: String },
    /// A tensor that cannot be quantized or copied.
    #[error("{}: tensor `{tensor}` {why}", path.display())]
    Tensor { path: PathBuf, tensor: String, why: String },
    /// A pattern of tensors to keep that is no regular expression.
    #[error("keep `{pattern}`: {why}; it is a regular expression that is searched in the names of tensors")]
    Keep { pattern: String, why: String },
    /// No tensor is left to quantize.
    #[error("{}: there is nothing to quantize: {why}", path.display())]
    Nothing { path: PathBuf, why: String },
    /// Something lies where the result or its unfinished form would go.
    #[error("{}: exists already; {instead}", path.display())]
    Exists { path: PathBuf, instead: String },
    /// The file system is too full.
    #[error("{}: {needed} bytes are needed and {available} are free; make room or choose another destination", path.display())]
    Space { path: PathBuf, needed: u64, available: u64 },
    /// The operating system refused something.
    #[error("{}: cannot be {action}: {why}", path.display())]
    File { path: PathBuf, action: &'static str, why: String },
    /// An option outside of its range.
    #[error("{option} {found}: {allowed}")]
    Option { option: &'static str, found: String, allowed: String },
}

impl QuantizeError {
    pub(super) fn tensor(path: &Path, tensor: &str, why: impl Into<String>) -> Self {
        Self::Tensor { path: path.to_path_buf(), tensor: tensor.to_owned(), why: why.into() }
    }

    /// For `map_err` on what the operating system answers.
    pub(super) fn file(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |error| Self::File { path, action, why: error.to_string() }
    }
}
