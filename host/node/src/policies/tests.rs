//! What is loaded where, and who may be asked to change it.

use std::path::PathBuf;

use super::*;
use crate::ids::MonotonicClock;

/// Two pools in a lane, as processes of their own or not.
pub(super) fn config(pool: &str, policies: &str) -> Config {
    let text = format!(
        "[model.m]\npath = \"m.gguf\"\n[pool.p]\nstage = \"prefill\"\n{pool}\n[pool.d]\nstage = \"decode\"\n{pool}\n[lane.l]\n\
         prefill = \"p\"\ndecode = \"d\"\n{policies}"
    );
    millrace_config::parse(&text, "x.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

pub(super) fn guest(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist").join(format!("{name}.wasm"))
}

pub(super) fn clock() -> Arc<dyn Clock> {
    Arc::new(MonotonicClock::new())
}

/// An engine process is never asked for a route or a precision, so it reads no such component and records none.
#[test]
fn an_engine_process_loads_and_records_its_schedule_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let policies = format!(
        "[policy.record]\ndirectory = \"{}\"\n[policy.route]\ncomponent = \"nowhere.wasm\"\n[policy.precision]\ncomponent = \
         \"nowhere.wasm\"\n[policy.schedule]\ncomponent = \"{}\"\n",
        directory.path().display(),
        guest("reverse-schedule").display()
    );
    let config = config("process = true", &policies);
    let slot = schedule_alone(&config, clock()).expect("a schedule");
    assert_eq!(slot.status().info.name, "test-guest");
    let files: Vec<_> =
        std::fs::read_dir(directory.path()).expect("a directory").map(|file| file.expect("a file").file_name()).collect();
    assert_eq!(files, ["schedule.trace"]);
    assert!(matches!(Policies::load(&config, clock()), Err(StartError::Component { .. })), "the server asks for all three");
}

/// Every way to change a schedule that nobody here asks is closed alike.
#[test]
fn what_is_scheduled_elsewhere_is_not_changed_here() {
    let policies = Policies::load(&config("process = true", ""), clock()).expect("policies");
    let kind = PolicyKind::Schedule;
    let source = std::fs::read(guest("reverse-schedule")).expect("a guest");
    assert!(matches!(policies.return_to_builtin(kind), Err(SwapError::Elsewhere)));
    assert!(matches!(policies.roll_back(kind), Err(SwapError::Elsewhere)));
    assert!(matches!(policies.replace(kind, &source, None), Err(SwapError::Elsewhere)));
    assert!(matches!(policies.start_shadow(kind, &source, None), Err(SwapError::Elsewhere)));
    assert!(policies.return_to_builtin(PolicyKind::Route).is_ok());
}
