//! The admin listener's routes: what is in force, how it does, and replacing a policy while requests stream.

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Response;
use millrace_node::{
    BreakerState, Digest, Node, PolicyCounters, PolicyInfo, PolicyKind, ReadmitError, ScheduleIn, SlotStatus, SwapError,
};
use serde_json::{Value, json};

use crate::body::read_bytes;
use crate::error::ApiError;
use crate::openai::json_response;
use crate::state::Api;

/// A component takes longer to arrive than a prompt.
const COMPONENT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(120);

pub(crate) async fn status(State(api): State<Api>) -> Result<Response<Body>, ApiError> {
    let node = api.loaded().ok_or_else(ApiError::loading)?;
    let model = node.model();
    Ok(json_response(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ready": node.is_ready(),
        "draining": api.is_draining(),
        "in_flight": node.in_flight(),
        "model": {"name": model.name, "context_tokens": model.context_tokens, "digest": model.digest},
        "lanes": lanes_json(node),
        "pools": pools_json(node),
        "tenants": node.tenant_names(),
        "policies": policies_json(node),
    })))
}

pub(crate) async fn policies(State(api): State<Api>) -> Result<Response<Body>, ApiError> {
    let node = api.loaded().ok_or_else(ApiError::loading)?;
    Ok(json_response(&json!({"policies": policies_json(node)})))
}

pub(crate) async fn pools(State(api): State<Api>) -> Result<Response<Body>, ApiError> {
    let node = api.loaded().ok_or_else(ApiError::loading)?;
    Ok(json_response(&json!({"pools": pools_json(node)})))
}

/// Pages that a tag mismatch took out of use are used again. A pool that is a process is told; how many it were is in the log then.
pub(crate) async fn readmit(State(api): State<Api>, Path(pool): Path<String>) -> Result<Response<Body>, ApiError> {
    let node = api.node()?.clone();
    let name = pool.clone();
    let pages = tokio::task::spawn_blocking(move || node.readmit(&name)).await.map_err(|_| ApiError::internal())??;
    Ok(json_response(&readmitted_json(&pool, pages)))
}

fn readmitted_json(pool: &str, pages: Option<u32>) -> Value {
    match pages {
        Some(pages) => json!({"pool": pool, "readmitted": pages}),
        None => {
            json!({"pool": pool, "readmitted": null, "told": "the pool's process was told; the log says how many pages it readmits"})
        }
    }
}

/// The body is a component; `x-sha256` pins it.
pub(crate) async fn replace(
    State(api): State<Api>,
    Path(kind): Path<String>,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let kind = kind_of(&kind)?;
    let node = api.node()?.clone();
    let Upload { source, pinned } = upload(&api, request).await?;
    let swapping = node.clone();
    let swap = move || swapping.policies().replace(kind, &source, pinned.as_ref());
    let old = tokio::task::spawn_blocking(swap).await.map_err(|_| ApiError::internal())??;
    Ok(changed(&node, kind, &old))
}

/// A component that came, and the digest that it must have.
pub(crate) struct Upload {
    pub(crate) source: Vec<u8>,
    pub(crate) pinned: Option<Digest>,
}

/// The body is a component; `x-sha256` pins it.
pub(crate) async fn upload(api: &Api, request: Request) -> Result<Upload, ApiError> {
    let pinned = match request.headers().get("x-sha256") {
        None => None,
        Some(value) => {
            let digest = value.to_str().ok().and_then(|text| text.parse().ok());
            Some(digest.ok_or_else(|| ApiError::bad_request("x-sha256 must be 64 hexadecimal digits."))?)
        }
    };
    let source = read_bytes(request, api.options.max_component_bytes, COMPONENT_TIMEOUT).await?;
    if source.is_empty() {
        return Err(ApiError::bad_request("The body is empty; send the component's bytes."));
    }
    Ok(Upload { source: source.into(), pinned })
}

pub(crate) async fn roll_back(State(api): State<Api>, Path(kind): Path<String>) -> Result<Response<Body>, ApiError> {
    let kind = kind_of(&kind)?;
    let node = api.node()?.clone();
    let rolling = node.clone();
    let old =
        tokio::task::spawn_blocking(move || rolling.policies().roll_back(kind)).await.map_err(|_| ApiError::internal())??;
    Ok(changed(&node, kind, &old))
}

