//! What goes wrong, as clients of the OpenAI API expect to read it: a status, and one envelope with four keys.
//!
//! Permanent faults are never 408, 409, 429 or 5xx without `x-should-retry: false`: the common clients repeat those.
//! Messages name fields and limits, never what a client sent: prompts and keys stay out of answers and logs.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use millrace_node::{GenerateError, RequestError};
use serde_json::{Value, json};

/// Tells the OpenAI clients not to repeat a request that failed with a 5xx.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Codes of requests that were not read to their end.
const TOO_LARGE: &str = "request_too_large";
const TOO_SLOW: &str = "request_timeout";

/// An error on its way to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub kind: &'static str,
    pub message: String,
    /// The field that is at fault, as `messages[0].content`.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    pub retry: Retry,
}

/// What a client is told about trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Nothing: the status says it.
    Unsaid,
    AfterMs(u64),
    Never,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, retry: Retry::Unsaid }
    }

    /// 400: the request as a whole.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: one field.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("invalid_value"), ..Self::bad_request(message) }
    }

    /// 400: a field asks for something that this server does not do.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::field(param, message) }
    }

    pub fn unauthorized() -> Self {
        let message = "A valid API key is needed: send it as `Authorization: Bearer KEY`.";
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message) }
    }

    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { code: Some("forbidden"), ..Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message) }
    }

    pub fn not_found() -> Self {
        Self {
            code: Some("unknown_url"),
            ..Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "There is nothing at this path and method.")
        }
    }

    pub fn model_not_found(model: &str) -> Self {
        let message = format!("The model `{}` does not exist or you do not have access to it.", printable(model, 128));
        Self { code: Some("model_not_found"), ..Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message) }
    }

    pub fn method_not_allowed() -> Self {
        Self {
            code: Some("method_not_allowed"),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "This path does not take this method.")
        }
    }

    /// `what` is the part of the request that did not come.
    pub fn too_slow(what: &str, timeout: Duration) -> Self {
        let message = format!("The request {what} did not arrive within {} s.", timeout.as_secs_f64());
        Self {
            code: Some(TOO_SLOW),
            retry: Retry::Never,
            ..Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
        }
    }

    pub fn too_large(limit: usize) -> Self {
        let message = format!("The request body is larger than the {limit} bytes that this server takes.");
        Self { code: Some(TOO_LARGE), ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message) }
    }

    pub fn media_type(message: impl Into<String>) -> Self {
        Self {
            code: Some("unsupported_media_type"),
            ..Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
        }
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Self { code: Some("conflict"), retry: Retry::Never, ..Self::new(StatusCode::CONFLICT, "invalid_request_error", message) }
    }

    /// 503: done here, and not yet everywhere. To do it once more would not help.
    pub fn behind(message: impl Into<String>) -> Self {
        Self {
            code: Some("policy_behind"),
            retry: Retry::Never,
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
        }
    }

    /// 500 with nothing of the inside in it.
    pub fn internal() -> Self {
        let message = "The server failed on this request. The log has more under its x-request-id.";
        Self { code: Some("internal_error"), ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message) }
    }

    pub fn hung() -> Self {
        Self {
            code: Some("engine_hung"),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "The engine has not moved for too long.")
        }
    }

    pub fn not_in_service() -> Self {
        Self {
            code: Some("not_in_service"),
            retry: Retry::AfterMs(2_000),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "No lane is in service.")
        }
    }

    /// 429: the request came on a connection beyond the listener's bound.
    pub fn no_connection() -> Self {
        let message =
            "All connections of this server are in use. Try again soon, and send requests over connections that are kept.";
        busy("too_many_connections", message.to_owned(), 1_000)
    }

    pub fn loading() -> Self {
        Self {
            code: Some("model_loading"),
            retry: Retry::AfterMs(2_000),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "The model is still loading.")
        }
    }

    pub fn draining() -> Self {
        Self {
            code: Some("server_draining"),
            retry: Retry::AfterMs(5_000),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "The server is shutting down and takes no new requests.")
        }
    }

    /// The `{"error": {...}}` that stands in bodies and, after the first byte, in events.
    pub fn envelope(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

/// The first `limit` characters with control characters replaced, so that a name can stand in a message or a log line.
pub(crate) fn printable(text: &str, limit: usize) -> String {
    text.chars().take(limit).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.envelope().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 9110, 15.5.2: an answer 401 names the scheme that would do.
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self.code, Some(TOO_LARGE | TOO_SLOW)) {
            // The rest of the request is not read, so nothing can come behind it.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        match self.retry {
            Retry::Unsaid => {}
            Retry::AfterMs(ms) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
                headers.insert(HeaderName::from_static("retry-after-ms"), HeaderValue::from(ms));
            }
            Retry::Never => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
        }
        response
    }
}

