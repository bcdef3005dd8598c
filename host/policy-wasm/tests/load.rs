//! The load path refuses what is wrong and says why and how to mend it.

mod support;

use std::sync::Arc;

use millrace_policy::FaultKind;
use millrace_policy_wasm::{EngineOptions, Grant, LoadError, PolicyEngine, PolicyKind, PolicyLimits, PolicyOptions, builtin};
use support::{HandClock, Random, engine, guests, load};

fn schedule(source: &[u8]) -> Result<(), LoadError> {
    load(source, PolicyKind::Schedule, "candidate").map(|_| ())
}

fn limited(source: &[u8], change: impl FnOnce(&mut PolicyLimits)) -> LoadError {
    let mut options = PolicyOptions::new("candidate", PolicyKind::Schedule);
    change(&mut options.limits);
    engine().load(source, PolicyKind::Schedule, &options).map(|_| ()).expect_err("over a limit")
}

#[test]
fn core_modules_and_components_are_both_taken() {
    let loaded = load(&guests::core("reverse-schedule"), PolicyKind::Schedule, "core").expect("a core module");
    assert_eq!((loaded.info().name.as_str(), loaded.info().version.as_str()), ("test-guest", "0.1.0"));
    assert_eq!(loaded.info().sha256.len(), 64);
    assert!(loaded.wants().is_empty());
    assert_eq!(schedule(&guests::component("reverse-schedule")), Ok(()));
}

#[test]
fn what_is_no_component() {
    for (bytes, found) in [(&b""[..], "\"\""), (b"\0asm", "\"\\x00asm\""), (b"#!/bin/sh", "\"#!/bin/s\"")] {
        assert_eq!(schedule(bytes), Err(LoadError::NotWasm { found: found.into() }));
    }
    let empty_core = wat::parse_str("(module)").expect("text");
    assert_eq!(schedule(&empty_core), Err(LoadError::CoreModule));
    let precompiled = wasmtime::Engine::default().precompile_module(&empty_core).expect("code");
    assert_eq!(schedule(&precompiled), Err(LoadError::Precompiled));
    let whole = guests::component("reverse-schedule");
    for length in [9, whole.len() / 2, whole.len() - 1] {
        assert!(matches!(schedule(&whole[..length]), Err(LoadError::Compile { .. })), "{length} bytes");
    }
    let misfit = guests::core_of("(module (memory (export \"memory\") 1))", "schedule-policy");
    assert!(matches!(schedule(&misfit), Err(LoadError::Componentize { .. })));
}

#[test]
fn the_pin_is_checked_on_the_bytes_as_they_are() {
    let source = guests::component("reverse-schedule");
    let mut options = PolicyOptions::new("pinned", PolicyKind::Schedule);
    options.sha256 = Some("00".repeat(32));
    let Err(LoadError::Digest { expected, found }) = engine().load(&source, PolicyKind::Schedule, &options).map(|_| ()) else {
        panic!("took another digest");
    };
    assert_eq!(expected, "00".repeat(32));
    options.sha256 = Some(found.to_uppercase());
    assert_eq!(engine().load(&source, PolicyKind::Schedule, &options).expect("the digest fits").info().sha256, found);
}

#[test]
fn worlds_and_versions() {
    let route = guests::component("other-lane-route");
    let Err(LoadError::World { kind: PolicyKind::Schedule, missing, found }) = schedule(&route) else { panic!("took a route") };
    assert_eq!(missing, "millrace:policy/schedule");
    assert!(found.contains("millrace:policy/route@0.1.0"), "{found}");
    let loaded = load(&route, PolicyKind::Route, "route").expect("a route policy");
    assert!(matches!(loaded.schedule().map(|_| ()), Err(LoadError::Kind { is: PolicyKind::Route, asked: PolicyKind::Schedule })));
    let empty = wat::parse_str("(component)").expect("text");
    assert!(matches!(schedule(&empty), Err(LoadError::World { missing, .. }) if missing == "millrace:policy/lifecycle"));
    for (version, is_known) in [("0.1.9", true), ("0.2.0", false), ("1.1.0", false)] {
        let other = replaced(&guests::component("reverse-schedule"), "@0.1.0", &format!("@{version}"));
        let result = schedule(&other);
        assert_eq!(result.is_ok(), is_known, "{version}: {result:?}");
        if !is_known {
            assert!(matches!(result, Err(LoadError::Version { ref name, .. }) if name.contains(version)), "{result:?}");
        }
    }
}

/// Same length, so that all sizes in the binary stay right.
fn replaced(source: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = source.to_vec();
    for at in 0..=bytes.len() - from.len() {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    }
    bytes
}

#[test]
fn exports_of_other_types() {
    let text = r#"(component
        (core module $m (func (export "f")))
        (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f")))
        (instance $lifecycle (export "init" (func $f)) (export "check-config" (func $f)))
        (instance $schedule (export "plan-step" (func $f)))
        (export "millrace:policy/lifecycle@0.1.0" (instance $lifecycle))
        (export "millrace:policy/schedule@0.1.0" (instance $schedule)))"#;
    let result = schedule(&wat::parse_str(text).expect("text"));
    assert!(matches!(result, Err(LoadError::Types { .. })), "{result:?}");
}

