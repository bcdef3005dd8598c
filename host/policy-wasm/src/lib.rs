//! Policies as Wasm components: loads, limits, calls and rebuilds them. The only crate with wasmtime.
//!
//! It does not know what decisions mean, where components come from, or when to swap; validation and fallbacks are
//! `millrace-policy`'s.
//!
//! ```text
//!   bytes -> size, sha256 -> [core module -> component] -> compile (own thread, time cap) -> world, imports, version -> memory
//!         -> throw-away instance: check-config, init, smoke decisions -> LoadedPolicy -> Box<dyn RoutePolicy> ...
//!
//!   a call:  deadline set -> facts lowered -> guest -> answer lifted -> result
//!                                              | trap, late, memory, malformed
//!                                              v
//!            store dropped and a fresh instance prepared on the builder thread; Unavailable until it is there
//! ```
//!
//! One engine and one epoch ticker a process; one store per component instance, dropped after any error, because a store that
//! trapped is not to be entered again.
#![forbid(unsafe_code)]

mod agree;
mod belongings;
mod builder;
pub mod builtin;
mod compile;
pub mod contract;
mod deadline;
mod engine;
mod error;
mod fault;
mod imports;
mod inspect;
mod instance;
mod limiter;
mod load;
mod optional;
mod options;
mod policy;
mod prepared;
mod record;
mod record_files;
mod recorded;
mod recording;
mod replay;
mod slim;
mod smoke;
mod ticker;
mod trace;
mod wire;
mod worlds;

pub use compile::componentize;
pub use engine::{CallBound, EngineOptions, PolicyEngine};
pub use error::{EngineError, LoadError};
pub use inspect::{Inspection, Interface, inspect};
pub use load::LoadedPolicy;
pub use options::{Grant, MAX_ROWS, PolicyKind, PolicyLimits, PolicyOptions};
pub use record::{RecordCounts, Recorder};
pub use recording::Recording;
pub use replay::{Asked, BesideReport, Difference, ReplayError, ReplayReport};