/// Past every earlier policy, to the one in the binary.
pub(crate) async fn return_to_builtin(State(api): State<Api>, Path(kind): Path<String>) -> Result<Response<Body>, ApiError> {
    let kind = kind_of(&kind)?;
    let node = api.node()?.clone();
    let returning = node.clone();
    let old = tokio::task::spawn_blocking(move || returning.policies().return_to_builtin(kind))
        .await
        .map_err(|_| ApiError::internal())??;
    Ok(changed(&node, kind, &old))
}

/// Takes a page away from a running request, to see that its tag gives it away. The body names the request by the `x-request-id`
/// that its client sent: `{"request": "id"}`.
#[cfg(feature = "fault-injection")]
pub(crate) async fn steal_page(State(api): State<Api>, request: Request) -> Result<Response<Body>, ApiError> {
    let body = crate::body::read_json(&api.options, request).await?;
    let asked: Value = serde_json::from_str(&body).map_err(|_| ApiError::bad_request("The body is no JSON."))?;
    let id = asked.get("request").and_then(Value::as_str).unwrap_or_default();
    let sequence = api.faults.find(id).ok_or_else(|| ApiError::conflict("There is no such request."))?;
    let node = api.node()?.clone();
    let stolen = tokio::task::spawn_blocking(move || node.steal_page(sequence)).await.map_err(|_| ApiError::internal())?;
    stolen.map_err(ApiError::conflict)?;
    Ok(json_response(&json!({"stolen_from": id})))
}

pub(crate) fn kind_of(name: &str) -> Result<PolicyKind, ApiError> {
    match name {
        "route" => Ok(PolicyKind::Route),
        "schedule" => Ok(PolicyKind::Schedule),
        "precision" => Ok(PolicyKind::Precision),
        _ => Err(ApiError::not_found()),
    }
}

pub(crate) fn changed(node: &Node, kind: PolicyKind, old: &PolicyInfo) -> Response<Body> {
    let status = node.policies().status(kind);
    json_response(&json!({
        "kind": kind.to_string(), "was": info_json(old), "now": info_json(&status.info), "generation": status.generation
    }))
}

fn policies_json(node: &Node) -> Vec<Value> {
    let mut slots: Vec<Value> = node.policies().statuses().iter().map(|(kind, status)| slot_json(*kind, status)).collect();
    let afar = node.policies().schedules_afar();
    if !afar.is_empty() {
        let schedule = PolicyKind::Schedule.to_string();
        for slot in slots.iter_mut().filter(|slot| slot["kind"] == schedule.as_str()) {
            slot["processes"] = afar.iter().map(process_json).collect();
        }
    }
    slots
}

/// What really runs in an engine process. No generation: it rolled back by itself, or it refused what is in force.
fn process_json(there: &ScheduleIn) -> Value {
    let runs = there.runs.as_ref();
    json!({
        "pool": there.pool,
        "up": runs.is_some(),
        "generation": runs.and_then(|runs| runs.generation),
        "name": runs.map(|runs| &runs.info.name),
        "version": runs.map(|runs| &runs.info.version),
        "sha256": runs.map(|runs| &runs.info.sha256),
        "origin": runs.map(|runs| &runs.info.origin),
        "proven": runs.map(|runs| runs.proven),
        "failing": runs.map(|runs| runs.failing),
        "calls": runs.map(|runs| runs.calls),
        "fallbacks": runs.map(|runs| runs.fallbacks),
        "faults": runs.map(|runs| runs.faults),
        "refused": there.refused,
    })
}

fn slot_json(kind: PolicyKind, status: &SlotStatus) -> Value {
    let faults: serde_json::Map<String, Value> =
        status.total.faults.iter().map(|(kind, count)| (kind.to_string(), count.into())).collect();
    let last_error = status.last_error.as_ref().map(|(generation, text)| json!({"generation": generation, "message": text}));
    json!({
        "kind": kind.to_string(),
        "name": status.info.name,
        "version": status.info.version,
        "sha256": status.info.sha256,
        "origin": status.info.origin,
        "generation": status.generation,
        "breaker": breaker(status.breaker),
        "calls": status.total.calls,
        "fallbacks": status.total.fallbacks,
        "faults": faults,
        "feedback": beside(&status.feedback),
        "handover": beside(&status.handover),
        "swaps": status.swaps,
        "rollbacks": status.rollbacks,
        "last_error": last_error,
        "proven": status.proven,
        "way_back": status.way_back.iter().map(info_json).collect::<Vec<_>>(),
    })
}

