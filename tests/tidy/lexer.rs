//! Rust text without its comments and the contents of its literals, so that a search finds code alone. Follows the Rust
//! Reference, chapters on comments and on literals; knows no grammar beyond them.

/// The same length in bytes and the same lines; what is no code is spaces.
pub(crate) fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match skipped(bytes, at) {
            Some(end) => {
                blank(&mut code[at..end]);
                end
            }
            None => at + 1,
        };
        at = end;
    }
    String::from_utf8(code).expect("whole characters were replaced")
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

/// The end of the comment or literal that starts at `at`, if one does.
fn skipped(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return Some(find(bytes, at, b"\n").unwrap_or(bytes.len()));
    }
    if rest.starts_with(b"/*") {
        return Some(block_comment_end(bytes, at));
    }
    match rest[0] {
        b'"' => Some(string_end(bytes, at + 1)),
        b'\'' => char_end(bytes, at),
        b'r' | b'b' | b'c' if !follows_word(bytes, at) => prefixed_end(bytes, at),
        _ => None,
    }
}

/// Block comments nest.
fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0usize);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// After the closing quote; `at` is after the opening one.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `'x'` and `'\n'` are characters; `'a` without a closing quote after one character is a lifetime.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        return find(bytes, at + 3, b"'").map(|end| end + 1);
    }
    let length = bytes.get(at + 1).map(|&first| match first {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    })?;
    (bytes.get(at + 1 + length) == Some(&b'\'')).then_some(at + length + 2)
}

/// `r"..`, `r#"..`, `b"..`, `br"..`, `b'x'`, `c"..`; `None` for `r#name` and plain words.
fn prefixed_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut quote = at + 1;
    if bytes[at] != b'r' && bytes.get(quote) == Some(&b'r') {
        quote += 1;
    }
    let raw = bytes[quote - 1] == b'r';
    let hashes = bytes[quote..].iter().take_while(|&&byte| byte == b'#').count();
    match bytes.get(quote + hashes) {
        Some(b'"') if raw => {
            let mut close = vec![b'"'];
            close.resize(1 + hashes, b'#');
            Some(find(bytes, quote + hashes + 1, &close).map_or(bytes.len(), |end| end + close.len()))
        }
        Some(b'"') if hashes == 0 => Some(string_end(bytes, quote + 1)),
        Some(b'\'') if hashes == 0 && bytes[at] == b'b' => char_end(bytes, quote),
        _ => None,
    }
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_word(bytes[at - 1])
}

/// Whether a byte can be part of a name.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn find(bytes: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    let rest = bytes.get(from..)?;
    rest.windows(wanted.len()).position(|window| window == wanted).map(|index| from + index)
}

/// Whether `wanted` occurs in `code` at `at` as whole words.
fn is_whole(code: &str, at: usize, wanted: &str) -> bool {
    let before = at.checked_sub(1).and_then(|before| code.as_bytes().get(before));
    let after = code.as_bytes().get(at + wanted.len());
    let first_is_word = wanted.bytes().next().is_some_and(is_word);
    let last_is_word = wanted.bytes().last().is_some_and(is_word);
    !(first_is_word && before.is_some_and(|&byte| is_word(byte)) || last_is_word && after.is_some_and(|&byte| is_word(byte)))
}

/// Byte offsets of whole-word occurrences.
pub(crate) fn occurrences(code: &str, wanted: &str) -> Vec<usize> {
    code.match_indices(wanted).map(|(at, _)| at).filter(|&at| is_whole(code, at, wanted)).collect()
}

/// Line of a byte offset, from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count() + 1
}

#[test]
fn only_code_is_left() {
    for (text, expected) in [
        ("a // b\nc", "a c"),
        ("a /* b /* c */ d */ e", "a e"),
        ("f(\"x\\\"y\", 'z')", "f( , )"),
        ("let c = '\\''; d", "let c = ; d"),
        ("let c = '\\u{1f}'; d", "let c = ; d"),
        ("let c = 'é'; d", "let c = ; d"),
        ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
        ("r\"a\\\" b", "b"),
        ("r#\"a\" b\"# c", "c"),
        ("br##\"a\"# b\"## c", "c"),
        ("b'x' b\"y\" c\"z\" r#fn cr\"q\" e", "r#fn e"),
        ("number\"x\"", "number"),
        ("/// doc { \ncode", "code"),
        ("\"two\nlines\" x", "x"),
        ("\"open", ""),
    ] {
        let code = code_of(text);
        assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{text}");
        assert_eq!((code.len(), code.lines().count()), (text.len(), text.lines().count()), "{text}");
    }
}

#[test]
fn words_are_found_whole() {
    assert_eq!(occurrences("unsafe_code unsafe { not_unsafe }", "unsafe"), [12]);
    assert_eq!(occurrences("dbg!(x) mydbg!(y)", "dbg!"), [0]);
    assert_eq!(line_of("a\nb\nc", 4), 3);
}