#[test]
fn imports() {
    let flood = guests::component("flood-schedule");
    let mut options = PolicyOptions::new("quiet", PolicyKind::Schedule);
    options.grants = vec![Grant::Metrics, Grant::State];
    let result = engine().load(&flood, PolicyKind::Schedule, &options).map(|_| ());
    assert!(matches!(result, Err(LoadError::NotGranted { ref grant, .. }) if grant == "log"), "{result:?}");
    for import in ["wasi:cli/environment@0.2.0", "millrace:policy/files@0.1.0"] {
        let text = format!("(component (import \"{import}\" (instance)))");
        let result = schedule(&wat::parse_str(text).expect("text"));
        assert_eq!(result, Err(LoadError::UnknownImport { import: import.into() }));
    }
}

#[test]
fn limits() {
    let source = guests::component("reverse-schedule");
    let size = source.len();
    assert_eq!(limited(&source, |l| l.component_bytes = size - 1), LoadError::TooLarge { bytes: size, limit: size - 1 });
    assert_eq!(limited(&source, |l| l.memory_bytes = 1 << 20), LoadError::Memory { needed: 2 << 20, limit: 1 << 20 });
    assert_eq!(limited(&source, |l| l.compile_us = 0), LoadError::CompileTime { limit_ms: 0 });
}

#[test]
fn guests_that_do_not_start() {
    let quick = |name: &str| limited(&guests::component(name), |limits| limits.setup_us = 20_000);
    let is_timeout = |error: &LoadError, in_phase: &str| match error {
        LoadError::Fault { phase, kind, .. } => *phase == in_phase && *kind == FaultKind::Timeout,
        _ => false,
    };
    let error = quick("loop-start-schedule");
    assert!(is_timeout(&error, "instantiating"), "{error:?}");
    let error = quick("loop-init-schedule");
    assert!(is_timeout(&error, "`init`"), "{error:?}");
    let error = quick("loop-check-schedule");
    assert!(is_timeout(&error, "`check-config`"), "{error:?}");
    assert_eq!(schedule(&guests::component("refuse-init-schedule")), Err(LoadError::Init("no weights given".into())));
    let faults = vec!["a: missing".into(), "b: negative".into()];
    assert_eq!(schedule(&guests::component("refuse-config-schedule")), Err(LoadError::Config(faults)));
    let error = schedule(&guests::component("trap-trial-schedule")).expect_err("traps in the trial");
    assert!(matches!(&error, LoadError::Smoke { detail, .. } if detail.contains("unreachable")), "{error:?}");
}

#[test]
fn configuration_of_the_built_in_policies() {
    let with = |kind: PolicyKind, config: &str| {
        let options = PolicyOptions { config_json: config.into(), ..builtin::options(kind) };
        engine().load(builtin::component(kind), kind, &options).map(|_| ())
    };
    assert_eq!(with(PolicyKind::Precision, r#"{"long_context_tokens": 100, "pressure_per_mille": 500}"#), Ok(()));
    assert_eq!(with(PolicyKind::Route, r#"{"max_waiting_per_weight": 4}"#), Ok(()));
    for (kind, config, says) in [
        (PolicyKind::Precision, r#"{"long_context": 100}"#, "long_context"),
        (PolicyKind::Precision, r#"{"long_context_tokens": -1}"#, "-1"),
        (PolicyKind::Precision, r#"{"long_context_tokens": 0, "pressure_per_mille": 1001}"#, "1001"),
        (PolicyKind::Route, r#"{"pressure_per_mille": 0}"#, "pressure_per_mille"),
        (PolicyKind::Schedule, r#"{"quantum": 1}"#, "quantum"),
        (PolicyKind::Schedule, "[", "EOF"),
    ] {
        let result = with(kind, config);
        assert!(matches!(&result, Err(LoadError::Config(faults)) if faults.iter().any(|f| f.contains(says))), "{result:?}");
    }
}

#[test]
fn damaged_components_are_refused_or_run_but_never_end_the_host() {
    let whole = guests::component("reverse-schedule");
    let mut random = Random(3);
    let mut refused = 0;
    for _ in 0..150 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        refused += u32::from(schedule(&bytes).is_err());
    }
    assert!(refused > 50, "{refused} of 150");
}

#[test]
fn instances_are_bounded_and_come_back() {
    let few = EngineOptions { max_instances: 4, ..EngineOptions::new(Arc::new(HandClock::default())) };
    let few = PolicyEngine::new(few).expect("an engine");
    let options = PolicyOptions::new("few", PolicyKind::Schedule);
    let loaded = few.load(&guests::component("reverse-schedule"), PolicyKind::Schedule, &options).expect("loads");
    let mut held = Vec::new();
    let error = loop {
        match loaded.schedule() {
            Ok(policy) => held.push(policy),
            Err(error) => break error,
        }
        assert!(held.len() <= 4);
    };
    assert!(matches!(error, LoadError::Fault { kind: FaultKind::Unavailable, .. }), "{error:?}");
    held.pop();
    assert!(loaded.schedule().is_ok());
}

#[test]
fn without_address_space_for_a_pool_instances_are_mapped_one_by_one() {
    // 200,000 memories of 4 GiB are more than a process can reserve.
    let many = EngineOptions { max_instances: 100_000, ..EngineOptions::new(Arc::new(HandClock::default())) };
    let many = PolicyEngine::new(many).expect("an engine nevertheless");
    let options = PolicyOptions::new("many", PolicyKind::Schedule);
    let loaded = many.load(&guests::component("reverse-schedule"), PolicyKind::Schedule, &options).expect("loads");
    assert!(loaded.schedule().is_ok());
}
