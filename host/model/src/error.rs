//! What can be wrong with a checkpoint, and what a model can refuse. Knows no HTTP status and no exit code.

use std::path::{Path, PathBuf};

use millrace_ops::BackendError;

/// A checkpoint that cannot be used. Every variant names the file.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused a file.
    #[error("{}: cannot be read: {why}; check the path and its permissions", path.display())]
    Unreadable { path: PathBuf, why: String },
    /// Neither a GGUF file nor a hub directory.
    #[error("{}: {found}; a checkpoint is a .gguf file or a directory with config.json and model.safetensors", path.display())]
    NotACheckpoint { path: PathBuf, found: String },
    /// A file that another one names is not there.
    #[error("{}: missing, but {named_by} names it; download the checkpoint again in full", path.display())]
    MissingFile { path: PathBuf, named_by: String },
    /// Bytes that contradict the format or the file's size. `offset`: where in the file, if it is one place.
    #[error("{}: {what}{}: {why}; the file is damaged or incomplete, download it again", path.display(), at_byte(*offset))]
    Damaged { path: PathBuf, what: String, offset: Option<u64>, why: String },
    /// A well-formed checkpoint with a feature that Millrace cannot run.
    #[error("{}: {what} is not supported; {instead}", path.display())]
    Unsupported { path: PathBuf, what: String, instead: String },
    /// A value of config.json, or the GGUF metadata that stands for it, is missing or impossible.
    #[error("{}: config `{key}` {why}; correct it or download the checkpoint again", path.display())]
    Config { path: PathBuf, key: String, why: String },
    /// A tensor whose shape, type or companions do not fit.
    #[error("{}: tensor `{tensor}` {why}; the checkpoint and its config do not belong together", path.display())]
    Tensor { path: PathBuf, tensor: String, why: String },
    /// The architecture needs a tensor that the checkpoint does not hold.
    #[error("{}: no tensor `{tensor}`; the checkpoint is incomplete or of another architecture than its config says", path.display())]
    MissingTensor { path: PathBuf, tensor: String },
}

impl CheckpointError {
    pub(crate) fn unreadable(path: &Path, why: &std::io::Error) -> Self {
        Self::Unreadable { path: path.to_path_buf(), why: why.to_string() }
    }

    /// Damage of the file as a whole, or of no one place.
    pub(crate) fn damaged(path: &Path, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), what: what.into(), offset: None, why: why.into() }
    }

    /// Damage at a byte of the file.
    pub(crate) fn damaged_at(path: &Path, what: impl Into<String>, offset: usize, why: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), what: what.into(), offset: Some(offset as u64), why: why.into() }
    }

    pub(crate) fn unsupported(path: &Path, what: impl Into<String>, instead: impl Into<String>) -> Self {
        Self::Unsupported { path: path.to_path_buf(), what: what.into(), instead: instead.into() }
    }

    pub(crate) fn tensor(path: &Path, tensor: &str, why: impl Into<String>) -> Self {
        Self::Tensor { path: path.to_path_buf(), tensor: tensor.to_owned(), why: why.into() }
    }
}

fn at_byte(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

/// A model that cannot be loaded or run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A weight that the device cannot hold in the wanted format, or whose values are damaged.
    #[error("{}: {source}", path.display())]
    Weight { path: PathBuf, source: BackendError },
    /// No architecture of that name is built in.
    #[error("{}: architecture `{found}` is not known; use a checkpoint of one of: {known}", path.display())]
    UnknownArchitecture { path: PathBuf, found: String, known: String },
    /// More tokens than the model was made for.
    #[error("{tokens} tokens are more than the model's context of {limit}; shorten the input")]
    TooLong { tokens: usize, limit: usize },
    /// An id that the model has no row for.
    #[error("token id {id} is outside the vocabulary of {vocab}; encode the text with this model's tokenizer")]
    UnknownToken { id: u32, vocab: usize },
    /// Evaluation was asked for something it cannot do.
    #[error("evaluation: {why}")]
    Evaluation { why: String },
}
