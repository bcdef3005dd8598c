//! Whether the head of a request can be taken, and how long the body behind it is. Knows bytes, no connection.
//!
//! Stricter than the parser behind it where two servers could see two different requests in the same bytes (RFC 9112, 6.1 and 11.2),
//! and never laxer, so that the parser has nothing left to refuse.

use axum::http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use httparse::{EMPTY_HEADER, Error, Header, Status};

use super::refusal::{REFUSE, Refusal};

/// Headers of one request.
pub(crate) const MAX_HEADERS: usize = 100;
/// What the type of a URI can hold.
const MAX_URI_BYTES: usize = u16::MAX as usize - 1;
/// The parser behind uses the two numbers above this one as marks.
const MAX_BODY_BYTES: u64 = u64::MAX - 2;

/// A head that can be taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// With the empty line at its end.
    pub(super) bytes: usize,
    pub(super) body: Framing,
}

/// How the end of a body is found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// After so many bytes; 0 where there is no body.
    Length(u64),
    /// By the sizes of its chunks.
    Chunked,
}

/// The head at the front of `bytes`, or `None` while it is incomplete.
pub(super) fn judge(bytes: &[u8], max_bytes: usize) -> Result<Option<Head>, Refusal> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes).map_err(fault)? {
        Status::Partial if bytes.len() > max_bytes => return Err(Refusal::TooLarge),
        Status::Partial => return Ok(None),
        Status::Complete(length) if length > max_bytes => return Err(Refusal::TooLarge),
        Status::Complete(length) => length,
    };
    let path = request.path.ok_or(Refusal::RequestLine)?;
    if path.len() > MAX_URI_BYTES {
        return Err(Refusal::UriTooLong);
    }
    let method = Method::from_bytes(request.method.unwrap_or_default().as_bytes()).map_err(|_| Refusal::RequestLine)?;
    if method.as_str() == REFUSE || Uri::try_from(path).is_err() {
        return Err(Refusal::RequestLine);
    }
    Ok(Some(Head { bytes: length, body: framing(request.headers, request.version == Some(1))? }))
}

fn fault(error: Error) -> Refusal {
    match error {
        Error::TooManyHeaders => Refusal::TooLarge,
        Error::Version => Refusal::Version,
        Error::HeaderName | Error::HeaderValue => Refusal::HeaderLine,
        Error::NewLine | Error::Status | Error::Token => Refusal::RequestLine,
    }
}

/// A body's length is said once: by equal numbers, or by chunks (RFC 9112, 6.3).
fn framing(headers: &[Header<'_>], is_http_11: bool) -> Result<Framing, Refusal> {
    let mut length = None;
    let mut chunked = false;
    for header in headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| Refusal::HeaderLine)?;
        HeaderValue::from_bytes(header.value).map_err(|_| Refusal::HeaderLine)?;
        if name == CONTENT_LENGTH {
            let told = decimal(header.value).ok_or(Refusal::Length)?;
            if length.is_some_and(|length| length != told) {
                return Err(Refusal::Length);
            }
            length = Some(told);
        } else if name == TRANSFER_ENCODING {
            if chunked || !is_http_11 || !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err(Refusal::Encoding);
            }
            chunked = true;
        }
    }
    match (length, chunked) {
        (Some(_), true) => Err(Refusal::TwoLengths),
        (None, true) => Ok(Framing::Chunked),
        (length, false) => Ok(Framing::Length(length.unwrap_or(0))),
    }
}

/// Digits and nothing else: no sign, no list, no space.
fn decimal(text: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(text).ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse().ok().filter(|&number| number <= MAX_BODY_BYTES)
}

