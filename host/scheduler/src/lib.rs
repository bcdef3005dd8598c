//! What runs in the next step: one state machine per stage, plan -> run -> commit.
//!
//! ```text
//!   Entry -> [PrefillScheduler] -- Prefilled{pages} --> hand-off --> [DecodeScheduler] -- Token.. Finished
//!               ^                                                        |
//!               +------------------- Preempted(Entry) -------------------+
//! ```
//!
//! `plan` chooses rows and gives them pages, and may be called while a step runs; `dispatch` turns the draft into a
//! [`StepPlan`] of plain data, without the rows that went stale; `commit` takes the step's outcomes. The two machines share
//! nothing and know nothing of each other.
//!
//! Pure and deterministic: no clock, IO, RNG or async. It does not know models, samplers, text, nor what a page holds.
#![forbid(unsafe_code)]

mod decode;
mod draft;
mod error;
mod event;
#[cfg(any(test, feature = "fault-injection"))]
mod faults;
mod kept;
mod ledger;
mod limits;
mod prefill;
mod sequence;
mod stage;
mod step;
mod step_bound;
mod validate;
mod view;

pub use decode::DecodeScheduler;
pub use draft::Draft;
pub use error::{NoRoom, SubmitError};
pub use event::{DecodeEvent, PrefillEvent};
#[cfg(any(test, feature = "fault-injection"))]
pub use faults::SequenceState;
pub use ledger::{TenantLedger, TenantShare};
pub use limits::{StageCounters, StageCounts, StageLimits};
pub use prefill::PrefillScheduler;
pub use sequence::Entry;
pub use step::{Outcome, OutcomeStatus, PlanRow, PolicyCall, StepPlan};
pub use step_bound::{Neighbours, StepCost};
pub use view::{RowFacts, RowState, rows_table};

#[cfg(test)]
mod sim;
