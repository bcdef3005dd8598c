//! Words that do not stay: notes to oneself, debugging leftovers, names that say nothing, paths of one machine.

use crate::expect_none;
use crate::lexer::{is_word, line_of, occurrences};
use crate::repo::{files, sources, text};

/// Split, so that this file does not break its own rule.
const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const LEFTOVERS: [&str; 5] = ["dbg!", "todo!", "unimplemented!", "#[ignore", "#[should_panic"];
const HOLLOW: [&str; 6] = ["manager", "managers", "util", "utils", "helper", "helpers"];
const MACHINE_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

#[test]
fn no_notes_to_oneself() {
    let mut violations = Vec::new();
    for file in files() {
        let Some(text) = text(file) else { continue };
        for note in NOTES {
            let lines = occurrences(text, note).into_iter().map(|at| line_of(text, at));
            violations.extend(lines.map(|line| format!("{}:{line}: {note}", file.path)));
        }
    }
    expect_none("what is to be done is an issue, not a note in the text", &violations);
}

#[test]
fn no_leftovers() {
    let mut violations = Vec::new();
    for source in sources() {
        for word in LEFTOVERS {
            let lines = occurrences(&source.code, word).into_iter().map(|at| line_of(&source.code, at));
            violations.extend(lines.map(|line| format!("{}:{line}: {word}", source.path)));
        }
    }
    expect_none("no debugging output, no ignored tests", &violations);
}

#[test]
fn names_say_what_a_thing_is() {
    let mut violations = Vec::new();
    for source in sources() {
        for (at, name) in declared(&source.code) {
            if is_hollow(&name) {
                violations.push(format!("{}:{}: {name}", source.path, line_of(&source.code, at)));
            }
        }
    }
    let hollow = |part: &str| is_hollow(part.split('.').next().unwrap_or_default());
    violations.extend(files().iter().map(|file| &file.path).filter(|path| path.split('/').any(hollow)).cloned());
    expect_none("no name is a manager, util or helper", &violations);
}

/// Names after the words that declare one.
fn declared(code: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for keyword in ["struct", "enum", "union", "trait", "type", "fn", "mod", "const", "static"] {
        for at in occurrences(code, keyword) {
            let rest = code[at + keyword.len()..].trim_start();
            let name: String = rest.bytes().take_while(|&byte| is_word(byte)).map(char::from).collect();
            names.push((at, name));
        }
    }
    names
}

/// `PageManager`, `page_manager` and `page-manager` all are; `Utilization` is not.
fn is_hollow(name: &str) -> bool {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c.is_uppercase() || !c.is_alphanumeric() {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().expect("there is always one").extend(c.to_lowercase());
        }
    }
    words.iter().any(|word| HOLLOW.contains(&word.as_str()))
}

#[test]
fn no_path_of_one_machine() {
    let mut violations = Vec::new();
    for file in files() {
        let Some(text) = text(file) else { continue };
        for path in MACHINE_PATHS {
            let absolute = text.match_indices(path).filter(|(at, _)| {
                let before = text[..*at].chars().next_back().unwrap_or(' ');
                !(before.is_alphanumeric() || "._-~*}$".contains(before))
            });
            violations.extend(absolute.map(|(at, _)| format!("{}:{}: {path}", file.path, line_of(text, at))));
        }
    }
    expect_none("no absolute path of one machine", &violations);
}

#[test]
fn hollow_names_are_told_from_others() {
    for name in ["PageManager", "StringUtils", "helper", "my_util_x", "io-helpers"] {
        assert!(is_hollow(name), "{name}");
    }
    for name in ["Utilization", "hyperutility", "managed", "Pages", ""] {
        assert!(!is_hollow(name), "{name}");
    }
    let found: Vec<String> = declared("pub struct Page; fn run() {} impl X {}").into_iter().map(|(_, name)| name).collect();
    assert_eq!(found, ["Page", "run"]);
}
