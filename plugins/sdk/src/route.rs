//! The decision `route`: where a request is served. See `wit/route.wit`.

use crate::{Policy, Table};

#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "route-policy",
        pub_export_macro: true,
        export_macro_name: "export_route",
        default_bindings_module: "millrace_policy_sdk::glue::bindings",
    });
}

pub use bindings::exports::millrace::policy::route::{Decision, Forward, Refusal, Request};

/// Rows of lanes that the host would take: `eligible`, or `healthy` without it, or all.
#[must_use]
pub fn eligible(lanes: &Table) -> Vec<u32> {
    let (eligible, healthy) = (lanes.column(crate::kind::ELIGIBLE), lanes.column(crate::kind::HEALTHY));
    let column = if eligible.is_present() { eligible } else { healthy };
    (0..lanes.rows).filter(|&row| !column.is_present() || column.get(row) == Some(1)).collect()
}

/// Routes requests.
pub trait Route: Policy {
    fn decide(&mut self, request: &Request, lanes: &Table, tenants: &Table) -> Decision;
}

/// Exports a type that implements [`Policy`] and [`Route`] as the component.
#[macro_export]
macro_rules! route_policy {
    ($policy:ty) => {
        $crate::policy_component!($policy);

        impl $crate::glue::bindings::exports::millrace::policy::route::Guest for Component {
            fn decide(
                request: $crate::route::Request,
                lanes: $crate::Table,
                tenants: $crate::Table,
            ) -> $crate::route::Decision {
                with_policy(|policy| $crate::route::Route::decide(policy, &request, &lanes, &tenants))
            }
        }

        $crate::glue::bindings::export_route!(Component with_types_in $crate::glue::bindings);
    };
}
