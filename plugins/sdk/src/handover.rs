//! The optional interface `handover`: a policy's own memory over a swap. See `wit/handover.wit`.

use crate::Policy;

#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package millrace:sdk-handover; world hands-over { export millrace:policy/handover@0.1.0; }",
        world: "millrace:sdk-handover/hands-over",
        pub_export_macro: true,
        export_macro_name: "export_handover",
        default_bindings_module: "millrace_policy_sdk::handover::bindings",
    });
}

/// Hands its memory over.
pub trait Handover: Policy {
    /// What the policy knows, at most 64 KiB; begin with a mark of its own.
    fn save(&mut self) -> Vec<u8>;

    /// Before the first decision, with what the policy in force before gave, whichever that was.
    ///
    /// # Errors
    /// It is no memory of this policy, which starts empty then.
    fn restore(&mut self, saved: &[u8]) -> Result<(), String>;
}

/// Exports `handover` beside the decision of a policy that implements [`Handover`]: after that decision's macro, on the same type.
#[macro_export]
macro_rules! policy_handover {
    ($policy:ty) => {
        impl $crate::handover::bindings::exports::millrace::policy::handover::Guest for Component {
            fn save() -> Vec<u8> {
                with_policy(|policy: &mut $policy| $crate::handover::Handover::save(policy))
            }

            fn restore(saved: Vec<u8>) -> Result<(), String> {
                with_policy(|policy: &mut $policy| $crate::handover::Handover::restore(policy, &saved))
            }
        }

        $crate::handover::bindings::export_handover!(Component with_types_in $crate::handover::bindings);
    };
}
