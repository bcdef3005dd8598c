//! Why a head was refused, and how the reason travels to the router.
//!
//! The gate answers nothing itself: it puts a head of its own in place of the refused one, so that the answer takes the way of every
//! other, with envelope, id, log line and count, and stands behind the answers that the connection still owes.

use std::time::Duration;

use axum::http::StatusCode;

use crate::error::ApiError;

/// The method of the gate's own heads. A client that sends it is refused, so whoever sees it knows that the gate wrote it.
pub(crate) const REFUSE: &str = "REFUSE";

/// What is wrong with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    RequestLine,
    Version,
    HeaderLine,
    /// A Content-Length that is no number, or several that differ.
    Length,
    /// A Transfer-Encoding other than `chunked`.
    Encoding,
    /// A Content-Length and a Transfer-Encoding.
    TwoLengths,
    UriTooLong,
    TooLarge,
    Timeout,
}

/// What a message tells of the listener's bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) head_bytes: usize,
    pub(crate) headers: usize,
    pub(crate) timeout: Duration,
}

impl Refusal {
    const ALL: [(Self, &'static str); 9] = [
        (Self::RequestLine, "/request-line"),
        (Self::Version, "/version"),
        (Self::HeaderLine, "/header-line"),
        (Self::Length, "/length"),
        (Self::Encoding, "/encoding"),
        (Self::TwoLengths, "/two-lengths"),
        (Self::UriTooLong, "/uri-too-long"),
        (Self::TooLarge, "/head-too-large"),
        (Self::Timeout, "/head-timeout"),
    ];

    /// The head that says so.
    pub(super) fn head(self) -> String {
        let path = Self::ALL.iter().find(|(refusal, _)| *refusal == self).map_or("/", |(_, path)| path);
        format!("{REFUSE} {path} HTTP/1.1\r\nhost: gate\r\nconnection: close\r\n\r\n")
    }

    /// The reason in the path of such a head.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, own)| *own == path).map(|(refusal, _)| *refusal)
    }

    pub(crate) fn error(self, bounds: &Bounds) -> ApiError {
        let malformed = |message: &str| ApiError { code: Some("malformed_request"), ..ApiError::bad_request(message) };
        let too_long = |status, message| ApiError { status, code: Some("header_too_large"), ..ApiError::bad_request(message) };
        match self {
            Self::RequestLine => malformed("The request line is not `METHOD /path HTTP/1.1`."),
            Self::Version => malformed("This server speaks HTTP/1.1 and HTTP/1.0; send the request as one of them."),
            Self::HeaderLine => malformed("A header is not `Name: value` on a line of its own."),
            Self::Length => malformed("`Content-Length` must be one number, in digits."),
            Self::Encoding => malformed("`Transfer-Encoding` must be `chunked`, once, in an HTTP/1.1 request."),
            Self::TwoLengths => malformed("A request has `Content-Length` or `Transfer-Encoding`, never both."),
            Self::UriTooLong => {
                too_long(StatusCode::URI_TOO_LONG, "The path is too long for any that this server has.".to_owned())
            }
            Self::TooLarge => {
                let (bytes, headers) = (bounds.head_bytes, bounds.headers);
                let message =
                    format!("The request line and headers are larger than {bytes} bytes or more than {headers} headers.");
                too_long(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message)
            }
            Self::Timeout => ApiError::too_slow("headers", bounds.timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_finds_its_way_and_tells_a_client_error() {
        let bounds = Bounds { head_bytes: 8192, headers: 100, timeout: Duration::from_millis(1500) };
        for (refusal, path) in Refusal::ALL {
            assert!(refusal.head().starts_with(&format!("REFUSE {path} HTTP/1.1\r\n")));
            assert_eq!(Refusal::of_path(path), Some(refusal));
            let error = refusal.error(&bounds);
            assert!(error.status.is_client_error() && error.code.is_some(), "{error:?}");
        }
        assert_eq!(Refusal::of_path("/"), None);
        assert_eq!(Refusal::Timeout.error(&bounds).message, "The request headers did not arrive within 1.5 s.");
        assert!(Refusal::TooLarge.error(&bounds).message.contains("8192"));
    }
}
