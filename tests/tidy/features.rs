//! What a production build leaves out: `cargo build -p millrace --no-default-features --features tags` has no simulator in it and no way
//! to break pages.

use std::collections::BTreeSet;

use toml::Value;

use crate::expect_none;
use crate::manifests::{Package, host_packages};

/// The feature that is a way to break things on purpose.
const FAULTS: &str = "fault-injection";

/// Dependencies that a build has which names no feature: name and table.
fn built(package: &Package) -> impl Iterator<Item = (&str, &Value)> {
    let tables = ["dependencies", "build-dependencies"].into_iter().filter_map(|key| package.table.get(key)?.as_table());
    let is_optional = |value: &Value| value.get("optional").and_then(Value::as_bool) == Some(true);
    tables.flatten().filter(move |(_, value)| !is_optional(value)).map(|(name, value)| (name.as_str(), value))
}

fn names(value: &Value, key: &str, wanted: &str) -> bool {
    let list = value.get(key).and_then(Value::as_array);
    list.is_some_and(|list| {
        list.iter().filter_map(Value::as_str).any(|name| name == wanted || name.ends_with(&format!("/{wanted}")))
    })
}

#[test]
fn a_build_without_default_features_can_break_nothing() {
    let packages = host_packages();
    let of = |name: &str| packages.iter().find(|package| package.name == name);
    let (mut seen, mut next, mut violations) = (BTreeSet::new(), vec!["millrace".to_owned()], Vec::new());
    while let Some(package) = next.pop().and_then(|name| of(&name)) {
        if !seen.insert(package.name.clone()) {
            continue;
        }
        for (name, value) in built(package) {
            if names(value, "features", FAULTS) {
                violations.push(format!("{} asks for {FAULTS} of {name}", package.directory));
            }
            if of(name).is_some() {
                next.push(name.to_owned());
            }
        }
        // What is asked for of the binary without defaults; of the others, defaults are part of every build.
        let defaults = package.table.get("features").filter(|_| package.name != "millrace");
        if defaults.is_some_and(|features| names(features, "default", FAULTS)) {
            violations.push(format!("{} has {FAULTS} by default", package.directory));
        }
    }
    if seen.contains("millrace-sim") {
        violations.push("the simulator is in a build without default features".to_owned());
    }
    assert!(seen.len() > 10 && seen.contains("millrace-kv"), "the walk goes nowhere: {seen:?}");
    expect_none("a production build has no way to break pages", &violations);
}