/// Whether an empty line, which ends a head, ends behind the first `known` bytes. Those were looked at before.
pub(super) fn has_end(bytes: &[u8], known: usize) -> bool {
    let from = known.saturating_sub(2);
    let Some(new) = bytes.get(from..) else { return false };
    new.iter().enumerate().any(|(i, &byte)| {
        let rest = new.get(i + 1..).unwrap_or_default();
        byte == b'\n' && (rest.starts_with(b"\n") || rest.starts_with(b"\r\n"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(head: &str) -> Result<Option<Head>, Refusal> {
        judge(head.as_bytes(), 16 << 10)
    }

    fn with(lines: &str) -> Result<Option<Head>, Refusal> {
        of(&format!("POST /v1/x HTTP/1.1\r\nHost: x\r\n{lines}\r\n"))
    }

    #[test]
    fn sound_heads_say_how_long_their_body_is() {
        let body = |lines| with(lines).unwrap().unwrap().body;
        assert_eq!(body(""), Framing::Length(0));
        assert_eq!(body("Content-Length: 17\r\n"), Framing::Length(17));
        assert_eq!(body("content-length: 17\r\nContent-Length: 017\r\n"), Framing::Length(17));
        assert_eq!(body("Transfer-Encoding: Chunked \r\n"), Framing::Chunked);
        let head = "\r\nGET / HTTP/1.0\r\n\r\n";
        assert_eq!(of(&format!("{head}rest")), Ok(Some(Head { bytes: head.len(), body: Framing::Length(0) })));
    }

    #[test]
    fn a_body_with_two_lengths_is_refused() {
        for (lines, refusal) in [
            ("Content-Length: 5\r\nContent-Length: 6\r\n", Refusal::Length),
            ("Content-Length: 5, 5\r\n", Refusal::Length),
            ("Content-Length: +5\r\n", Refusal::Length),
            ("Content-Length: -5\r\n", Refusal::Length),
            ("Content-Length: 0x5\r\n", Refusal::Length),
            ("Content-Length: \r\n", Refusal::Length),
            ("Content-Length: 18446744073709551615\r\n", Refusal::Length),
            ("Content-Length: 99999999999999999999\r\n", Refusal::Length),
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Refusal::TwoLengths),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Refusal::TwoLengths),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Refusal::Encoding),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", Refusal::Encoding),
            ("Transfer-Encoding: gzip, chunked\r\n", Refusal::Encoding),
            ("Transfer-Encoding: \x0bchunked\r\n", Refusal::HeaderLine),
            ("Transfer-Encoding : chunked\r\n", Refusal::HeaderLine),
            (" Transfer-Encoding: chunked\r\n", Refusal::HeaderLine),
        ] {
            assert_eq!(with(lines), Err(refusal), "{lines}");
        }
        assert_eq!(of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), Err(Refusal::Encoding));
    }

    #[test]
    fn what_is_no_head_is_refused_for_what_it_is() {
        for (head, refusal) in [
            ("nonsense\r\n\r\n", Refusal::RequestLine),
            ("GET  / HTTP/1.1\r\n\r\n", Refusal::RequestLine),
            ("G\u{e9}T / HTTP/1.1\r\n\r\n", Refusal::RequestLine),
            ("REFUSE /head-too-large HTTP/1.1\r\nHost: x\r\n\r\n", Refusal::RequestLine),
            ("GET / HTTP/2.0\r\n\r\n", Refusal::Version),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refusal::Version),
            ("GET / HTTP/1.1\r\nno colon\r\n\r\n", Refusal::HeaderLine),
            ("GET / HTTP/1.1\r\na: b\r\n folded\r\n\r\n", Refusal::HeaderLine),
            ("GET / HTTP/1.1\r\na: b\0c\r\n\r\n", Refusal::HeaderLine),
        ] {
            assert_eq!(of(head), Err(refusal), "{head}");
        }
        assert_eq!(of(""), Ok(None));
        assert_eq!(of("GET / HTTP/1.1\r\nHost: x\r\n"), Ok(None));
    }

    #[test]
    fn every_bound_is_reached() {
        let many = |count: usize| with(&"a: b\r\n".repeat(count - 1));
        assert!(many(MAX_HEADERS).is_ok());
        assert_eq!(many(MAX_HEADERS + 1), Err(Refusal::TooLarge));
        let padded = |bytes: usize| {
            let head = "GET / HTTP/1.1\r\nHost: x\r\nPad: \r\n\r\n";
            head.replace("Pad: ", &format!("Pad: {}", "y".repeat(bytes - head.len())))
        };
        assert!(judge(padded(8192).as_bytes(), 8192).is_ok_and(|head| head.is_some()));
        assert_eq!(judge(padded(8193).as_bytes(), 8192), Err(Refusal::TooLarge));
        assert_eq!(judge(&padded(9000).as_bytes()[..8193], 8192), Err(Refusal::TooLarge));
        let path = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "y".repeat(MAX_URI_BYTES));
        assert_eq!(judge(path.as_bytes(), 1 << 20), Err(Refusal::UriTooLong));
        let name = format!("GET / HTTP/1.1\r\n{}: x\r\n\r\n", "y".repeat(1 << 16));
        assert_eq!(judge(name.as_bytes(), 1 << 20), Err(Refusal::HeaderLine));
    }

    #[test]
    fn the_end_is_found_wherever_a_read_stopped() {
        for head in ["GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\nHost: x\n\n"] {
            for known in 0..head.len() {
                assert!(has_end(head.as_bytes(), known), "{known}");
                assert!(!has_end(&head.as_bytes()[..head.len() - 1], known), "{known}");
            }
        }
    }
}
