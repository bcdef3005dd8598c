//! `millrace policy new`: a project with contract, SDK, a policy to change and the script that builds it. Everything is in the
//! binary, so it needs no repository; the script fetches the language's toolchain where that is missing.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use millrace_policy_wasm::{PolicyKind, contract};

use super::Kind;
use crate::output::say;
use crate::{Failure, UsageError};

/// `wasm32` file names and package names of all four languages allow these.
const MAX_NAME_BYTES: usize = 40;

#[derive(Args)]
pub(crate) struct NewArgs {
    /// Directory to make; its last part is the policy's name.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    #[arg(long)]
    lang: Language,
    #[arg(long)]
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Language {
    Rust,
    Python,
    Js,
    C,
}

/// A file of the project: path below its directory, and bytes.
type File = (String, Vec<u8>);

/// Files of the SDK in Rust, which is a package of its own in the project.
const RUST_SDK: [(&str, &str); 9] = [
    ("Cargo.toml", include_str!("../../../../plugins/sdk/Cargo.toml")),
    ("src/format.rs", include_str!("../../../../plugins/sdk/src/format.rs")),
    ("src/kind.rs", include_str!("../../../../plugins/sdk/src/kind.rs")),
    ("src/lib.rs", include_str!("../../../../plugins/sdk/src/lib.rs")),
    ("src/policy.rs", include_str!("../../../../plugins/sdk/src/policy.rs")),
    ("src/precision.rs", include_str!("../../../../plugins/sdk/src/precision.rs")),
    ("src/route.rs", include_str!("../../../../plugins/sdk/src/route.rs")),
    ("src/schedule.rs", include_str!("../../../../plugins/sdk/src/schedule.rs")),
    ("src/table.rs", include_str!("../../../../plugins/sdk/src/table.rs")),
];

pub(crate) fn run(args: &NewArgs) -> Result<(), Failure> {
    let directory = &args.directory;
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !is_name(name) {
        let rule = format!("lower-case letters, digits and -, beginning with a letter, at most {MAX_NAME_BYTES}");
        return Err(UsageError(format!("`{name}` cannot be a policy's name; use {rule}")).into());
    }
    if directory.exists() {
        return Err(UsageError(format!("{} is there already; name a new directory", directory.display())).into());
    }
    for (path, bytes) in files(args.lang, args.kind.into(), name)? {
        write(&directory.join(path), &bytes)?;
    }
    say!("{}: a {} policy; build it with {}/build.sh", directory.display(), PolicyKind::from(args.kind), directory.display());
    Ok(())
}

fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).with_context(cannot)?;
    fs::write(path, bytes).with_context(cannot)?;
    if bytes.starts_with(b"#!") {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).with_context(cannot)?;
    }
    Ok(())
}

/// All of a project.
fn files(language: Language, kind: PolicyKind, name: &str) -> Result<Vec<File>> {
    let (script, source) = (script(language), policy(language, kind));
    let (title, path) = match language {
        Language::Rust => ("Rust", "src/lib.rs"),
        Language::Python => ("Python", "policy.py"),
        Language::Js => ("JavaScript", "policy.js"),
        Language::C => ("C", "policy.c"),
    };
    let filled = |text: &str| {
        let kind = kind.to_string();
        let module = name.replace('-', "_");
        let pairs = [("name", name), ("kind", &*kind), ("module", &*module), ("language", title), ("source", path)];
        pairs.iter().fold(text.to_owned(), |text, (key, value)| text.replace(&format!("{{{{{key}}}}}"), value)).into_bytes()
    };
    let mut files: Vec<File> =
        contract::FILES.iter().map(|(name, text)| (format!("wit/{name}"), text.as_bytes().to_vec())).collect();
    files.push(("build.sh".to_owned(), filled(script)));
    files.push(("README.md".to_owned(), filled(include_str!("templates/README.md.in"))));
    files.push((".gitignore".to_owned(), format!("/target\n/.tools\n__pycache__/\n/{name}.wasm\n").into_bytes()));
    files.push((path.to_owned(), filled(&source)));
    match language {
        Language::Rust => {
            files.push(("Cargo.toml".to_owned(), filled(include_str!("templates/rust/Cargo.toml.in"))));
            files.extend(RUST_SDK.iter().map(|(path, text)| (format!("vendor/sdk/{path}"), text.as_bytes().to_vec())));
        }
        Language::Python => files.push(text("millrace.py", include_str!("../../../../plugins/python/millrace.py"))),
        Language::Js => files.push(text("millrace.js", include_str!("../../../../plugins/js/millrace.js"))),
        Language::C => {
            files.push(text("millrace.h", include_str!("../../../../plugins/c/millrace.h")));
            let bindings = contract::c_bindings(kind).map_err(|error| anyhow::anyhow!("the C bindings are not made: {error}"))?;
            files.extend(bindings.into_iter().map(|(name, bytes)| (format!("bindings/{name}"), bytes)));
        }
    }
    Ok(files)
}

