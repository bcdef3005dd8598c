//! What an engine cannot be built from, or cannot go on after.

use millrace_core::PoolId;
use millrace_ops::BackendError;

use crate::Refusal;

/// Why pages under suspicion were not taken back into use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadmitError {
    #[error("there is no pool {0}")]
    UnknownPool(PoolId),
    #[error(
        "the engine did not answer within {seconds} s; it may have ended or be busy, so look at its pools before trying again"
    )]
    NoAnswer { seconds: u64 },
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Model(#[from] millrace_model::ModelError),
    /// Only in a build without the feature `tags`.
    #[error(
        "pool `{pool}` asks for tag checks, and this build has no page tags; use a build with the feature `tags`, or set `tags = false` \
         in a measurement"
    )]
    NoTags { pool: String },
    #[error("pool `{pool}`: {why}")]
    Pool { pool: String, why: String },
    #[error("lane `{lane}`: {refusal}")]
    HandOff { lane: String, refusal: Refusal },
    #[error("lane `{lane}`: {why}")]
    Lane { lane: String, why: String },
    #[error("cannot start the engine's driver thread: {0}")]
    Thread(std::io::Error),
}
