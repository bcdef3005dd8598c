//! Functions: their length, their parameters. Finds them in Rust text without comments and strings by matching brackets; macros are
//! read as if they were code.

use crate::expect_none;
use crate::lexer::{is_word, line_of, occurrences};
use crate::repo::{Source, sources};

const MAX_LINES: usize = 70;
const MAX_PARAMETERS: usize = 5;

/// (file, function, why it may be longer). An entry that is no longer needed is an error too.
const LONGER: &[(&str, &str, &str)] = &[];

/// One function with a body.
struct Function {
    name: String,
    line: usize,
    lines: usize,
    /// `pub`, not `pub(crate)`.
    public: bool,
    /// Types, `self` left out.
    parameters: Vec<String>,
}

fn functions(code: &str) -> Vec<Function> {
    occurrences(code, "fn").into_iter().filter_map(|at| function(code, at)).collect()
}

/// `None` for `fn(..)` types and macros' `fn $name`.
fn function(code: &str, at: usize) -> Option<Function> {
    let bytes = code.as_bytes();
    let name_start = at + 2 + code[at + 2..].bytes().take_while(u8::is_ascii_whitespace).count();
    let name: String = code[name_start..].bytes().take_while(|&byte| is_word(byte)).map(char::from).collect();
    if name.is_empty() || name_start == at + 2 {
        return None;
    }
    let open = parameters_open(bytes, name_start + name.len())?;
    let close = matching(bytes, open)?;
    let body_end = match body_start(bytes, close + 1) {
        Some(start) => matching(bytes, start)?,
        None => close,
    };
    let line = line_of(code, at);
    let mut parameters: Vec<String> = split(&code[open + 1..close]).iter().map(|parameter| parameter.trim().to_owned()).collect();
    parameters.retain(|parameter| !parameter.is_empty() && !is_self(parameter));
    let types = parameters.iter().map(|parameter| type_of(parameter)).collect();
    let before = code[..at].trim_end_matches(|c: char| c.is_whitespace());
    let public = ["pub", "pub const", "pub async", "pub unsafe", "pub const unsafe"].iter().any(|words| before.ends_with(words));
    Some(Function { name, line, lines: line_of(code, body_end) - line + 1, public, parameters: types })
}

/// The `(` after a name and its generics, whose bounds may hold brackets of their own.
fn parameters_open(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut angles = 0i32;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'(' if angles == 0 => return Some(at),
            b'<' => angles += 1,
            b'>' if bytes[at - 1] != b'-' => angles -= 1,
            b'(' | b'[' | b'{' => at = matching(bytes, at)?,
            b';' => return None,
            _ => {}
        }
        at += 1;
    }
    None
}

/// The `{` of the body, after return type and where clause; `None` where a `;` ends the declaration.
fn body_start(bytes: &[u8], mut at: usize) -> Option<usize> {
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'{' => return Some(at),
            b';' | b'}' => return None,
            b'(' | b'[' => at = matching(bytes, at)?,
            _ => {}
        }
        at += 1;
    }
    None
}

/// The bracket that closes the one at `open`.
fn matching(bytes: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (index, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(index);
        }
    }
    None
}

/// Splits at commas outside of brackets of any kind.
fn split(parameters: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0i32;
    let mut before = ' ';
    for c in parameters.chars() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' && before != '=' => depth -= 1,
            _ => {}
        }
        match (c, depth) {
            (',', 0) => parts.push(String::new()),
            _ => parts.last_mut().expect("there is always one").push(c),
        }
        before = c;
    }
    parts
}

fn is_self(parameter: &str) -> bool {
    let name = parameter.split(':').next().unwrap_or_default();
    name.split(|c: char| !is_word(c as u8)).any(|word| word == "self")
}

/// What follows the first single colon.
fn type_of(parameter: &str) -> String {
    parameter.split_once(':').map_or("", |(_, kind)| kind).trim().to_owned()
}

fn each(mut check: impl FnMut(&Source, &Function) -> Option<String>) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources() {
        for function in functions(&source.code) {
            let found = check(source, &function);
            violations.extend(found.map(|what| format!("{}:{}: fn {} {what}", source.path, function.line, function.name)));
        }
    }
    violations
}

#[test]
fn functions_fit_a_screen() {
    let mut needed = Vec::new();
    let violations = each(|source, function| {
        let excused = LONGER.iter().find(|(path, name, _)| *path == source.path && *name == function.name);
        let long = function.lines > MAX_LINES;
        match excused {
            Some(entry) if long => {
                needed.push(*entry);
                None
            }
            _ => long.then(|| format!("has {} lines", function.lines)),
        }
    });
    expect_none("functions have at most 70 lines", &violations);
    let stale: Vec<String> = LONGER.iter().filter(|entry| !needed.contains(entry)).map(|entry| format!("{entry:?}")).collect();
    expect_none("excuses are needed", &stale);
}

#[test]
fn functions_have_few_parameters() {
    let violations = each(|_, function| {
        (function.parameters.len() > MAX_PARAMETERS).then(|| format!("has {} parameters", function.parameters.len()))
    });
    expect_none("functions have at most 5 parameters; a struct with named fields takes more", &violations);
}

#[test]
fn public_functions_take_no_bool() {
    let violations = each(|source, function| {
        let is_host = source.path.starts_with("host/") && source.path.contains("/src/");
        let takes_bool = function.parameters.iter().any(|kind| kind == "bool");
        (is_host && function.public && takes_bool).then(|| "takes a bool".to_owned())
    });
    expect_none("public functions of the host take no bool: split the function or name the cases in an enum", &violations);
}

#[test]
fn functions_are_found_with_their_parameters() {
    let code = "\
impl<T: Fn(u8) -> u8> X<T> {
    pub fn one<'a, F: FnOnce(&str) -> bool>(&'a mut self, f: F, xs: [u8; 4], map: BTreeMap<u8, (u8, bool)>) -> [u8; 2]
    where
        F: Send,
    {
        let call: fn(bool) -> u8 = g;
    }
    fn none();
    pub(crate) fn two(mut self: Box<Self>, on: bool) { }
    pub const fn three(on: bool, ) {}
}
";
    let found = functions(code);
    let names: Vec<&str> = found.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["one", "none", "two", "three"]);
    assert_eq!(found[0].parameters, ["F", "[u8; 4]", "BTreeMap<u8, (u8, bool)>"]);
    assert_eq!((found[0].line, found[0].lines, found[0].public), (2, 6, true));
    assert_eq!((found[2].parameters.as_slice(), found[2].public), (["bool".to_owned()].as_slice(), false));
    assert_eq!((found[3].parameters.as_slice(), found[3].public), (["bool".to_owned()].as_slice(), true));
    let long = format!("fn long() {{\n{}}}\n", "x();\n".repeat(70));
    assert_eq!(functions(&long)[0].lines, 72);
}
