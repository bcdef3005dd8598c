//! What must agree: column kinds in the WIT, the host and the SDK; the package's version; committed guests with their text.

mod support;

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use support::guests;

fn read(path: &str) -> String {
    std::fs::read_to_string(guests::repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `pub const NAME: u32 = 1;` as name in WIT spelling and number.
fn constants(source: &str) -> BTreeMap<u32, String> {
    let lines = source.lines().filter_map(|line| line.trim().strip_prefix("pub const "));
    lines
        .filter_map(|line| {
            let (name, rest) = line.split_once(": u32 = ")?;
            Some((rest.strip_suffix(';')?.parse().ok()?, name.to_lowercase().replace('_', "-")))
        })
        .collect()
}

/// Number and name of every row of the table of the WIT that has this heading.
fn wit_table(heading: &str) -> BTreeMap<u32, String> {
    let text = read("wit/column-kinds.wit");
    let rows = text.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    let cells = rows.map_while(|line| line.strip_prefix("/// |")).map(|line| line.split('|').map(str::trim));
    cells.filter_map(|mut cells| Some((cells.next()?.parse().ok()?, cells.next()?.to_owned()))).collect()
}

/// Names before numbers, between a line that ends with `from` and the next one that begins with `}` or is empty.
fn named(path: &str, from: &str, before: &str, between: &str) -> BTreeMap<u32, String> {
    let text = read(path);
    let lines = text.lines().skip_while(|line| !line.ends_with(from)).skip(1);
    let lines = lines.skip_while(|line| line.trim_start().starts_with(['"', '/']) || line.is_empty());
    let is_end = |line: &str| line.starts_with('}') || (line.is_empty() && path.ends_with(".py"));
    let lines = lines.take_while(|line| !is_end(line));
    let pairs = lines.filter_map(|line| line.trim().strip_prefix(before)?.trim_end_matches(',').split_once(between));
    pairs.filter_map(|(name, number)| Some((number.parse().ok()?, name.to_lowercase().replace('_', "-")))).collect()
}

#[test]
fn column_kinds_are_the_same_in_wit_host_and_sdk() {
    let wit = wit_table("/// | kind |");
    let host = read("host/policy/src/table.rs");
    let host = constants(&host[host.find("pub mod kind").expect("the kinds")..]);
    let sdk = constants(&read("plugins/sdk/src/kind.rs"));
    assert_eq!(named("plugins/python/millrace.py", "class kind:", "", " = "), wit);
    assert_eq!(named("plugins/js/millrace.js", "kind = Object.freeze({", "", ": "), wit);
    let c = "// Column kinds, one number for ever.";
    assert_eq!(named("plugins/c/millrace.h", c, "MILLRACE_", " = "), wit);
    assert!(wit.len() > 30, "{wit:?}");
    // What stands for no value, in each language's words.
    for (path, absent) in [
        ("wit/column-kinds.wit", "`0xffffffff` is absent"),
        ("host/policy/src/table.rs", "filter(|&v| v != u32::MAX)"),
        ("plugins/sdk/src/table.rs", "u32::MAX"),
        ("plugins/python/millrace.py", "ABSENT = 0xFFFFFFFF\n"),
        ("plugins/js/millrace.js", "ABSENT = 0xffffffff;\n"),
        ("plugins/c/millrace.h", "MILLRACE_ABSENT UINT32_MAX\n"),
    ] {
        assert!(read(path).contains(absent), "{path} knows another absent value than `{absent}`");
    }
    // Host names carry units in words where the WIT does.
    assert_eq!(host, wit);
    assert_eq!(sdk, wit);
}

/// `0 => Self::Fp8E4m3,` as name in WIT spelling and number.
fn variants(source: &str) -> BTreeMap<u32, String> {
    let arms = source.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(" => Self::"));
    let kebab = |name: &str| -> String {
        let words = name.chars().map(|c| if c.is_uppercase() { format!("-{}", c.to_lowercase()) } else { c.to_string() });
        words.collect::<String>().trim_start_matches('-').to_owned()
    };
    arms.filter_map(|(number, name)| Some((number.parse().ok()?, kebab(name)))).collect()
}

#[test]
fn formats_are_the_same_in_wit_host_and_sdk() {
    let wit = wit_table("/// | format |");
    assert_eq!(wit.len(), 6, "{wit:?}");
    assert_eq!(constants(&read("host/policy/src/format.rs")), wit);
    assert_eq!(variants(&read("plugins/sdk/src/format.rs")), wit);
    assert_eq!(named("plugins/python/millrace.py", "class formats:", "", " = "), wit);
    assert_eq!(named("plugins/js/millrace.js", "formats = Object.freeze({", "", ": "), wit);
    let c = "// Values of the kinds that name a format, one number for ever; more may come.";
    assert_eq!(named("plugins/c/millrace.h", c, "MILLRACE_FORMAT_", " = "), wit);
}

#[test]
fn committed_guests_are_those_of_their_text() {
    let dist = guests::directory().join("dist");
    let names = guests::names();
    for name in &names {
        let committed = std::fs::read(dist.join(format!("{name}.wasm"))).unwrap_or_default();
        assert!(
            committed == guests::component(name),
            "tests/guests/dist/{name}.wasm is stale; run: cargo run -p millrace-policy-wasm --example guests"
        );
    }
    let mut committed: Vec<String> = std::fs::read_dir(dist)
        .expect("tests/guests/dist")
        .map(|entry| entry.expect("entry").path().file_stem().expect("name").to_string_lossy().into_owned())
        .collect();
    committed.sort();
    assert_eq!(committed, names);
}

#[test]
fn every_guest_is_described() {
    let readme = read("tests/guests/README.md");
    for name in guests::names() {
        assert!(readme.contains(&format!("| {name} |")), "{name} is missing in tests/guests/README.md");
    }
}

#[test]
fn every_interface_file_has_its_documentation() {
    let wit = guests::repository().join("wit");
    let mut count = 0;
    for entry in std::fs::read_dir(wit).expect("wit/") {
        let path = entry.expect("entry").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let mut documented = false;
        for line in text.lines().map(str::trim) {
            let declares =
                line.ends_with('{') || (line.ends_with([',', ';']) && line.contains(": ")) || line.starts_with("hold(");
            let exempt = line.starts_with("world ")
                || line.starts_with("variant ")
                || line.starts_with("enum ")
                || line.starts_with("///");
            assert!(
                !declares || documented || exempt || line.starts_with("decide:"),
                "{}: `{line}` has no doc comment",
                path.display()
            );
            documented = line.starts_with("///");
        }
        count += 1;
    }
    assert!(count >= 14, "{count} files");
}

/// A change to the contract is told: `CHANGELOG.md` carries the digest of `wit/` as it stands.
#[test]
fn the_changelog_knows_the_contract_as_it_stands() {
    let mut digest = Sha256::new();
    for (name, text) in millrace_policy_wasm::contract::FILES {
        digest.update(name.as_bytes());
        digest.update([0]);
        digest.update(text.as_bytes());
        digest.update([0]);
    }
    let hex: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let changelog = read("CHANGELOG.md");
    let line = changelog.lines().find(|line| line.contains("`millrace:policy@0.1.0`") && line.contains(&hex));
    assert!(
        line.is_some(),
        "wit/ changed: say what and why in CHANGELOG.md, in a line that names `millrace:policy@0.1.0` and the digest {hex}; \
         records, variants, enums and exported interfaces never change within 0.1 (see wit/types.wit)"
    );
}

/// What a project fetches has a version: it builds tomorrow as it does today.
#[test]
fn toolchains_of_new_projects_are_pinned() {
    for language in ["c", "js", "python", "rust"] {
        let path = format!("host/cli/src/policy/templates/{language}/build.sh");
        for line in read(&path).lines().filter(|line| line.contains("pip\" install") || line.contains("npm install")) {
            let package = line.split_whitespace().last().expect("a package");
            let version = package.split_once("==").or_else(|| package.rsplit_once('@')).map(|(_, version)| version);
            assert!(version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit())), "{path}: {line}");
        }
    }
}
