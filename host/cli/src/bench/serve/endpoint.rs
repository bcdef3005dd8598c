//! Where requests go: the URL of an OpenAI-compatible server, resolved once, and the head that all requests share.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Request, Uri};

/// Servers without keys are often given a word; only what is as long as a secret is looked for in their answers.
const MIN_SECRET_BYTES: usize = 8;

/// Beside these, a URL has nothing that this client honours.
const SHAPE: &str = "use http://HOST[:PORT][/PATH]";

/// The parts of `--url`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    host: String,
    port: u16,
    /// Host and port as written.
    authority: String,
    path: String,
}

impl Url {
    /// # Errors
    /// It is no URL over plain HTTP; the message says what to write instead.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.contains('@') {
            // Not repeated in the message: what stands before it is a secret.
            return Err(format!("--url: user and password are not sent; use --api-key, and {SHAPE}"));
        }
        let wrong = |what: &str| format!("--url {text}: {what}; {SHAPE}");
        let uri: Uri = text.parse().map_err(|error| wrong(&format!("no URL ({error})")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(wrong("https is not spoken here, so that the client's cost is the same for every server"));
            }
            _ => return Err(wrong("it does not begin with http://")),
        }
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(|| wrong("no host"))?;
        if uri.query().is_some() {
            return Err(wrong("a query is not sent"));
        }
        let base = uri.path().trim_end_matches('/');
        let path = format!("{}/v1/chat/completions", base.strip_suffix("/v1").unwrap_or(base));
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        // `Authority::port` says of a port that is too large that there is none.
        let port = match authority.as_str().strip_prefix(authority.host()).unwrap_or_default() {
            "" => 80,
            port => port.trim_start_matches(':').parse().map_err(|_| wrong("no port"))?,
        };
        Ok(Self { host, port, authority: authority.as_str().to_owned(), path })
    }
}

/// Everything that a client needs to know of the server.
pub(super) struct Endpoint {
    pub(super) addresses: Vec<SocketAddr>,
    path: String,
    headers: HeaderMap,
    key: Option<String>,
    /// Of one request, from sending to its last byte.
    pub(super) timeout: Duration,
}

impl Endpoint {
    /// # Errors
    /// The host's name has no address.
    pub(super) async fn resolve(url: &Url, key: Option<Key>, timeout: Duration) -> anyhow::Result<Self> {
        let found = tokio::net::lookup_host((url.host.as_str(), url.port)).await;
        let addresses: Vec<SocketAddr> = found.with_context(|| format!("--url: no address for `{}`", url.host))?.collect();
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(&url.authority).context("--url: its host is no HTTP header")?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("millrace-bench/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = &key {
            headers.insert(AUTHORIZATION, key.header.clone());
        }
        Ok(Self { addresses, path: url.path.clone(), headers, key: key.map(|key| key.text), timeout })
    }

    /// The same, but no connection serves a second request.
    pub(super) fn with_fresh_connections(mut self) -> Self {
        self.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        self
    }

    pub(super) fn request(&self, body: String) -> Request<String> {
        let mut request = Request::new(body);
        *request.method_mut() = hyper::Method::POST;
        // It was cut out of a URI, so it is one.
        *request.uri_mut() = self.path.parse().unwrap_or_default();
        request.headers_mut().clone_from(&self.headers);
        request
    }

    /// A server's words without the key that it may have repeated.
    pub(super) fn without_key(&self, text: &str) -> String {
        let secret = self.key.as_ref().filter(|key| key.len() >= MIN_SECRET_BYTES);
        secret.map_or_else(|| text.to_owned(), |key| text.replace(key, "(the API key)"))
    }
}

/// An API key that can be sent.
#[derive(Clone)]
pub(super) struct Key {
    text: String,
    header: HeaderValue,
}

impl Key {
    /// # Errors
    /// It is empty or cannot stand in a header. The message does not show it.
    pub(super) fn new(text: String) -> Result<Self, String> {
        let header = HeaderValue::from_str(&format!("Bearer {text}")).ok().filter(|_| !text.trim().is_empty());
        let mut header = header.ok_or("the API key is empty or has characters that no HTTP header can hold; give another one")?;
        header.set_sensitive(true);
        Ok(Self { text, header })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lead_to_chat_completions() {
        let parts = |text: &str| Url::parse(text).map(|url| (url.host, url.port, url.authority, url.path)).unwrap();
        let chat = "/v1/chat/completions";
        let owned =
            |host: &str, port, authority: &str, path: &str| (host.to_owned(), port, authority.to_owned(), path.to_owned());
        assert_eq!(parts("http://127.0.0.1:8000"), owned("127.0.0.1", 8000, "127.0.0.1:8000", chat));
        assert_eq!(parts("http://a.example/"), owned("a.example", 80, "a.example", chat));
        assert_eq!(parts("http://a:1/v1/"), owned("a", 1, "a:1", chat));
        assert_eq!(parts("http://a:1/llm/v1"), owned("a", 1, "a:1", "/llm/v1/chat/completions"));
        assert_eq!(parts("http://[::1]:9"), owned("::1", 9, "[::1]:9", chat));
    }

    #[test]
    fn other_urls_are_refused_with_a_reason() {
        for (text, reason) in [
            ("https://a", "https is not spoken"),
            ("127.0.0.1:8000", "http://"),
            ("localhost", "http://"),
            ("ftp://a", "http://"),
            ("http://", "http://"),
            ("http://a b", "no URL"),
            ("http://a:99999", "no port"),
            ("http://[::1]:", "no port"),
            ("http://a/?x=1", "query"),
            ("", "no URL"),
        ] {
            let message = Url::parse(text).unwrap_err();
            assert!(message.starts_with("--url") && message.contains(reason), "{text}: {message}");
        }
        for url in ["https://me:secret@a", "me:secret@a", "http://me:sec ret@a"] {
            assert!(!Url::parse(url).unwrap_err().contains("sec"), "{url}");
        }
        let message = Url::parse("http://me:secret@a").unwrap_err();
        assert!(message.contains("--api-key") && !message.contains("secret"));
    }

    #[test]
    fn keys_are_never_shown() {
        assert!(Key::new(String::new()).is_err() && Key::new("  ".to_owned()).is_err());
        let message = Key::new("sec\nret".to_owned()).err().unwrap();
        assert!(!message.contains("sec") && !message.contains("ret\n"), "{message}");
        let key = Key::new("secret".to_owned()).unwrap();
        assert!(!format!("{:?}", key.header).contains("secret"));
    }
}
