//! Request bodies within bounds of size and time, as text or bytes. Knows no fields.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::error::ApiError;
use crate::state::ApiOptions;

/// What is read of a body that is refused for its size.
const DISCARD_BYTES: usize = 256 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// A JSON body, said to be one. A browser sends other types, or none, for a page of any site without asking; for JSON's it asks first.
///
/// # Errors
/// 400, 408, 413 or 415.
pub(crate) async fn read_json(options: &ApiOptions, request: Request) -> Result<String, ApiError> {
    if !is_json(request.headers()) {
        return Err(ApiError::media_type(
            "The body must be JSON: send `Content-Type: application/json` (with curl: -H 'Content-Type: application/json').",
        ));
    }
    let bytes = read_bytes(request, options.max_body_bytes, options.body_timeout).await?;
    // `Bytes` that nobody else holds give their memory away without a copy.
    String::from_utf8(bytes.into()).map_err(|_| ApiError::bad_request("The request body is not UTF-8."))
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut kinds = headers.get_all(CONTENT_TYPE).iter();
    let (Some(kind), None) = (kinds.next(), kinds.next()) else { return false };
    let essence = kind.to_str().ok().and_then(|kind| kind.split(';').next()).map(str::trim);
    essence.is_some_and(|e| e.eq_ignore_ascii_case("application/json") || e.to_ascii_lowercase().ends_with("+json"))
}

/// A body of at most `limit` bytes.
///
/// # Errors
/// 400, 408, 413 or 415.
pub(crate) async fn read_bytes(request: Request, limit: usize, timeout: Duration) -> Result<Bytes, ApiError> {
    check_encoding(request.headers())?;
    let told = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    let waits = request.headers().contains_key(EXPECT);
    let mut body: Body = request.into_body();
    if told.is_some_and(|told| told > limit as u64) {
        if !waits {
            discard(&mut body).await;
        }
        return Err(ApiError::too_large(limit));
    }
    match tokio::time::timeout(timeout, Limited::new(&mut body, limit).collect()).await {
        Err(_) => Err(ApiError::too_slow("body", timeout)),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            discard(&mut body).await;
            Err(ApiError::too_large(limit))
        }
        Ok(Err(_)) => Err(ApiError::bad_request("The request body broke off or was framed wrongly.")),
    }
}

/// Reads on for a while without keeping anything: a client that is still sending when the connection closes sees a reset
/// instead of the answer.
async fn discard(body: &mut Body) {
    let reading = async {
        let mut seen = 0_usize;
        while let Some(Ok(frame)) = body.frame().await {
            seen = seen.saturating_add(frame.data_ref().map_or(1, Bytes::len));
            if seen > DISCARD_BYTES {
                break;
            }
        }
    };
    // Whether it ends or runs out of time, the answer is the same.
    let _ = tokio::time::timeout(DISCARD_TIME, reading).await;
}

fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let plain = |value: &axum::http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return Ok(());
    }
    Err(ApiError::media_type("Compressed bodies are not taken; send the body without Content-Encoding."))
}
