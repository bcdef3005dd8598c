//! The three decisions that an operator may take over: precision, route, schedule. Traits, the tables they read, validation
//! of their answers, and native fallbacks.
//!
//! Pure: no Wasm, no clock, no IO. Facts come in as tables of columns, row numbers go out; the host validates every answer.

mod table;
mod traits;

pub use table::{Column, Table, kind};
pub use traits::{
    Ask, Budget, Choice, Decision, FaultKind, Forward, Plan, PolicyFault, PrecisionPolicy, Refusal, RoutePolicy, RouteRequest,
    SchedulePolicy,
};