/// Calls beside decisions.
fn beside(counters: &PolicyCounters) -> Value {
    json!({"calls": counters.calls, "ok": counters.ok})
}

fn breaker(state: BreakerState) -> &'static str {
    match state {
        BreakerState::Closed => "closed",
        BreakerState::Open { .. } => "open",
        BreakerState::HalfOpen => "half open",
    }
}

pub(crate) fn info_json(info: &PolicyInfo) -> Value {
    json!({"name": info.name, "version": info.version, "sha256": info.sha256, "origin": info.origin})
}

fn lanes_json(node: &Node) -> Vec<Value> {
    let engine = node.engine().snapshot();
    let lane = |(i, lane): (usize, millrace_node::LaneSummary)| {
        let facts = engine.lanes.get(i);
        json!({
            "name": lane.name, "precision": lane.precision, "fingerprint": lane.fingerprint,
            "healthy": facts.is_some_and(|f| f.healthy),
            "waiting": facts.map(|f| f.waiting), "running": facts.map(|f| f.running),
            "free_pages": facts.map(|f| f.free_pages), "total_pages": facts.map(|f| f.total_pages),
        })
    };
    node.lanes().into_iter().enumerate().map(lane).collect()
}

fn pools_json(node: &Node) -> Vec<Value> {
    let engine = node.engine().snapshot();
    let pool = |pool: &millrace_node::PoolFacts| {
        json!({
            "name": pool.name, "stage": pool.stage.to_string(), "healthy": pool.healthy, "steps": pool.steps,
            "step_us": pool.step_us, "page_bytes": pool.page_bytes,
            "pages": {
                "total": pool.total_pages, "free": pool.free_pages, "quarantined": pool.quarantined_pages,
                "pinned": pool.pinned_pages, "evictable": pool.evictable_pages
            },
            "suspect_pages": pool.suspect_pages, "cached_pages": pool.cached_pages,
        })
    };
    engine.pools.iter().map(pool).collect()
}

impl From<ReadmitError> for ApiError {
    fn from(error: ReadmitError) -> Self {
        match error {
            ReadmitError::UnknownPool(_) => Self::not_found(),
            ReadmitError::Engine(error) => {
                tracing::error!(%error, "suspect pages were not readmitted");
                Self::hung()
            }
        }
    }
}

impl From<SwapError> for ApiError {
    fn from(error: SwapError) -> Self {
        match error {
            SwapError::Busy
            | SwapError::NothingToRollBackTo
            | SwapError::NothingOnTrial
            | SwapError::TrialEnded(_)
            | SwapError::Recalled
            | SwapError::Elsewhere => Self::conflict(error.to_string()),
            // It has changed something, so it is no conflict.
            SwapError::Behind { .. } => Self::behind(error.to_string()),
            SwapError::Refused(_) | SwapError::RefusedIn { .. } => {
                Self { code: Some("policy_refused"), ..Self::bad_request(error.to_string()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operator's script does not take one for the other, and a client that tries again by itself leaves both alone.
    #[test]
    fn a_policy_in_force_that_one_process_lacks_is_not_said_to_be_refused() {
        let (pool, why) = ("p".to_owned(), "it is busy".to_owned());
        let behind = ApiError::from(SwapError::Behind { pool: pool.clone(), why: why.clone() });
        assert_eq!((behind.status.as_u16(), behind.code), (503, Some("policy_behind")));
        assert!(
            behind.message.contains("in force, but not yet in the engine process of pool `p`: it is busy"),
            "{}",
            behind.message
        );
        let refused = ApiError::from(SwapError::RefusedIn { pool, why });
        assert_eq!((refused.status.as_u16(), refused.code), (400, Some("policy_refused")));
    }

    #[test]
    fn a_count_that_is_not_known_is_not_said_to_be_none() {
        assert_eq!(readmitted_json("p", Some(0)), json!({"pool": "p", "readmitted": 0}));
        let told = readmitted_json("p", None);
        assert!(told["readmitted"].is_null() && told["told"].is_string(), "{told}");
    }
}
