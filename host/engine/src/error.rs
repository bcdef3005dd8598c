//! What an engine cannot be built from, or cannot go on after.

use millrace_ops::BackendError;

use crate::Refusal;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Model(#[from] millrace_model::ModelError),
    #[error("pool `{pool}`: {why}")]
    Pool { pool: String, why: String },
    #[error("lane `{lane}`: {refusal}")]
    HandOff { lane: String, refusal: Refusal },
    #[error("lane `{lane}`: {why}")]
    Lane { lane: String, why: String },
    #[error("cannot start the engine's driver thread: {0}")]
    Thread(std::io::Error),
}