fn text(path: &str, text: &str) -> File {
    (path.to_owned(), text.as_bytes().to_vec())
}

fn script(language: Language) -> &'static str {
    match language {
        Language::Rust => include_str!("templates/rust/build.sh"),
        Language::Python => include_str!("templates/python/build.sh"),
        Language::Js => include_str!("templates/js/build.sh"),
        Language::C => include_str!("templates/c/build.sh"),
    }
}

/// The policy to change. In C the lifecycle is the same for every kind.
fn policy(language: Language, kind: PolicyKind) -> String {
    macro_rules! of_kind {
        ($folder:literal, $end:literal) => {
            match kind {
                PolicyKind::Precision => include_str!(concat!("templates/", $folder, "/precision.", $end)),
                PolicyKind::Route => include_str!(concat!("templates/", $folder, "/route.", $end)),
                PolicyKind::Schedule => include_str!(concat!("templates/", $folder, "/schedule.", $end)),
            }
        };
    }
    match language {
        Language::Rust => of_kind!("rust", "rs").to_owned(),
        Language::Python => of_kind!("python", "py").to_owned(),
        Language::Js => of_kind!("js", "js").to_owned(),
        Language::C => [of_kind!("c", "c"), include_str!("templates/c/lifecycle.c")].concat(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn nothing_of_the_sdk_is_left_out() {
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/sdk");
        let mut there: Vec<String> = fs::read_dir(sdk.join("src"))
            .expect("the SDK")
            .map(|entry| format!("src/{}", entry.expect("entry").file_name().to_string_lossy()))
            .collect();
        there.push("Cargo.toml".to_owned());
        there.sort();
        assert_eq!(there, RUST_SDK.map(|(path, _)| path));
    }

    #[test]
    fn every_project_is_complete_and_filled_in() {
        for language in [Language::Rust, Language::Python, Language::Js, Language::C] {
            for kind in PolicyKind::ALL {
                let files = files(language, kind, "night-shift").expect("files");
                let paths: BTreeSet<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
                assert_eq!(paths.len(), files.len(), "{language:?} {kind}: a file twice");
                assert!(paths.contains("build.sh") && paths.contains("wit/worlds.wit"), "{paths:?}");
                for (path, bytes) in &files {
                    let text = String::from_utf8_lossy(bytes);
                    assert!(!text.contains("{{name") && !text.contains("{{kind") && !text.contains("{{m"), "{language:?} {path}");
                }
                let script = files.iter().find(|(path, _)| path == "build.sh").expect("a script");
                assert!(String::from_utf8_lossy(&script.1).contains("night-shift.wasm"));
            }
        }
    }

    #[test]
    fn names_fit_every_language() {
        for good in ["a", "night-shift", "edf2"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "2a", "a_b", "A", "a-", "a b", "-a", "é", &"a".repeat(41)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
