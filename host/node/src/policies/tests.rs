//! What is loaded where, and who may be asked to change it.

use std::path::PathBuf;

use super::*;
use crate::ids::MonotonicClock;

/// In hex.
pub(crate) fn sha256(source: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(source).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Two pools in a lane, as processes of their own or not.
pub(crate) fn config(pool: &str, policies: &str) -> Config {
    let text = format!(
        "[model.m]\npath = \"m.gguf\"\n[pool.p]\nstage = \"prefill\"\n{pool}\n[pool.d]\nstage = \"decode\"\n{pool}\n[lane.l]\n\
         prefill = \"p\"\ndecode = \"d\"\n{policies}"
    );
    millrace_config::parse(&text, "x.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

pub(crate) fn guest(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist").join(format!("{name}.wasm"))
}

pub(crate) fn clock() -> Arc<dyn Clock> {
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
    let alone = schedule_alone(&config, clock()).expect("a schedule");
    assert_eq!(alone.slot.status().info.name, "test-guest");
    let files: Vec<_> =
        std::fs::read_dir(directory.path()).expect("a directory").map(|file| file.expect("a file").file_name()).collect();
    assert_eq!(files, ["schedule.trace"]);
    assert!(matches!(Policies::load(&config, clock()), Err(StartError::Component { .. })), "the server asks for all three");
}

/// A trial would compare nothing where nobody decides.
#[test]
fn what_is_scheduled_elsewhere_is_on_trial_nowhere() {
    let policies = Policies::load(&config("process = true", ""), clock()).expect("policies");
    let source = std::fs::read(guest("reverse-schedule")).expect("a guest");
    let refused = policies.start_shadow(PolicyKind::Schedule, &source, None);
    assert!(matches!(&refused, Err(SwapError::Elsewhere)), "{refused:?}");
    let route = std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist/route.wasm")).expect("a guest");
    assert!(policies.start_shadow(PolicyKind::Route, &route, None).is_ok());
}

/// The server found its file in order; one that is broken by the time an engine process starts again does not keep that down.
#[test]
fn an_engine_process_whose_component_is_broken_begins_with_the_built_in() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.wasm");
    std::fs::write(&path, "no component").expect("written");
    let config = config("process = true", &format!("[policy.schedule]\ncomponent = \"{}\"\n", path.display()));
    let alone = schedule_alone(&config, clock()).expect("a schedule");
    assert_eq!(alone.slot.status().info.origin, "built-in");
    assert!(Policies::load(&config, clock()).is_err(), "a server does not start so");
}

/// Loading takes seconds, in which an operator may find that the built-in is needed now.
#[test]
fn who_asks_for_the_way_back_while_a_policy_is_being_loaded_has_the_last_word() {
    let policies = Policies::load(&config("", ""), clock()).expect("policies");
    let kind = PolicyKind::Schedule;
    let source = std::fs::read(guest("reverse-schedule")).expect("a guest");
    let recalls = policies.recalls(kind);
    let loaded = policies.engine.load(&source, kind, &policies.uploaded(kind, None)).expect("loads");
    let builtin = policies.return_to_builtin(kind).expect("the built-in");
    assert!(matches!(policies.put(&loaded, None, recalls), Err(SwapError::Recalled)));
    assert_eq!(policies.status(kind).info, builtin);
    // What is uploaded afterwards is wanted.
    assert_eq!(policies.replace(kind, &source, None).expect("in force"), builtin);
    assert_eq!(policies.status(kind).info.name, "test-guest");
    assert!(policies.start_shadow(kind, &source, None).is_ok() && policies.activate(kind).is_ok());
}
