//! The vocabulary of the host: ids, requests, sampling, stages and their precision, the clock.
//!
//! No serde, no IO, no async. It does not know HTTP, TOML, pages or policies.
#![forbid(unsafe_code)]

mod clock;
mod ids;
mod precision;
mod request;

pub use clock::Clock;
pub use ids::{LaneId, PoolId, PrecisionId, RequestId, SeqId, TenantId};
pub use millrace_ops::KvFormat;
pub use precision::{Compute, Precision, Stage, StagePrecision, StageRecipe};
pub use request::{FinishReason, SamplingParams};
