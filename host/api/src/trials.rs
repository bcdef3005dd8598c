//! The admin listener's routes for a policy on trial: begun, looked at, put in force or given up while requests stream.

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Response;
use millrace_node::{Disagreement, ShadowReport};
use serde_json::{Value, json};

use crate::admin::{Upload, changed, info_json, kind_of, upload};
use crate::error::ApiError;
use crate::openai::json_response;
use crate::state::Api;

/// The body is a component; `x-sha256` pins it.
pub(crate) async fn begin(
    State(api): State<Api>,
    Path(kind): Path<String>,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let kind = kind_of(&kind)?;
    let node = api.node()?.clone();
    let Upload { source, pinned } = upload(&api, request).await?;
    let begin = move || node.policies().start_shadow(kind, &source, pinned.as_ref());
    let report = tokio::task::spawn_blocking(begin).await.map_err(|_| ApiError::internal())??;
    Ok(json_response(&report_json(&report)))
}

pub(crate) async fn look(State(api): State<Api>, Path(kind): Path<String>) -> Result<Response<Body>, ApiError> {
    let kind = kind_of(&kind)?;
    let report = api.node()?.policies().shadow(kind).ok_or_else(ApiError::not_found)?;
    Ok(json_response(&report_json(&report)))
}

pub(crate) async fn give_up(State(api): State<Api>, Path(kind): Path<String>) -> Result<Response<Body>, ApiError> {
    let kind = kind_of(&kind)?;
    let node = api.node()?.clone();
    let stop = move || node.policies().stop_shadow(kind);
    let report = tokio::task::spawn_blocking(stop).await.map_err(|_| ApiError::internal())??;
    Ok(json_response(&report_json(&report)))
}

/// What is on trial is in force from now on.
pub(crate) async fn activate(State(api): State<Api>, Path(kind): Path<String>) -> Result<Response<Body>, ApiError> {
    let kind = kind_of(&kind)?;
    let node = api.node()?.clone();
    let swapping = node.clone();
    let swap = move || swapping.policies().activate(kind);
    let old = tokio::task::spawn_blocking(swap).await.map_err(|_| ApiError::internal())??;
    Ok(changed(&node, kind, &old))
}

fn report_json(report: &ShadowReport) -> Value {
    let example =
        |example: &Disagreement| json!({"at": example.at_s, "in_force": example.in_force, "candidate": example.candidate});
    json!({
        "candidate": info_json(&report.candidate),
        "compared": report.compared,
        "agreed": report.agreed,
        "disagreed": report.disagreed,
        "faults": report.faults,
        "last_fault": report.last_fault,
        "ended": report.ended,
        "skipped": report.skipped,
        "examples": report.examples.iter().map(example).collect::<Vec<_>>(),
    })
}
