//! Builds the test guests of `tests/guests/` from their text.
#![allow(dead_code, reason = "the example needs a part of it")]

use std::path::PathBuf;

use wit_component::StringEncoding;

/// How the text of a guest begins; other texts are parts of guests.
const WORLD: &str = ";; world: ";

/// The repository's directory `tests/guests`.
pub(crate) fn directory() -> PathBuf {
    repository().join("tests/guests")
}

pub(crate) fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names of all guests, sorted.
pub(crate) fn names() -> Vec<String> {
    let files = std::fs::read_dir(directory()).expect("tests/guests").map(|entry| entry.expect("entry").path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|e| e == "wat"))
        .filter(|path| std::fs::read_to_string(path).expect("text").starts_with(WORLD))
        .map(|path| path.file_stem().expect("name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A guest as a component.
pub(crate) fn component(name: &str) -> Vec<u8> {
    millrace_policy_wasm::componentize(&core(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A guest as a core module with component types.
pub(crate) fn core(name: &str) -> Vec<u8> {
    let text = text(name);
    let world = text.lines().next().and_then(|line| line.strip_prefix(WORLD)).expect("a world in the first line");
    core_of(&text, world)
}

/// The whole text of a guest.
pub(crate) fn text(name: &str) -> String {
    let read = |name: &str| std::fs::read_to_string(directory().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let text = read(&format!("{name}.wat"));
    text.replace(";; {lifecycle}", &read("lifecycle.wat")).replace(";; {in-order}", &read("in-order.wat"))
}

/// A core module of a text, with the component types of a world, `schedule-policy`, or of one with optional interfaces beside it,
/// `schedule-policy feedback`.
pub(crate) fn core_of(text: &str, world: &str) -> Vec<u8> {
    let mut module = wat::parse_str(text).unwrap_or_else(|error| panic!("{error}"));
    let mut resolve = wit_parser::Resolve::default();
    let (mut package, _) = resolve.push_dir(repository().join("wit")).expect("wit/");
    let mut words = world.split_whitespace();
    let (mut world, optional) = (words.next().expect("a world"), words.collect::<Vec<_>>());
    if !optional.is_empty() {
        let exports: String = optional.iter().map(|name| format!("export millrace:policy/{name}@0.1.0;")).collect();
        let text = format!("package test:guest; world guest {{ include millrace:policy/{world}@0.1.0; {exports} }}");
        package = resolve.push_str("guest.wit", &text).expect("a world of its own");
        world = "guest";
    }
    let world = resolve.select_world(&[package], Some(world)).expect("the world");
    wit_component::embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).expect("component types");
    module
}
