//! The built-in policies: components made from `plugins/` by `plugins/build.sh`, part of the binary.
//! A test rebuilds them and compares their decisions.

use crate::{PolicyKind, PolicyOptions};

/// Lanes by load, with the tenant in mind.
pub const ROUTE: &[u8] = include_bytes!("../../../plugins/dist/route.wasm");
/// Who was served least for its weight runs first.
pub const SCHEDULE: &[u8] = include_bytes!("../../../plugins/dist/schedule.wasm");
/// By tier, length of the prompt and pressure.
pub const PRECISION: &[u8] = include_bytes!("../../../plugins/dist/precision.wasm");

/// Those that a deployment names itself, `component = "builtin:fcfs"`: kind, name and component.
pub const NAMED: [(PolicyKind, &str, &[u8]); 8] = [
    (PolicyKind::Route, "tenant", ROUTE),
    (PolicyKind::Route, "affinity", include_bytes!("../../../plugins/dist/affinity-route.wasm")),
    (PolicyKind::Route, "least-loaded", include_bytes!("../../../plugins/dist/least-loaded-route.wasm")),
    (PolicyKind::Schedule, "fair", SCHEDULE),
    (PolicyKind::Schedule, "fcfs", include_bytes!("../../../plugins/dist/fcfs-schedule.wasm")),
    (PolicyKind::Schedule, "priority", include_bytes!("../../../plugins/dist/priority-schedule.wasm")),
    (PolicyKind::Precision, "tier", PRECISION),
    (PolicyKind::Precision, "pressure", include_bytes!("../../../plugins/dist/pressure-precision.wasm")),
];

/// A built-in component by its name.
#[must_use]
pub fn named(kind: PolicyKind, name: &str) -> Option<&'static [u8]> {
    NAMED.iter().find(|(of, named, _)| *of == kind && *named == name).map(|(_, _, component)| *component)
}

/// The built-in component of a kind where none is named.
#[must_use]
pub fn component(kind: PolicyKind) -> &'static [u8] {
    match kind {
        PolicyKind::Precision => PRECISION,
        PolicyKind::Route => ROUTE,
        PolicyKind::Schedule => SCHEDULE,
    }
}

/// How to load it under the name of its kind, without configuration.
#[must_use]
pub fn options(kind: PolicyKind) -> PolicyOptions {
    PolicyOptions { origin: "built-in".to_owned(), ..PolicyOptions::new(&kind.to_string(), kind) }
}
