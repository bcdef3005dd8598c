//! What can keep a checkpoint from being quantized. Knows no exit code.

use std::path::{Path, PathBuf};

use crate::CheckpointError;

/// Why no quantized checkpoint was written. Nothing is left under the destination's name but by [`QuantizeError::ReportLost`].
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
    /// Places that lie in each other.
    #[error("{what} {}: {why}; {instead}", path.display())]
    Place { what: &'static str, path: PathBuf, why: &'static str, instead: &'static str },
    /// A report that could not be written after the work; nothing was done.
    #[error("report {}: cannot be written: {why}; name a file in a directory that exists and may be written", path.display())]
    ReportFile { path: PathBuf, why: String },
    /// A report that could not be written after all.
    #[error("{} is complete, but the report {} cannot be written: {why}", destination.display(), path.display())]
    ReportLost { path: PathBuf, destination: PathBuf, why: String },
    /// No worker could be started.
    #[error(
        "no thread can be started to work with: {why}; its limits on threads or memory are reached, see `ulimit -u` and `ulimit -v`"
    )]
    Threads { why: String },
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
