//! Routes for probes and scrapers: `/live`, `/ready`, `/health`, `/metrics`, `/version`.
//!
//! Alive means that the engine's loop turns, or that there is none yet; ready means that a request sent now is taken.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Response, StatusCode};
use serde_json::json;

use crate::error::ApiError;
use crate::openai::json_response;
use crate::state::Api;

pub(crate) async fn live(State(api): State<Api>) -> Result<StatusCode, ApiError> {
    match api.loaded() {
        Some(node) if !node.is_alive() => Err(ApiError::hung()),
        _ => Ok(StatusCode::OK),
    }
}

/// `/ready` and `/health`: an empty 200, or 503.
pub(crate) async fn ready(State(api): State<Api>) -> Result<StatusCode, ApiError> {
    if api.node()?.is_ready() { Ok(StatusCode::OK) } else { Err(ApiError::not_in_service()) }
}

pub(crate) async fn metrics(State(api): State<Api>) -> Result<Response<Body>, ApiError> {
    let node = api.loaded().ok_or_else(ApiError::loading)?;
    let mut response = Response::new(Body::from(node.render_metrics()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(millrace_node::METRICS_CONTENT_TYPE));
    Ok(response)
}

pub(crate) async fn version() -> Response<Body> {
    json_response(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

pub(crate) async fn not_found() -> ApiError {
    ApiError::not_found()
}

pub(crate) async fn method_not_allowed() -> ApiError {
    ApiError::method_not_allowed()
}
