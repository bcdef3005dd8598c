//! The decision `precision`: what a request is served with. See `wit/precision.wit`.

use crate::{Policy, Table};

#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "precision-policy",
        pub_export_macro: true,
        export_macro_name: "export_precision",
        default_bindings_module: "millrace_policy_sdk::glue::bindings",
    });
}

pub use bindings::exports::millrace::policy::precision::{Ask, Choice};

/// Chooses precisions.
pub trait Precision: Policy {
    /// One choice per ask, in order.
    fn choose(&mut self, asks: &[Ask], precisions: &Table, tenants: &Table) -> Vec<Choice>;
}

/// Exports a type that implements [`Policy`] and [`Precision`] as the component.
#[macro_export]
macro_rules! precision_policy {
    ($policy:ty) => {
        $crate::policy_component!($policy);

        impl $crate::glue::bindings::exports::millrace::policy::precision::Guest for Component {
            fn choose(
                asks: Vec<$crate::precision::Ask>,
                precisions: $crate::Table,
                tenants: $crate::Table,
            ) -> Vec<$crate::precision::Choice> {
                with_policy(|policy| $crate::precision::Precision::choose(policy, &asks, &precisions, &tenants))
            }
        }

        $crate::glue::bindings::export_precision!(Component with_types_in $crate::glue::bindings);
    };
}
