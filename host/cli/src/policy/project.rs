//! `millrace policy new`: a project with contract, SDK, a policy to change and the script that builds it. Everything is in the
//! binary, so it needs no repository; the script fetches the language's toolchain where that is missing.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use millrace_policy_wasm::PolicyKind;
use millrace_policy_wasm::contract::{self, Beside};

use super::Kind;
use super::parts::parts;
use crate::output::say;
use crate::{Failure, UsageError};

/// `wasm32` file names and package names of all four languages allow these.
const MAX_NAME_BYTES: usize = 40;
/// A package of every project in Rust.
const RUST_SDK_NAME: &str = "millrace-policy-sdk";

#[derive(Args)]
pub(crate) struct NewArgs {
    /// Directory to make; its last part is the policy's name.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    #[arg(long)]
    lang: Language,
    #[arg(long)]
    kind: Kind,
    /// What it exports beside its decision: hears what became of requests, hands its memory over at a swap.
    #[arg(long, value_name = "INTERFACES", value_delimiter = ',')]
    with: Vec<With>,
}

/// See `wit/feedback.wit` and `wit/handover.wit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum With {
    Feedback,
    Handover,
}

/// What a project is to be.
struct Project<'a> {
    name: &'a str,
    language: Language,
    kind: PolicyKind,
    /// Each once.
    beside: Vec<Beside>,
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
const RUST_SDK: [(&str, &str); 11] = [
    ("Cargo.toml", include_str!("../../../../plugins/sdk/Cargo.toml")),
    ("src/feedback.rs", include_str!("../../../../plugins/sdk/src/feedback.rs")),
    ("src/format.rs", include_str!("../../../../plugins/sdk/src/format.rs")),
    ("src/handover.rs", include_str!("../../../../plugins/sdk/src/handover.rs")),
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
        let rule = format!(
            "lower-case letters, digits and -, beginning with a letter and not ending with -, at most {MAX_NAME_BYTES}; {RUST_SDK_NAME} is taken"
        );
        return Err(UsageError(format!("`{name}` cannot be a policy's name; use {rule}")).into());
    }
    if directory.exists() {
        return Err(UsageError(format!("{} is there already; name a new directory", directory.display())).into());
    }
    let has = |with: With| args.with.contains(&with);
    let beside = [(With::Feedback, Beside::Feedback), (With::Handover, Beside::Handover)];
    let beside = beside.into_iter().filter(|(with, _)| has(*with)).map(|(_, beside)| beside).collect();
    for (path, bytes) in files(&Project { name, language: args.lang, kind: args.kind.into(), beside })? {
        write(&directory.join(path), &bytes)?;
    }
    say!("{}: a {} policy; build it with {}/build.sh", directory.display(), PolicyKind::from(args.kind), directory.display());
    Ok(())
}

fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name != RUST_SDK_NAME
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
fn files(project: &Project<'_>) -> Result<Vec<File>> {
    let Project { name, language, kind, beside } = project;
    let (title, path) = match language {
        Language::Rust => ("Rust", "src/lib.rs"),
        Language::Python => ("Python", "policy.py"),
        Language::Js => ("JavaScript", "policy.js"),
        Language::C => ("C", "policy.c"),
    };
    // Of the policy, in Rust.
    let type_name = match kind {
        PolicyKind::Precision => "CheapForBulk",
        PolicyKind::Route => "LeastWork",
        PolicyKind::Schedule => "Oldest",
    };
    let filled = |text: &str| {
        let kind = kind.to_string();
        let module = name.replace('-', "_");
        let pairs =
            [("name", *name), ("kind", &*kind), ("module", &*module), ("language", title), ("source", path), ("type", type_name)];
        let text = parts(text, beside);
        pairs.iter().fold(text, |text, (key, value)| text.replace(&format!("{{{{{key}}}}}"), value)).into_bytes()
    };
    // In Rust the SDK exports what is beside the decision, in worlds of its own.
    let in_world = if *language == Language::Rust { &[] } else { beside.as_slice() };
    let contract = contract::files_with(*kind, in_world).into_iter();
    let mut files: Vec<File> = contract.map(|(name, text)| (format!("wit/{name}"), text.into_bytes())).collect();
    files.push(("build.sh".to_owned(), filled(script(*language))));
    files.push(("README.md".to_owned(), filled(include_str!("templates/README.md.in"))));
    files.push((".gitignore".to_owned(), format!("/target\n/.tools\n__pycache__/\n/{name}.wasm\n").into_bytes()));
    files.push((path.to_owned(), filled(&policy(project))));
    match language {
        Language::Rust => {
            files.push(("Cargo.toml".to_owned(), filled(include_str!("templates/rust/Cargo.toml.in"))));
            files.extend(RUST_SDK.iter().map(|(path, text)| (format!("vendor/sdk/{path}"), text.as_bytes().to_vec())));
        }
        Language::Python => files.push(text("millrace.py", include_str!("../../../../plugins/python/millrace.py"))),
        Language::Js => files.push(text("millrace.js", include_str!("../../../../plugins/js/millrace.js"))),
        Language::C => {
            files.push(text("millrace.h", include_str!("../../../../plugins/c/millrace.h")));
            let bindings =
                contract::c_bindings(*kind, beside).map_err(|error| anyhow::anyhow!("the C bindings are not made: {error}"))?;
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

/// The policy to change. In C the lifecycle is the same for every kind, and in every language so is what comes beside the decision, with
/// what the policy learns of it.
fn policy(Project { language, kind, .. }: &Project<'_>) -> String {
    macro_rules! of_kind {
        ($folder:literal, $end:literal) => {
            match kind {
                PolicyKind::Precision => include_str!(concat!("templates/", $folder, "/precision.", $end)),
                PolicyKind::Route => include_str!(concat!("templates/", $folder, "/route.", $end)),
                PolicyKind::Schedule => include_str!(concat!("templates/", $folder, "/schedule.", $end)),
            }
        };
    }
    macro_rules! learnt {
        ($folder:literal, $end:literal) => {
            include_str!(concat!("templates/", $folder, "/learnt.", $end))
        };
    }
    macro_rules! beside {
        ($folder:literal, $end:literal) => {
            [
                "{{#feedback}}\n",
                include_str!(concat!("templates/", $folder, "/feedback.", $end)),
                "{{/feedback}}{{#handover}}\n",
                include_str!(concat!("templates/", $folder, "/handover.", $end)),
                "{{/handover}}",
            ]
            .concat()
        };
    }
    let (text, learnt) = match language {
        Language::Rust => ([of_kind!("rust", "rs"), &beside!("rust", "rs.in")].concat(), learnt!("rust", "rs.in")),
        Language::Python => ([of_kind!("python", "py"), &beside!("python", "py")].concat(), learnt!("python", "py")),
        Language::Js => ([of_kind!("js", "js"), &beside!("js", "js")].concat(), learnt!("js", "js")),
        Language::C => {
            let lifecycle = include_str!("templates/c/lifecycle.c");
            ([of_kind!("c", "c"), lifecycle, &beside!("c", "c")].concat(), learnt!("c", "c"))
        }
    };
    text.replace("{{learnt}}\n", learnt)
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

    const LANGUAGES: [Language; 4] = [Language::Rust, Language::Python, Language::Js, Language::C];
    const NOTHING: &[Beside] = &[];
    const ALL: [&[Beside]; 4] = [NOTHING, &[Beside::Feedback], &[Beside::Handover], &[Beside::Feedback, Beside::Handover]];

    fn project(language: Language, kind: PolicyKind, beside: &[Beside]) -> Vec<File> {
        files(&Project { name: "night-shift", language, kind, beside: beside.to_vec() }).expect("files")
    }

    fn text_of(files: &[File], path: &str) -> String {
        let file = files.iter().find(|(name, _)| name == path);
        String::from_utf8_lossy(&file.expect(path).1).into_owned()
    }

    fn source(language: Language) -> &'static str {
        match language {
            Language::Rust => "src/lib.rs",
            Language::Python => "policy.py",
            Language::Js => "policy.js",
            Language::C => "policy.c",
        }
    }

    fn each(mut check: impl FnMut(Language, PolicyKind, &[Beside])) {
        for language in LANGUAGES {
            for kind in PolicyKind::ALL {
                ALL.iter().for_each(|beside| check(language, kind, beside));
            }
        }
    }

    #[test]
    fn every_project_is_complete_and_filled_in() {
        each(|language, kind, beside| {
            let files = project(language, kind, beside);
            let paths: BTreeSet<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
            assert_eq!(paths.len(), files.len(), "{language:?} {kind}: a file twice");
            assert!(paths.contains("build.sh") && paths.contains("wit/worlds.wit"), "{paths:?}");
            for (path, bytes) in &files {
                let text = String::from_utf8_lossy(bytes);
                let marks = ["{{name", "{{kind", "{{m", "{{#", "{{/", "{{type"];
                assert!(marks.iter().all(|mark| !text.contains(mark)), "{language:?} {kind} {beside:?} {path}");
            }
            assert!(text_of(&files, "build.sh").contains("night-shift.wasm"));
        });
    }

    /// What a project exports beside its decision is in its world, or in Rust in the SDK's features, and in its source; nowhere else.
    #[test]
    fn a_project_has_what_it_was_asked_for_beside_its_decision() {
        each(|language, kind, beside| {
            let files = project(language, kind, beside);
            let (source, worlds) = (text_of(&files, source(language)), text_of(&files, "wit/worlds.wit"));
            let sdk = if language == Language::Rust { text_of(&files, "Cargo.toml") } else { worlds.clone() };
            for (interface, function) in [(Beside::Feedback, "observe("), (Beside::Handover, "restore(")] {
                let is_wanted = beside.contains(&interface);
                let what = format!("{language:?} {kind} {beside:?} {interface:?}");
                assert_eq!(source.contains(function), is_wanted, "{what}");
                assert_eq!(sdk.contains(interface.name()), is_wanted, "{what}");
            }
            assert_eq!(source.contains("learnt"), !beside.is_empty(), "{language:?} {kind} {beside:?}");
            // One world of the three has it.
            assert!(worlds.matches("export feedback;").count() <= 1 && worlds.matches("export lifecycle;").count() == 3);
            assert!(!source.contains("\n\n\n\n") && source.ends_with('\n') && !source.ends_with("\n\n"), "{source}");
        });
    }

    #[test]
    fn names_fit_every_language() {
        for good in ["a", "night-shift", "edf2"] {
            assert!(is_name(good), "{good}");
        }
        for bad in [RUST_SDK_NAME, "", "2a", "a_b", "A", "a-", "a b", "-a", "é", &"a".repeat(41)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
