//! The decision `schedule`: what an engine does in its next step. See `wit/schedule.wit`.

use crate::{Policy, Table};

#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "schedule-policy",
        pub_export_macro: true,
        export_macro_name: "export_schedule",
        default_bindings_module: "millrace_policy_sdk::glue::bindings",
    });
}

pub use bindings::exports::millrace::policy::schedule::{Budget, Plan, Stage};

/// States of a sequence: values of [`crate::kind::STATE`].
pub mod sequence {
    pub const WAITS: u32 = 0;
    pub const PREFILLS: u32 = 1;
    pub const HANDS_OFF: u32 = 2;
    pub const RUNS: u32 = 3;
    pub const PREEMPTED: u32 = 4;
}

/// Rows that the engine which asks can run. Both engines see all sequences; those of the other, or on their way, cannot run.
#[must_use]
pub fn runnable(budget: &Budget, rows: &Table) -> Vec<u32> {
    let state = rows.column(crate::kind::STATE);
    let may_run = |row: &u32| match state.or(*row, sequence::WAITS) {
        sequence::HANDS_OFF => false,
        sequence::RUNS => budget.stage == Stage::Decode,
        _ => true,
    };
    (0..rows.rows).filter(may_run).collect()
}

/// Plans steps.
pub trait Schedule: Policy {
    fn plan_step(&mut self, budget: &Budget, rows: &Table, tenants: &Table) -> Plan;
}

impl Default for Plan {
    /// Runs nothing.
    fn default() -> Self {
        Self { run: Vec::new(), tokens: Vec::new(), preempt: Vec::new(), valid_steps: 0, reason: 0 }
    }
}

/// Exports a type that implements [`Policy`] and [`Schedule`] as the component.
#[macro_export]
macro_rules! schedule_policy {
    ($policy:ty) => {
        $crate::policy_component!($policy);

        impl $crate::glue::bindings::exports::millrace::policy::schedule::Guest for Component {
            fn plan_step(
                budget: $crate::schedule::Budget,
                rows: $crate::Table,
                tenants: $crate::Table,
            ) -> $crate::schedule::Plan {
                with_policy(|policy| $crate::schedule::Schedule::plan_step(policy, &budget, &rows, &tenants))
            }
        }

        $crate::glue::bindings::export_schedule!(Component with_types_in $crate::glue::bindings);
    };
}
