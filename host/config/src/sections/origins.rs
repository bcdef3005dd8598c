//! `allowed_origins`: sites whose pages may send requests. Knows what an origin is as browsers write it (RFC 6454, 6.2).

use crate::ErrorKind;
use crate::defaults::MAX_ALLOWED_ORIGINS;
use crate::reader::{Section, shown};

const KEY: &str = "allowed_origins";

pub(super) fn read(section: &mut Section<'_, '_>) -> Vec<String> {
    let mut origins = section.texts(KEY);
    if origins.len() > MAX_ALLOWED_ORIGINS {
        let message = format!("names {} origins, {MAX_ALLOWED_ORIGINS} are allowed", origins.len());
        section.error(ErrorKind::Impossible, KEY, message, "put a proxy with one origin in front");
    }
    origins.retain(|origin| match fault(origin) {
        None => true,
        Some(hint) => {
            let message = format!("{} is no origin as browsers send it", shown(origin));
            section.error(ErrorKind::Impossible, KEY, message, hint);
            false
        }
    });
    origins
}

/// What to do about a text that no browser would send as an origin.
fn fault(origin: &str) -> Option<&'static str> {
    const FORM: &str = "write scheme, host and port as in `https://chat.example.com` or `http://localhost:3000`";
    let Some((scheme, rest)) = origin.split_once("://") else {
        return Some(if origin == "*" { "name the sites one by one; any site could spend this server's time" } else { FORM });
    };
    let default_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return Some(FORM),
    };
    if rest.ends_with('/') {
        return Some("leave out the slash at the end");
    }
    if rest.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Some("write the host in lower case");
    }
    if rest.strip_suffix(default_port).is_some_and(|host| !host.is_empty() && !host.ends_with(':')) {
        return Some("leave out the scheme's own port, as browsers do");
    }
    if is_authority(rest) { None } else { Some(FORM) }
}

/// `host`, `host:port`, `[::1]` or `[::1]:port`.
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            (address.parse::<std::net::Ipv6Addr>().is_ok(), rest.strip_prefix(':').or((!rest.is_empty()).then_some("?")))
        }
        None => {
            let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
            (is_host(host), port)
        }
    };
    host && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|number| number.to_string() == port && number > 0))
}

fn is_host(host: &str) -> bool {
    let label = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    host.len() <= 253 && host.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_told_from_what_browsers_never_send() {
        for origin in
            ["https://chat.example.com", "http://localhost:3000", "http://127.0.0.1:8000", "http://[::1]:3000", "https://[::1]"]
        {
            assert_eq!(fault(origin), None, "{origin}");
        }
        for origin in [
            "*",
            "null",
            "chat.example.com",
            "https://",
            "https://chat.example.com/",
            "https://chat.example.com/path",
            "https://Chat.example.com",
            "https://chat.example.com:443",
            "http://localhost:80",
            "http://localhost:",
            "http://localhost:x",
            "http://localhost:03000",
            "http://localhost:70000",
            "http://user@localhost",
            "http://*.example.com",
            "http://a..b",
            "http://[::1",
            "http://[::1]x",
            "http://[nonsense]",
            "ftp://example.com",
        ] {
            assert!(fault(origin).is_some(), "{origin}");
        }
    }
}
