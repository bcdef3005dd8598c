//! The three decisions that an operator may take over: precision, route, schedule. Traits, the tables they read, validation
//! of their answers, native fallbacks, and the slots that hold the policy in force.
//!
//! Pure: no Wasm, no clock, no IO. Facts come in as tables of columns, row numbers go out; the host validates every answer.
//!
//! ```text
//!   caller --facts--> slot --> breaker admits? --> policy --> validate --> answer
//!                      |            | no             | fault      | invalid
//!                      |            +----------------+------------+--> native fallback --> answer
//!                      +-- swap, roll back, to the built-in, status (from any thread)
//! ```
#![forbid(unsafe_code)]

mod agreement;
mod aside;
mod breaker;
mod fair_schedule;
pub mod format;
mod generation;
mod least_loaded_route;
mod lineage;
mod short_budgets;
mod slot;
mod slots;
mod status;
mod table;
mod tier_precision;
mod traits;
mod validate;
mod witness;

pub use agreement::{same_choices, same_decision, same_plan};
pub use aside::MAX_HANDOVER_BYTES;
pub use breaker::{Breaker, BreakerSettings, BreakerState};
pub use fair_schedule::FairSchedule;
pub use generation::PROVEN_CALLS;
pub use least_loaded_route::LeastLoadedRoute;
pub use lineage::MAX_EARLIER;
pub use slot::Answer;
pub use slots::{PrecisionSlot, PrecisionWitness, RouteSlot, RouteWitness, ScheduleSlot, ScheduleWitness};
pub use status::{Counters, FaultCounts, Latency, PolicyInfo, RolledBack, SlotStatus};
pub use table::{Column, Table, kind};
pub use tier_precision::TierPrecision;
pub use traits::{
    Ask, Budget, Choice, Decision, FaultKind, Forward, GuestMetric, GuestValue, Plan, Policy, PolicyFault, PolicyReport,
    PrecisionPolicy, Refusal, RoutePolicy, RouteRequest, SchedulePolicy,
};
pub use validate::{InvalidAnswer, MAX_VALID_STEPS, RouteLimits, validate_choices, validate_decision, validate_plan};
