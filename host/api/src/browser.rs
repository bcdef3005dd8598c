//! Requests that a web page made a browser send: which are taken where no key stands in their way, and what pages may read.
//!
//! Without keys, whoever reaches the listener is served; and a page of any site reaches the loopback of whoever looks at it. So there
//! a request has to come from a tool, from a page of this server, or from an origin that the deployment names. Knows no route.

use std::net::IpAddr;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::http::{HeaderMap, Method};
use tower_http::cors::{AllowHeaders, CorsLayer};

/// For how long a browser may remember what it was allowed.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Whether a browser may have been made to send this by a page that is not among `allowed`, origins as `https://chat.example.com`.
///
/// A page of another site names itself in `Origin` or `Sec-Fetch-Site`; one that had its own name resolved to this machine (DNS
/// rebinding) still sends that name as `Host`.
pub(crate) fn from_another_site(headers: &HeaderMap, allowed: &[String]) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let origin = text("origin");
    if origin.is_some_and(|origin| allowed.iter().any(|known| known == origin)) {
        return false;
    }
    let host = text("host").unwrap_or_default();
    let known_host = || allowed.iter().filter_map(|known| known.split_once("://")).any(|(_, known)| known == host);
    let fetched = text("sec-fetch-site").is_some_and(|site| !matches!(site, "none" | "same-origin"));
    let foreign = origin.is_some_and(|origin| origin.split_once("://").is_none_or(|(_, rest)| rest != host));
    fetched || foreign || !(is_this_machine(host) || known_host())
}

/// Whether a `Host` is one that no name server had to resolve.
fn is_this_machine(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, port)| if port.ends_with(']') { host } else { name });
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Lets pages of these origins send what clients send and read the answers; answers their preflights.
pub(crate) fn cors(allowed: &[String]) -> CorsLayer {
    let origins: Vec<HeaderValue> = allowed.iter().filter_map(|origin| origin.parse().ok()).collect();
    let readable = ["retry-after-ms", "x-request-id", "x-should-retry"].map(HeaderName::from_static);
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        // Clients send headers of their own beside these two; a page that may ask at all may send any.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(readable.into_iter().chain([RETRY_AFTER, CONTENT_TYPE]).collect::<Vec<_>>())
        .max_age(REMEMBERED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&'static str, &'static str)], allowed: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        pairs.iter().for_each(|(name, value)| drop(headers.insert(*name, HeaderValue::from_static(value))));
        let allowed: Vec<String> = allowed.iter().map(|&origin| origin.to_owned()).collect();
        from_another_site(&headers, &allowed)
    }

    #[test]
    fn web_pages_of_other_sites_are_told_from_tools() {
        for pairs in [
            &[][..],
            &[("host", "127.0.0.1:8081")],
            &[("host", "[::1]:8081")],
            &[("host", "[::1]")],
            &[("host", "localhost:8081"), ("origin", "http://localhost:8081"), ("sec-fetch-site", "same-origin")],
        ] {
            assert!(!from(pairs, &[]), "{pairs:?}");
        }
        for pairs in [
            &[("host", "evil.example:8081")][..],
            &[("host", "127.0.0.1:8081"), ("origin", "http://evil.example")],
            &[("host", "127.0.0.1:8081"), ("origin", "http://127.0.0.1:3000")],
            &[("host", "127.0.0.1:8081"), ("origin", "null")],
            &[("host", "127.0.0.1:8081"), ("sec-fetch-site", "cross-site")],
            &[("host", "127.0.0.1:8081"), ("sec-fetch-site", "same-site")],
        ] {
            assert!(from(pairs, &[]), "{pairs:?}");
            assert!(from(pairs, &["https://chat.example"]), "{pairs:?}");
        }
    }

    #[test]
    fn an_origin_that_is_allowed_is_taken_and_its_neighbours_are_not() {
        const ALLOWED: &[&str] = &["https://chat.example", "http://localhost:3000"];
        for pairs in [
            &[("host", "127.0.0.1:8080"), ("origin", "https://chat.example"), ("sec-fetch-site", "cross-site")][..],
            &[("host", "localhost:8080"), ("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")],
            // Behind a proxy that keeps the name: the server's own pages.
            &[("host", "chat.example"), ("sec-fetch-site", "same-origin")],
        ] {
            assert!(!from(pairs, ALLOWED), "{pairs:?}");
        }
        for origin in
            ["http://chat.example", "https://chat.example:8443", "https://a.chat.example", "https://chat.example.evil", ""]
        {
            assert!(from(&[("host", "127.0.0.1:8080"), ("origin", origin)], ALLOWED), "{origin}");
        }
        assert!(from(&[("host", "chat.example"), ("origin", "https://evil.example")], ALLOWED));
    }
}
