//! Prefill and decode as two engines over one runner, each with its own step clock and fence, and the hand-off between them.
//!
//! It does not know HTTP, TOML, text or Wasm; it never looks into device memory.
#![forbid(unsafe_code)]

#[cfg_attr(not(feature = "tags"), path = "no_bracket.rs")]
mod bracket;
mod devices;
mod driver;
mod error;
mod failure;
#[cfg(feature = "fault-injection")]
mod fault;
mod handle;
mod handoff;
mod job;
mod jobs;
mod phases;
mod planning;
mod pool;
mod programs;
mod rate;
mod returning;
mod runner;
mod snapshot;
mod spec;
mod stage;
mod start;
mod step_times;
#[cfg(feature = "fault-injection")]
mod stepped;
mod token_histogram;

pub use bracket::TAGS_BUILT;
pub use error::{EngineError, ReadmitError};
pub use handle::{EngineHandle, Hold};
pub use handoff::{LinkSpec, Offer, Refusal, Terms, TransferId};
pub use job::{Event, EventSink, Job, JobError, Replay, SubmitError};
pub use phases::PhaseTimes;
pub use snapshot::{Counters, EngineSnapshot, LaneFacts, LaneSpeed, LinkFacts, PoolFacts, TenantFacts};
pub use spec::{EngineSpec, LaneSpec, PoolSpec, SinkOf, StageLane, StageSpec, TagChecks};
pub use stage::start_stage;
pub use start::start;
#[cfg(feature = "fault-injection")]
pub use stepped::{Place, RunningStep, SteppedEngine};
pub use token_histogram::TokenHistogram;
