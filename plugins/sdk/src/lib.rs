//! Write a Millrace policy in Rust: implement [`Policy`] and the trait of one decision, then name the type in that
//! decision's macro.
//!
//! ```ignore
//! use millrace_policy_sdk::schedule::{Budget, Plan, Schedule};
//! use millrace_policy_sdk::{NoConfig, Policy, Table, kind, schedule_policy};
//!
//! /// Oldest first.
//! struct Oldest;
//!
//! impl Policy for Oldest {
//!     type Config = NoConfig;
//!     const WANTS: &'static [u32] = &[kind::AGE_US];
//!     fn new(_: NoConfig) -> Result<Self, Vec<String>> {
//!         Ok(Self)
//!     }
//! }
//!
//! impl Schedule for Oldest {
//!     fn plan_step(&mut self, budget: &Budget, rows: &Table, _tenants: &Table) -> Plan {
//!         let age = rows.column(kind::AGE_US);
//!         let mut run: Vec<u32> = (0..rows.rows).collect();
//!         run.sort_by_key(|&row| std::cmp::Reverse(age.or(row, 0)));
//!         run.truncate(budget.sequences as usize);
//!         Plan { run, ..Plan::default() }
//!     }
//! }
//!
//! schedule_policy!(Oldest);
//! ```
//!
//! With the features `feedback` and `handover` a policy may also hear what became of requests, and hand its memory over at a swap: the
//! modules of these names have a trait and a macro each.
//!
//! Build it for `wasm32-unknown-unknown` as a `cdylib`; the host takes the result as it is or as a component. Name and version
//! of the policy are those of its package. It does not know how the host uses answers: `wit/` says that.

mod format;
pub mod kind;
mod policy;
mod table;

#[cfg(feature = "feedback")]
pub mod feedback;
#[cfg(feature = "handover")]
pub mod handover;
#[cfg(feature = "precision")]
pub mod precision;
#[cfg(feature = "route")]
pub mod route;
#[cfg(feature = "schedule")]
pub mod schedule;

#[cfg(any(
    all(feature = "route", feature = "schedule"),
    all(feature = "route", feature = "precision"),
    all(feature = "schedule", feature = "precision")
))]
compile_error!("a component has one world: build one package at a time (cargo build -p NAME), with one feature of the SDK");

#[cfg(not(any(feature = "route", feature = "schedule", feature = "precision")))]
compile_error!("choose the decision: enable one of the features route, schedule, precision");

#[cfg(feature = "precision")]
use precision as world;
#[cfg(feature = "route")]
use route as world;
#[cfg(feature = "schedule")]
use schedule as world;

pub use format::Format;
pub use policy::{NoConfig, Policy};
pub use table::Column;
pub use world::bindings::millrace::policy::types::{Attribute, Table};
pub use world::bindings::millrace::policy::{clock, log, metrics, random, state};

/// What the macros expand to; not for authors.
#[doc(hidden)]
pub mod glue {
    pub use crate::policy::{check_config, init};
    pub use crate::world::bindings;
    pub use crate::world::bindings::exports::millrace::policy::lifecycle;
}
