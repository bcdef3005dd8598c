//! Lines, paths and what a section reports of one table.

use toml::de::DeTable;

use super::*;
use crate::defaults::Bounded;

const BOUNDS: Bounded = Bounded { default: 7, min: 1, max: 10 };

/// Walks `text` with `walk` and gives the errors as (line, path, kind).
fn errors_of(text: &str, walk: impl FnOnce(&mut Section<'_, '_>)) -> Vec<(Option<u32>, String, ErrorKind)> {
    let root = DeTable::parse(text).unwrap();
    let mut reader = Reader::new(text);
    walk(&mut reader.root(root.get_ref()));
    reader.into_errors().into_iter().map(|error| (error.line, error.path, error.kind)).collect()
}

#[test]
fn lines_count_from_one_and_point_at_the_key() {
    let text = "\n\na = 1\n[t]\nb = 2\n[t.u]\nc = 3";
    let errors = errors_of(text, |root| {
        let mut t = root.section("t");
        let mut u = t.section("u");
        u.error_here(ErrorKind::Conflict, String::new(), "");
        u.finish();
        t.finish();
        root.finish();
    });
    let expected = [
        (Some(6), "t.u", ErrorKind::Conflict),
        (Some(7), "t.u.c", ErrorKind::UnknownKey),
        (Some(5), "t.b", ErrorKind::UnknownKey),
        (Some(3), "a", ErrorKind::UnknownKey),
    ];
    assert_eq!(errors, expected.map(|(line, path, kind)| (line, path.to_owned(), kind)));
}

#[test]
fn numbers_keep_to_their_range_and_type() {
    for (value, expected, wrong) in [
        ("1", 1, false),
        ("10", 10, false),
        ("0xA", 10, false),
        ("0", 7, true),
        ("11", 7, true),
        ("-1", 7, true),
        ("99999999999999999999999999999999999999999999", 7, true),
        ("2.0", 7, true),
        ("\"2\"", 7, true),
        ("[2]", 7, true),
    ] {
        let errors = errors_of(&format!("n = {value}"), |root| assert_eq!(root.number("n", BOUNDS), expected, "{value}"));
        assert_eq!(!errors.is_empty(), wrong, "{value}: {errors:?}");
    }
}

#[test]
fn a_missing_section_gives_defaults_and_no_errors() {
    let errors = errors_of("", |root| {
        let mut section = root.section("t");
        assert_eq!(section.number("n", BOUNDS), 7);
        assert!(section.flag("f", true));
        assert_eq!(section.text("s", "x"), None);
        assert_eq!(section.json("j"), "{}");
        assert!(section.finish());
    });
    assert!(errors.is_empty());
}

#[test]
fn odd_keys_and_values_are_shown_on_one_short_line() {
    assert_eq!(key_text("a b"), "\"a b\"");
    assert_eq!(key_text("plain-key_1"), "plain-key_1");
    assert_eq!(key_text(""), "\"\"");
    assert_eq!(shown("a\nb\u{1b}[31m"), "`a\\nb\\u{1b}[31m`");
    assert!(shown(&"x".repeat(1000)).len() < 70);
}

#[test]
fn names_keep_the_order_of_the_text() {
    let text = "[p.zeta]\n[p.alpha]\n[p.'no name']\n[p]\nmid = 3\n";
    let mut names = Vec::new();
    let errors = errors_of(text, |root| names = root.named("p").into_iter().map(|named| named.name).collect());
    assert_eq!(names, ["zeta", "alpha", "no name", "mid"]);
    let kinds: Vec<ErrorKind> = errors.iter().map(|(_, _, kind)| *kind).collect();
    assert!(kinds.contains(&ErrorKind::WrongType) && kinds.contains(&ErrorKind::Impossible), "{errors:?}");
}
