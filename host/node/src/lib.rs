//! One deployment, running: wires models, pools, lanes, policies and tenants together and owns a request's life from admission to
//! its last token.
//!
//! ```text
//! submit: place in the queue -> tokens -> precision policy (what) -> route policy (where) -> job -> engine
//! answer: engine -> events -> task of the request: detokenize, stop strings -> Generation
//! ```
//!
//! It does not know HTTP, OpenAI's JSON or TOML; numbers are the engine's, decisions the policies'.
#![forbid(unsafe_code)]

mod admission;
mod checkpoints;
mod control;
mod deployed;
mod engine_process;
mod engines;
mod error;
mod fault_log;
mod fleet;
mod generation;
mod held;
mod ids;
mod lanes;
mod metrics;
mod node;
mod outcomes;
mod policies;
mod policy_slots;
mod prompt;
mod request;
mod scopes;
mod sessions;
mod shadow;
mod start;
mod stopwatch;
mod submit;
mod tenants;
mod tokenizer;

pub use control::ScheduleRuns;
pub use engine_process::{Birth, EngineProcess};
pub use engines::Engines;
pub use error::{ReadmitError, StartError, SwapError};
pub use fleet::ProcessFacts;
pub use generation::Generation;
pub use metrics::{CONTENT_TYPE as METRICS_CONTENT_TYPE, Counter, Metrics, StatusClasses};
pub use millrace_config::Digest;
pub use millrace_core::{FinishReason, RequestId, TenantId};
pub use millrace_engine::{EngineSnapshot, LaneFacts, PoolFacts};
pub use millrace_policy::{BreakerState, Counters as PolicyCounters, PolicyInfo, SlotStatus};
pub use millrace_policy_wasm::builtin::component as builtin_component;
pub use millrace_policy_wasm::{LoadError, PolicyKind};
pub use millrace_tokenize::ChatMessage;
pub use node::{LaneSummary, Node, ServedModel};
pub use policies::Policies;
pub use policies::afar::ScheduleIn;
pub use policy_slots::{default_policy_options, policy_options};
pub use request::{
    ContextLength, Finished, GenerateError, GenerateRequest, GenerationEvent, PolicyGenerations, Prompt, RequestError, Sampling,
    Started, TokenCount, TokenUsage,
};
pub use shadow::{Disagreement, ShadowReport};
pub use tenants::{KeyRing, key_matches};
pub use tokenizer::tokenizer_of;
