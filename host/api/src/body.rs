//! Request bodies within bounds of size and time, as text or bytes. Knows no fields.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::error::ApiError;
use crate::gate::Announced;
use crate::media_type::{Charset, charset, is_json};
use crate::state::ApiOptions;

/// A JSON body, said to be one. A browser sends other types, or none, for a page of any site without asking; for JSON's it asks first.
///
/// # Errors
/// 400, 408, 413 or 415.
pub(crate) async fn read_json(options: &ApiOptions, request: Request) -> Result<String, ApiError> {
    check_type(request.headers())?;
    let bytes = read_bytes(request, options.max_body_bytes, options.body_timeout).await?;
    // `Bytes` that nobody else holds give their memory away without a copy.
    String::from_utf8(bytes.into()).map_err(|_| ApiError::bad_request("The request body is not UTF-8."))
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut kinds = headers.get_all(CONTENT_TYPE).iter();
    let kind = if let (Some(kind), None) = (kinds.next(), kinds.next()) { kind.to_str().ok() } else { None };
    let Some(kind) = kind.filter(|kind| is_json(kind)) else {
        return Err(ApiError::media_type(
            "The body must be JSON: send `Content-Type: application/json` (with curl: -H 'Content-Type: application/json').",
        ));
    };
    match charset(kind) {
        Charset::Unsaid | Charset::Utf8 => Ok(()),
        Charset::Other => Err(ApiError::media_type(
            "The body must be UTF-8, but its Content-Type names another charset: leave `charset` out, or send `charset=utf-8`.",
        )),
    }
}

/// A body of at most `limit` bytes. One that says it is longer is refused before its bytes come; the connection closes then, and
/// the gate takes care that the client sees the answer.
///
/// # Errors
/// 400, 408, 413 or 415.
pub(crate) async fn read_bytes(request: Request, limit: usize, timeout: Duration) -> Result<Bytes, ApiError> {
    check_encoding(request.headers())?;
    let announced = request.extensions().get::<Arc<Announced>>().cloned().unwrap_or_default();
    // A client that waits for `100 Continue` would get it from the first look at the body.
    if announced.exceeds(limit) {
        return Err(ApiError::too_large(limit));
    }
    let reading = Limited::new(request.into_body(), limit).collect();
    let read = tokio::select! {
        biased;
        () = announced.more_than(limit) => return Err(ApiError::too_large(limit)),
        read = tokio::time::timeout(timeout, reading) => read,
    };
    match read {
        Err(_) => Err(ApiError::too_slow("body", timeout)),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(limit)),
        Ok(Err(_)) => Err(ApiError::bad_request("The request body broke off or was framed wrongly.")),
    }
}

fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let plain = |value: &axum::http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return Ok(());
    }
    Err(ApiError::media_type("Compressed bodies are not taken; send the body without Content-Encoding."))
}
