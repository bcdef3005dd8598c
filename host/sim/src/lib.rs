//! A deterministic simulator: the real driver, schedulers, page pools, prefix tree, tags and hand-off under a virtual clock, with the
//! built-in policy, seeded workloads and faults at every dangerous point. A seed is a world; the same seed is the same world.
//!
//! ```text
//!   seed -> workload, shape, faults
//!             |
//!           World --submit, abort, turn--> SteppedEngine (host/engine) --operations--> SimBackend -> fake engine | CPU backend
//!             ^                                   |                                        ^
//!             +-- tokens, ends: judged -----------+       what happens between operations --+
//! ```
//!
//! What is judged: every published token is the one that the same request has alone; a request ends once, and for a reason that
//! somebody gave it; pages named by what runs belong to nobody else; the pools' invariants hold after every turn; once faults stop,
//! everything ends, every page comes back, and none holds a number.
//!
//! It does not know HTTP, text or TOML. The hand-off is the one within a process, whose copies in queues can be late and fail; or the
//! one between processes, over a network that is played: see `processes`.
#![forbid(unsafe_code)]

mod campaign;
mod clock;
mod contest;
mod device;
mod error;
mod faults;
mod lab;
mod model;
mod policy;
mod processes;
mod rng;
mod solo;
mod trace;
mod workload;
mod world;

pub use campaign::{CampaignOptions, Endless, MAX_THREADS, Report, Violation, by_kind, campaign};
pub use contest::{ArmReport, ContestReport, Percentiles, contest};
pub use error::SimError;
pub use faults::{FaultKind, GuardOff, Tally};
pub use lab::{EngineKind, Lab};
pub use policy::{Guest, Policies, PolicyChoice};
pub use world::{Outcome, Transport, Transports, WorldOptions};

/// Two tenants want one engine: see [`contest()`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contest {
    /// One fills the pools and the queue with prompts that nobody had before; held by its tenant's quotas, or not.
    Flood,
    /// One sends twenty times its share; held by the fair policy, or served as it comes (`fcfs`).
    Fairness,
}
