//! The `Cargo.toml` files as far as the rules ask: names, dependencies, lints, members.

use toml::{Table, Value};

use crate::expect_none;
use crate::repo::{files, text};

/// Manifest of one package.
pub(crate) struct Package {
    /// Directory relative to the root: `host/core`.
    pub(crate) directory: String,
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) table: Table,
}

pub(crate) struct Dependency {
    /// Name of the package, not of the alias.
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Dev,
    Build,
}

/// Every package of the repository, the guests' included.
pub(crate) fn packages() -> Vec<Package> {
    let manifests = files().iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    let packages: Vec<Package> = manifests.filter_map(|file| package(&file.path, text(file)?)).collect();
    assert!(packages.len() > 10, "{} packages", packages.len());
    packages
}

/// The packages of the root workspace.
pub(crate) fn host_packages() -> Vec<Package> {
    packages().into_iter().filter(|package| !package.directory.starts_with("plugins/")).collect()
}

fn package(path: &str, text: &str) -> Option<Package> {
    let table: Table = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
    let name = table.get("package")?.get("name")?.as_str()?.to_owned();
    let mut dependencies = Vec::new();
    collect(&table, &mut dependencies);
    for target in table.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values) {
        collect(target.as_table()?, &mut dependencies);
    }
    Some(Package { directory: path.trim_end_matches("/Cargo.toml").to_owned(), name, dependencies, table })
}

fn collect(table: &Table, into: &mut Vec<Dependency>) {
    for (key, kind) in [("dependencies", Kind::Normal), ("dev-dependencies", Kind::Dev), ("build-dependencies", Kind::Build)] {
        for (alias, value) in table.get(key).and_then(Value::as_table).into_iter().flatten() {
            let name = value.get("package").and_then(Value::as_str).unwrap_or(alias);
            into.push(Dependency { name: name.to_owned(), kind });
        }
    }
}

fn root_manifest() -> Table {
    let file = files().iter().find(|file| file.path == "Cargo.toml").expect("the root has a manifest");
    text(file).expect("it is text").parse().expect("it is TOML")
}

#[test]
fn packages_are_named_after_their_folder() {
    let mut violations = Vec::new();
    for package in packages() {
        let folder = package.directory.rsplit('/').next().unwrap_or_default();
        let named = match package.directory.as_str() {
            // What `cargo install` is asked for.
            "host/cli" => package.name == "millrace",
            guest if guest.starts_with("plugins/") => package.name.starts_with("millrace-"),
            _ => package.name == format!("millrace-{folder}"),
        };
        if !named {
            violations.push(format!("{}: `{}`, expected `millrace-{folder}`", package.directory, package.name));
        }
    }
    expect_none("every package is millrace-FOLDER", &violations);
}

#[test]
fn packages_share_lints_and_belong_to_the_workspace() {
    let root = root_manifest();
    let members: Vec<&str> = root["workspace"]["members"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let mut violations = Vec::new();
    for package in host_packages() {
        if !members.contains(&package.directory.as_str()) {
            violations.push(format!("{} is no member of the workspace", package.directory));
        }
        let lints = package.table.get("lints").and_then(|lints| lints.get("workspace")).and_then(Value::as_bool);
        if lints != Some(true) {
            violations.push(format!("{}: no `[lints] workspace = true`", package.directory));
        }
        for key in ["version", "edition", "rust-version", "license", "publish"] {
            let shared = package.table["package"].get(key).and_then(|value| value.get("workspace")).and_then(Value::as_bool);
            if shared != Some(true) {
                violations.push(format!("{}: no `{key}.workspace = true`", package.directory));
            }
        }
    }
    expect_none("packages take lints and metadata from the workspace", &violations);
}

#[test]
fn versions_are_named_once() {
    let mut violations = Vec::new();
    for package in host_packages() {
        for key in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (name, value) in package.table.get(key).and_then(Value::as_table).into_iter().flatten() {
                if value.get("workspace").and_then(Value::as_bool) != Some(true) {
                    violations.push(format!("{}: `{name}` is not taken from the workspace", package.directory));
                }
            }
        }
    }
    expect_none("dependencies of the host are `workspace = true`", &violations);
}

#[test]
fn wasmtime_stays_on_its_long_term_line() {
    let root = root_manifest();
    let version = root["workspace"]["dependencies"]["wasmtime"]["version"].as_str().expect("a version");
    assert!(version == "48" || version.starts_with("48."), "wasmtime {version}");
}
