//! Imports point down: which package may use which, and which library lives behind which fence. Reads manifests only.

use crate::expect_none;
use crate::manifests::{Dependency, Kind, Package, host_packages};

/// Every package of the host from the bottom up, with those of ours that it may use.
const LAYERS: &[(&str, &[&str])] = &[
    ("ops", &[]),
    ("cpu", &["ops"]),
    ("cuda", &["ops"]),
    ("core", &["ops"]),
    ("config", &["core"]),
    ("tokenize", &[]),
    ("kv", &[]),
    ("model", &["core", "ops"]),
    ("policy", &["core"]),
    ("policy-wasm", &["core", "policy"]),
    ("scheduler", &["core", "kv", "policy"]),
    ("transfer", &[]),
    ("engine", &["core", "ops", "kv", "model", "policy", "scheduler", "transfer"]),
    ("sim", &["core", "ops", "cpu", "kv", "model", "policy", "policy-wasm", "scheduler", "transfer", "engine"]),
    (
        "node",
        &[
            "core",
            "ops",
            "cpu",
            "cuda",
            "config",
            "tokenize",
            "kv",
            "model",
            "policy",
            "policy-wasm",
            "scheduler",
            "transfer",
            "engine",
        ],
    ),
    ("api", &["core", "node"]),
    (
        "cli",
        &[
            "core",
            "ops",
            "cpu",
            "cuda",
            "config",
            "tokenize",
            "kv",
            "model",
            "policy",
            "policy-wasm",
            "scheduler",
            "transfer",
            "engine",
            "sim",
            "node",
            "api",
        ],
    ),
    (
        "tests",
        &[
            "core",
            "ops",
            "cpu",
            "cuda",
            "config",
            "tokenize",
            "kv",
            "model",
            "policy",
            "policy-wasm",
            "scheduler",
            "engine",
            "sim",
            "node",
            "api",
            "cli",
        ],
    ),
];

/// Libraries with one home: (library, packages that may name it, why).
const FENCES: &[(&str, &[&str], &str)] = &[
    ("wasmtime", &["policy-wasm"], "guests and their limits are understood in one place"),
    ("wit-component", &["policy-wasm"], "components are made and read in one place"),
    ("wit-bindgen-c", &["policy-wasm"], "what is made of the contract is made in one place"),
    ("wit-bindgen-core", &["policy-wasm"], "what is made of the contract is made in one place"),
    ("cudarc", &["cuda"], "devices are behind the Backend trait"),
    ("libloading", &["cuda"], "devices are behind the Backend trait"),
    ("toml", &["config", "tests"], "TOML is the operator's language, typed data is everybody else's"),
    ("hyper", &["api", "cli", "tests"], "HTTP exists at the edge only"),
    ("hyper-util", &["api", "cli", "tests"], "HTTP exists at the edge only"),
    ("axum", &["api"], "HTTP exists at the edge only"),
    ("tower", &["api", "tests"], "HTTP exists at the edge only"),
    ("http-body-util", &["api", "cli", "tests"], "HTTP exists at the edge only"),
    ("memmap2", &["model"], "a mapped file can change under its reader; the checkpoint's reader knows how to live with it"),
    ("tokenizers", &["tokenize"], "text becomes ids in one place"),
    ("minijinja", &["tokenize"], "templates come from strangers and are rendered in one place"),
    ("rustls", &["transfer"], "who is at the other end is settled in one place"),
    ("tokio-rustls", &["transfer"], "who is at the other end is settled in one place"),
    ("rcgen", &["transfer"], "who is at the other end is settled in one place"),
    ("clap", &["cli"], "one command line"),
    ("anyhow", &["cli", "tests"], "libraries have typed errors"),
];

/// Packages without clock, IO, randomness or async: all that they may use from outside.
const PURE: &[(&str, &[&str])] =
    &[("core", &["thiserror"]), ("kv", &["thiserror"]), ("policy", &["thiserror"]), ("scheduler", &["thiserror"])];

/// Layers are called after their folder, as are packages but for the binary's.
fn layer(package: &Package) -> &str {
    package.directory.rsplit('/').next().unwrap_or_default()
}

fn is_ours(dependency: &Dependency) -> bool {
    dependency.name == "millrace" || dependency.name.starts_with("millrace-")
}

fn layer_of(dependency: &Dependency) -> &str {
    dependency.name.strip_prefix("millrace-").unwrap_or("cli")
}

fn rank(name: &str) -> Option<usize> {
    LAYERS.iter().position(|(layer, _)| *layer == name)
}

#[test]
fn every_package_has_its_place() {
    let mut violations = Vec::new();
    for package in host_packages() {
        if rank(layer(&package)).is_none() {
            violations.push(format!("{}: name what it may use in LAYERS", package.name));
        }
    }
    expect_none("every package has a place among the layers", &violations);
}

#[test]
fn the_table_itself_points_down() {
    for (index, (name, allowed)) in LAYERS.iter().enumerate() {
        for used in *allowed {
            assert!(rank(used).is_some_and(|below| below < index), "{name} -> {used}");
        }
    }
}

#[test]
fn imports_point_down() {
    let violations: Vec<String> = host_packages().iter().flat_map(upward).collect();
    expect_none("imports point down", &violations);
}

/// Tests may use whatever lies below; the package itself only what it is allowed.
fn upward(package: &Package) -> Vec<String> {
    let name = layer(package);
    let Some((own, (_, allowed))) = LAYERS.iter().enumerate().find(|(_, (layer, _))| *layer == name) else { return Vec::new() };
    let ours = package.dependencies.iter().filter(|dependency| is_ours(dependency));
    let refused = ours.filter(|dependency| {
        let used = layer_of(dependency);
        let below = rank(used).is_some_and(|rank| rank < own || (used == name && dependency.kind == Kind::Dev));
        !(allowed.contains(&used) || dependency.kind == Kind::Dev && below)
    });
    refused.map(|dependency| format!("{} -> {} ({:?})", package.name, dependency.name, dependency.kind)).collect()
}

#[test]
fn libraries_stay_behind_their_fence() {
    let mut violations = Vec::new();
    for package in host_packages() {
        for dependency in &package.dependencies {
            for (library, homes, why) in FENCES {
                let named = dependency.name == *library || dependency.name.starts_with(&format!("{library}-wasi"));
                if named && !homes.contains(&layer(&package)) {
                    violations.push(format!("{} uses {}: only {} may, because {why}", package.name, library, homes.join(", ")));
                }
            }
        }
    }
    expect_none("libraries stay behind their fence", &violations);
}

#[test]
fn pure_packages_use_nothing_from_outside() {
    let mut violations = Vec::new();
    for package in host_packages() {
        let Some((_, allowed)) = PURE.iter().find(|(name, _)| *name == layer(&package)) else { continue };
        let outside = package.dependencies.iter().filter(|used| used.kind != Kind::Dev && !is_ours(used));
        for dependency in outside.filter(|used| !allowed.contains(&used.name.as_str())) {
            violations.push(format!("{} uses {}", package.name, dependency.name));
        }
    }
    expect_none("pure packages use thiserror and nothing else", &violations);
}
