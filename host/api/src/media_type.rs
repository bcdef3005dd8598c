//! What a `Content-Type` says: whether it is JSON, and which charset it names (RFC 9110, 8.3.1). Knows no body.

/// What the parameters say of the charset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charset {
    Unsaid,
    Utf8,
    /// Another one, at least once.
    Other,
}

/// Whether the type is JSON's or one built on it.
pub(crate) fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json")
}

/// JSON between systems is UTF-8 (RFC 8259, 8.1), whatever other parameters there are.
pub(crate) fn charset(kind: &str) -> Charset {
    let mut said = Charset::Unsaid;
    for parameter in parameters(kind) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if !name.trim().eq_ignore_ascii_case("charset") {
            continue;
        }
        if !unquoted(value.trim()).eq_ignore_ascii_case("utf-8") {
            return Charset::Other;
        }
        said = Charset::Utf8;
    }
    said
}

/// The pieces behind the first semicolon. One within quotes separates nothing.
fn parameters(kind: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    let separates = move |c: char| {
        let inside = quoted;
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        c == ';' && !inside
    };
    kind.split(separates).skip(1)
}

fn unquoted(value: &str) -> String {
    let Some(inside) = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return value.to_owned() };
    let mut escaped = false;
    // A backslash stands for the character behind it.
    inside
        .chars()
        .filter(|c| {
            escaped = *c == '\\' && !escaped;
            !escaped
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_known_by_its_essence() {
        for kind in ["application/json", "Application/JSON ; charset=utf-8", "application/problem+json", "application/json;"] {
            assert!(is_json(kind), "{kind}");
        }
        for kind in ["", "text/plain", "text/plain; application/json", "application/jsonl", "json"] {
            assert!(!is_json(kind), "{kind}");
        }
    }

    #[test]
    fn a_charset_is_utf_8_or_another() {
        for (parameters, said) in [
            ("", Charset::Unsaid),
            (";", Charset::Unsaid),
            ("; version=1", Charset::Unsaid),
            (";profile=\"a; charset=latin1\"", Charset::Unsaid),
            (";profile=\"a\\\"; charset=latin1\"", Charset::Unsaid),
            ("; charset=utf-8", Charset::Utf8),
            (";charset=UTF-8;", Charset::Utf8),
            ("; Charset=\"Utf-8\"", Charset::Utf8),
            ("; charset=\"\\utf\\-8\"; q=1", Charset::Utf8),
            ("; a=\"\\\\\"; charset=utf-8", Charset::Utf8),
            ("; charset=utf-8; charset=utf-8", Charset::Utf8),
            ("; charset=latin1", Charset::Other),
            ("; charset=utf-16", Charset::Other),
            ("; charset=utf-8; charset=latin1", Charset::Other),
            ("; a=\"b\"; charset=iso-8859-1", Charset::Other),
            ("; charset=\"utf-8", Charset::Other),
            ("; charset=", Charset::Other),
            ("; charset", Charset::Other),
        ] {
            assert_eq!(charset(&format!("application/json{parameters}")), said, "{parameters}");
        }
    }
}