fn busy(code: &'static str, message: String, retry_after_ms: u64) -> ApiError {
    ApiError {
        code: Some(code),
        retry: Retry::AfterMs(retry_after_ms),
        ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let message = error.to_string();
        match error {
            RequestError::UnknownModel(model) => Self::model_not_found(&model),
            RequestError::ContextLength(_) => Self { code: Some("context_length_exceeded"), ..Self::field("messages", message) },
            RequestError::Field { param, message } => Self::field(param, message),
            RequestError::QueueFull { retry_after_ms } => busy("server_overloaded", message, retry_after_ms),
            RequestError::TenantLimit { retry_after_ms, .. } => busy("rate_limit_exceeded", message, retry_after_ms),
            RequestError::Unavailable { retry_after_ms } => Self {
                code: Some("engine_unavailable"),
                retry: Retry::AfterMs(retry_after_ms),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
            },
            RequestError::Refused { status, retry_after_ms, .. } => refused(status, retry_after_ms, message),
            RequestError::Draining => Self::draining(),
            RequestError::NotReady => Self::loading(),
            RequestError::Internal(detail) => {
                tracing::error!(%detail, "a request failed inside");
                Self::internal()
            }
        }
    }
}

/// A route policy's refusal. The node has already made every other status a 503.
fn refused(status: u16, retry_after_ms: Option<u64>, message: String) -> ApiError {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let kind = match status.as_u16() {
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    let retry = match (retry_after_ms, status.as_u16()) {
        (Some(ms), _) => Retry::AfterMs(ms),
        (None, 429 | 503) => Retry::AfterMs(1_000),
        (None, 408 | 409) => Retry::Never,
        (None, _) => Retry::Unsaid,
    };
    ApiError { code: Some("refused_by_policy"), retry, ..ApiError::new(status, kind, message) }
}

impl From<GenerateError> for ApiError {
    fn from(error: GenerateError) -> Self {
        let message = error.to_string();
        let server = |status, code, retry| Self { code: Some(code), retry, ..Self::new(status, "server_error", message) };
        match error {
            GenerateError::PageMismatch => server(StatusCode::INTERNAL_SERVER_ERROR, "kv_page_mismatch", Retry::Never),
            GenerateError::NotFinite => server(StatusCode::INTERNAL_SERVER_ERROR, "output_not_finite", Retry::Never),
            GenerateError::QueueTimeout => server(StatusCode::SERVICE_UNAVAILABLE, "queue_timeout", Retry::AfterMs(2_000)),
            GenerateError::Deadline => server(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", Retry::Never),
            GenerateError::Stalled => server(StatusCode::GATEWAY_TIMEOUT, "reader_stalled", Retry::Never),
            GenerateError::ShuttingDown => server(StatusCode::SERVICE_UNAVAILABLE, "server_draining", Retry::AfterMs(5_000)),
            GenerateError::Engine(detail) => {
                tracing::error!(%detail, "an engine failed a request");
                Self { code: Some("engine_error"), ..Self::internal() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_envelope_has_all_four_keys() {
        let plain = ApiError::bad_request("x").envelope();
        assert_eq!(plain, json!({"error": {"message": "x", "type": "invalid_request_error", "param": null, "code": null}}));
        let field = ApiError::field("max_tokens", "y").envelope();
        assert_eq!(field["error"]["param"], "max_tokens");
        assert_eq!(field["error"]["code"], "invalid_value");
    }

    #[test]
    fn what_must_not_be_repeated_says_so() {
        let response = ApiError::from(GenerateError::PageMismatch).into_response();
        assert_eq!(response.status(), 500);
        assert_eq!(response.headers()["x-should-retry"], "false");
        let response = ApiError::from(RequestError::QueueFull { retry_after_ms: 1_400 }).into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(response.headers()["retry-after-ms"], "1400");
        let down = ApiError::from(RequestError::Unavailable { retry_after_ms: 4_200 });
        assert_eq!(down.envelope()["error"]["code"], "engine_unavailable");
        let response = down.into_response();
        assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (503, &HeaderValue::from(5)));
        let response = ApiError::draining().into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "5");
        assert!(!response.headers().contains_key("www-authenticate"));
        assert_eq!(ApiError::unauthorized().into_response().headers()["www-authenticate"], "Bearer");
    }

    #[test]
    fn an_inner_failure_does_not_show_the_inside() {
        let error = ApiError::from(RequestError::Internal("/home/x: panicked at 0xdeadbeef".to_owned()));
        assert!(!error.envelope().to_string().contains("panicked"));
        let error = ApiError::from(GenerateError::Engine("0xdeadbeef".to_owned()));
        assert!(!error.envelope().to_string().contains("beef"));
        assert_eq!(error.code, Some("engine_error"));
    }

    #[test]
    fn names_in_messages_are_cut_and_cleaned() {
        let error = ApiError::model_not_found(&format!("a\r\n\u{1b}[31m{}", "b".repeat(500)));
        assert!(!error.message.contains(['\r', '\n', '\u{1b}']));
        assert!(error.message.len() < 300);
    }
}
