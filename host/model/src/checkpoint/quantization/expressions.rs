//! Regular expressions of quantization configs, which are written for Python. Three kinds: those that both languages read, those
//! that only Python does (look-around, back references and a few spellings), and those that are none. Knows no lists.
//!
//! Sources: Python 3.11, library reference, `re`; regex-syntax 0.8, `ast::ErrorKind`.

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ast::{self, ErrorKind};

/// Memory that one compiled expression may take, and again its tables while it runs.
const MAX_BYTES: usize = 1 << 18;

/// What came of an expression.
pub(super) enum Expression {
    Compiled(Regex),
    /// Python knows it, this program does not: it decides nothing.
    OnlyPython,
}

/// Compiles `expression` followed by `end`, anchored at the start.
///
/// # Errors
/// Why it is no expression in either language, or too large.
pub(super) fn compile(expression: &str, end: &str) -> Result<Expression, String> {
    // By itself first: in the brackets below, `a)|(b` would be one.
    if let Err(error) = ast::parse::Parser::new().parse(expression) {
        if is_python(&error) {
            return Ok(Expression::OnlyPython);
        }
        return Err(format!("is no regular expression: {}", error.kind()));
    }
    // Module names are ASCII; tables of Unicode classes would only take memory.
    let built = RegexBuilder::new(&format!("^(?:{expression}){end}"))
        .unicode(false)
        .size_limit(MAX_BYTES)
        .dfa_size_limit(MAX_BYTES)
        .build();
    match built {
        Ok(regex) => Ok(Expression::Compiled(regex)),
        Err(regex::Error::CompiledTooBig(limit)) => Err(format!("is an expression of more than {limit} bytes compiled")),
        Err(_) if expression.contains(r"\p") || expression.contains(r"\P") => {
            Err(r"is no regular expression: `\p` does not exist in Python".to_owned())
        }
        // Letters beyond ASCII in a class, a comment that reaches to the end.
        Err(_) => Ok(Expression::OnlyPython),
    }
}

/// Whether what this program's dialect refuses is right in Python's.
fn is_python(error: &ast::Error) -> bool {
    let (from, to) = (error.span().start.offset, error.span().end.offset);
    let text = error.pattern();
    let (wrong, rest) = (text.get(from..to).unwrap_or_default(), text.get(from..).unwrap_or_default());
    match error.kind() {
        ErrorKind::UnsupportedLookAround | ErrorKind::UnsupportedBackreference | ErrorKind::FlagDuplicate { .. } => true,
        // `(?#comment)`, `(?(1)yes|no)`, `(?>atomic)`, `(?P=name)`; flags that Rust has not: a, L, u.
        ErrorKind::FlagUnrecognized => ["#", "(", ">", "P=", "a", "L", "u"].iter().any(|start| rest.starts_with(start)),
        ErrorKind::EscapeUnrecognized => matches!(wrong, r"\Z" | r"\N"),
        // Backspace.
        ErrorKind::ClassEscapeInvalid => wrong == r"\b",
        // Braces that count nothing stand for themselves in Python.
        ErrorKind::RepetitionCountUnclosed | ErrorKind::RepetitionCountDecimalEmpty => true,
        ErrorKind::RepetitionMissing => rest.starts_with('{'),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Python 3.11 compiles `read` and `only`, and refuses `none`.
    #[test]
    fn every_kind_of_expression() {
        let read = [r"mlp\.(gate|up)_proj", "", "[[:alpha:]]", r"a{2,3}", r"(?P<n>x)y", "(?i)Q_proj", "x{2}?", r"[\d-]", r"\-_"];
        let only = [
            "(?!.*experts).*",
            "(?<=a)b",
            r"(a)\1",
            "(?P<n>x)(?P=n)",
            "(?#note)a",
            "(a)?(?(1)b|c)",
            "(?>a)b",
            "(?a)b",
            r"proj\Z",
            r"[\b]",
            "a{",
            "a{x}",
            "{a}",
            "[é]",
            "(?ii)a",
        ];
        let none = [
            "[",
            "[a",
            "(",
            "a)",
            "a)|(b",
            "*a",
            "a|*",
            "a{3,2}",
            "[z-a]",
            r"a\",
            "(?P<1>a)",
            "(?P<n>a)(?P<n>b)",
            "(?z)a",
            r"\q",
            r"\p{L}",
            "(?",
            r"\xg1",
        ];
        for expression in read {
            assert!(matches!(compile(expression, ""), Ok(Expression::Compiled(_))), "{expression}");
        }
        for expression in only {
            assert!(matches!(compile(expression, ""), Ok(Expression::OnlyPython)), "{expression}");
        }
        for expression in none {
            let why = compile(expression, "").err().unwrap_or_else(|| panic!("{expression} was read"));
            assert!(why.starts_with("is no regular expression: "), "{expression}: {why}");
        }
        let why = compile("(a{1000}){1000}", "").err().unwrap();
        assert!(why.contains("bytes compiled"), "{why}");
    }

    #[test]
    fn an_expression_starts_where_the_name_does() {
        let Ok(Expression::Compiled(regex)) = compile("b|c", r"(?:\.|$)") else { panic!("it is one") };
        for (name, wanted) in [("b.x", true), ("c", true), ("ab", false), ("bc", false)] {
            assert_eq!(regex.is_match(name.as_bytes()), wanted, "{name}");
        }
    }
}
