//! The optional interface `feedback`: what became of the requests that the policy decided about. See `wit/feedback.wit`.

use crate::{Policy, Table};

#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package millrace:sdk-feedback; world hears { export millrace:policy/feedback@0.1.0; }",
        world: "millrace:sdk-feedback/hears",
        with: { "millrace:policy/types@0.1.0": crate::glue::bindings::millrace::policy::types },
        pub_export_macro: true,
        export_macro_name: "export_feedback",
        default_bindings_module: "millrace_policy_sdk::feedback::bindings",
    });
}

/// Values of [`crate::kind::OUTCOME`].
pub mod outcome {
    /// The model ended it.
    pub const STOPPED: u32 = 0;
    /// It was as long as it may be.
    pub const LENGTH: u32 = 1;
    /// The client left.
    pub const LEFT: u32 = 2;
    pub const FAILED: u32 = 3;
}

/// Hears what became of requests.
pub trait Feedback: Policy {
    /// A row for each request that has ended, in the order of the ends.
    fn observe(&mut self, outcomes: &Table);
}

/// Exports `feedback` beside the decision of a policy that implements [`Feedback`]: after that decision's macro, on the same type.
#[macro_export]
macro_rules! policy_feedback {
    ($policy:ty) => {
        impl $crate::feedback::bindings::exports::millrace::policy::feedback::Guest for Component {
            fn observe(outcomes: $crate::Table) {
                with_policy(|policy: &mut $policy| $crate::feedback::Feedback::observe(policy, &outcomes));
            }
        }

        $crate::feedback::bindings::export_feedback!(Component with_types_in $crate::feedback::bindings);
    };
}
