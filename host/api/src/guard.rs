//! Around every request: a path that means one thing only, an id to find it by, a panic that ends nothing but the request, and one
//! log line without keys or prompts.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CONNECTION, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, Response, StatusCode, Version};
use axum::middleware::Next;
use axum::response::IntoResponse;
use futures_util::FutureExt as _;
use tracing::Instrument as _;

use crate::door::Spare;
use crate::error::{ApiError, printable};
use crate::gate::{Bounds, REFUSE, Refusal};
use crate::state::Api;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID_BYTES: usize = 128;

/// What a request is called in headers and the log, for faults that are meant for it.
#[cfg(feature = "fault-injection")]
#[derive(Debug, Clone)]
pub(crate) struct RequestTag(pub(crate) HeaderValue);

/// The outermost layer of both listeners.
pub(crate) async fn guard(State(api): State<Api>, request: Request, next: Next) -> Response<Body> {
    let started = Instant::now();
    let id = request_id(&api, request.headers());
    let (method, path) = (request.method().clone(), printable(request.uri().path(), 128));
    // The gate does not follow chunks, so it could not tell where the next request begins. A spare connection has one request.
    let is_last = request.headers().contains_key(TRANSFER_ENCODING) || request.extensions().get::<Spare>().is_some();
    #[cfg(feature = "fault-injection")]
    let request = tagged(request, &id);
    let span = tracing::info_span!("request", id = id.to_str().unwrap_or_default());
    let mut response = run(request, next).instrument(span.clone()).await;
    response.headers_mut().insert(REQUEST_ID, id);
    if is_last || api.is_draining() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let status = response.status().as_u16();
    if let Some(node) = api.loaded() {
        node.metrics().http_responses.count(status);
    }
    let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    // Probes and scrapes come every second; a log of them would hide the requests.
    if matches!(path.as_str(), "/live" | "/ready" | "/health" | "/metrics") {
        span.in_scope(|| tracing::debug!(%method, path, status, took_ms, "answered"));
    } else {
        span.in_scope(|| tracing::info!(%method, path, status, took_ms, "answered"));
    }
    response
}

#[cfg(feature = "fault-injection")]
fn tagged(mut request: Request, id: &HeaderValue) -> Request {
    request.extensions_mut().insert(RequestTag(id.clone()));
    request
}

async fn run(request: Request, next: Next) -> Response<Body> {
    if let Err(error) = check(&request) {
        let mut response = error.into_response();
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            // The router names a path's own methods; these are refused on every path.
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
        }
        return response;
    }
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!("a handler panicked; this is a bug");
            ApiError::internal().into_response()
        }
    }
}

fn check(request: &Request) -> Result<(), ApiError> {
    if request.method().as_str() == REFUSE {
        return Err(refusal(request).unwrap_or_else(ApiError::not_found));
    }
    if request.method() == Method::CONNECT || request.method() == Method::TRACE {
        return Err(ApiError::method_not_allowed());
    }
    let hosts = request.headers().get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        return Err(ApiError::bad_request("A request has exactly one Host header."));
    }
    if is_plain(request.uri().path()) { Ok(()) } else { Err(ApiError::not_found()) }
}

/// What the gate has to say about the head that it refused.
fn refusal(request: &Request) -> Option<ApiError> {
    let bounds = request.extensions().get::<Bounds>()?;
    Refusal::of_path(request.uri().path()).map(|refusal| refusal.error(bounds))
}

/// Whether a path can be read in one way only: no empty or dot segments, no parameters, no escapes. The id of a model, which comes
/// last in its path, may hold escapes.
fn is_plain(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    if rest.contains(['\\', ';']) || rest.bytes().any(|b| b <= b' ' || b >= 0x7f) {
        return false;
    }
    let model = rest.strip_prefix("v1/models/").or_else(|| rest.strip_prefix("models/"));
    let escapes_allowed = model.is_some_and(|id| !has_dots(&id.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/")));
    if rest.contains('%') && (!escapes_allowed || rest.contains("%00")) {
        return false;
    }
    let whole = rest.strip_suffix('/').unwrap_or(rest);
    whole.is_empty() && !path.starts_with("//") || !whole.is_empty() && !has_dots(whole)
}

/// Whether a segment is empty or made of dots alone.
fn has_dots(path: &str) -> bool {
    path.split('/').any(|segment| segment.is_empty() || segment == "." || segment == "..")
}

/// The client's id where it is one that can stand in a header and a log line, a fresh one otherwise.
fn request_id(api: &Api, headers: &HeaderMap) -> HeaderValue {
    let usable = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        !bytes.is_empty() && bytes.len() <= MAX_ID_BYTES && bytes.iter().all(u8::is_ascii_graphic)
    };
    if let Some(id) = headers.get(REQUEST_ID).filter(usable) {
        return id.clone();
    }
    HeaderValue::from_str(&format!("req-{}", api.fresh_id())).unwrap_or_else(|_| HeaderValue::from_static("req-unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_pass() {
        for path in ["/", "/v1/models", "/v1/models/", "/v1/chat/completions", "/v1/models/org/name", "/v1/models/org%2Fname"] {
            assert!(is_plain(path), "{path}");
        }
        for path in [
            "",
            "*",
            "//",
            "//v1/x",
            "/v1//x",
            "/v1/../admin",
            "/v1/./x",
            "/v1/x;y",
            "/%2fv1",
            "/v1/x%00",
            "/v1/models/a%00",
            "/v1/%6dodels",
            "/v1\\x",
            "/v1/x ",
            "/v1/models/..",
            "/v1/models/%2e%2e/%2e%2e/admin",
            "/v1/models/a%2f..%2fb",
            "/v1/models/a//b",
            "/v1/é",
        ] {
            assert!(!is_plain(path), "{path}");
        }
    }
}
