//! Server-sent events as clients of the OpenAI API read them: `data: {json}`, a blank line, and `data: [DONE]` at the end.
//!
//! Exactly one space after the colon and no comments: several clients compare strings. It does not know what is in an event.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{Response, StatusCode};
use futures_util::Stream;
use serde_json::Value;

/// The end of every stream.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// One event.
pub(crate) fn frame(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A response whose body is events. Dropping the body drops the stream.
pub(crate) fn response(events: impl Stream<Item = String> + Send + 'static) -> Response<Body> {
    use futures_util::StreamExt as _;
    let mut response = Response::new(Body::from_stream(events.map(|text| Ok::<_, Infallible>(Bytes::from(text)))));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that gather a response would take the stream out of streaming.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_frame_is_one_line_whatever_the_text_holds() {
        let text = frame(&json!({"content": "a\nb\r\n\ndata: [DONE]\n\n\u{2028}"}));
        assert!(text.starts_with("data: {") && text.ends_with("}\n\n"));
        assert_eq!(text.matches('\n').count(), 2);
        assert!(!text.contains('\r'));
    }
}
