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
//! It does not know HTTP, text or TOML. The hand-off here is the one within a process, whose messages are copies in queues: they can be
//! late and fail, and cannot be lost or come twice.
#![forbid(unsafe_code)]

mod campaign;
mod clock;
mod device;
mod error;
mod faults;
mod lab;
mod model;
mod policy;
mod rng;
mod solo;
mod workload;
mod world;

pub use campaign::{CampaignOptions, Report, Violation, by_kind, campaign};
pub use error::SimError;
pub use faults::{FaultKind, GuardOff, Tally};
pub use lab::{EngineKind, Lab};
pub use policy::PolicyChoice;
pub use world::{Outcome, WorldOptions};
