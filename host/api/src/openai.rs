//! `POST /v1/chat/completions`, `POST /v1/completions`, `GET /v1/models`: from a body to an answer, streamed or whole.

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Response;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use futures_util::stream;
use millrace_node::{GenerateError, Generation, GenerationEvent, Node, TenantId};
use serde_json::{Value, json};

use crate::body::read_json;
use crate::chunks::{Endpoint, Writer};
use crate::error::ApiError;
use crate::json::{Limits, Parsed, Stream, Usage, parse_chat, parse_completion};
use crate::script::{Progress, Script};
use crate::sse;
use crate::state::Api;

pub(crate) async fn chat(State(api): State<Api>, request: Request) -> Result<Response<Body>, ApiError> {
    generate(&api, Endpoint::Chat, request).await
}

pub(crate) async fn completion(State(api): State<Api>, request: Request) -> Result<Response<Body>, ApiError> {
    generate(&api, Endpoint::Completion, request).await
}

pub(crate) async fn models(State(api): State<Api>) -> Result<Response<Body>, ApiError> {
    Ok(json_response(&json!({"object": "list", "data": [model_json(api.node()?)]})))
}

/// A model's id may hold slashes, as they are or escaped.
pub(crate) async fn model(State(api): State<Api>, Path(id): Path<String>) -> Result<Response<Body>, ApiError> {
    let node = api.node()?;
    if node.model().name != id {
        return Err(ApiError::model_not_found(&id));
    }
    Ok(json_response(&model_json(node)))
}

fn model_json(node: &Node) -> Value {
    let model = node.model();
    json!({
        "id": model.name, "object": "model", "created": model.created_unix_s, "owned_by": "millrace",
        "max_model_len": model.context_tokens
    })
}

pub(crate) fn json_response(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn limits(node: &Node) -> Limits {
    let limits = node.limits();
    Limits { stop_strings: limits.max_stop_strings as usize, stop_bytes: limits.max_stop_bytes as usize, ..Limits::default() }
}

async fn generate(api: &Api, endpoint: Endpoint, request: Request) -> Result<Response<Body>, ApiError> {
    // Put there by the route's access; a route without it is refused here.
    let tenant = *request.extensions().get::<TenantId>().ok_or_else(ApiError::unauthorized)?;
    #[cfg(feature = "fault-injection")]
    let tag = request.extensions().get::<crate::guard::RequestTag>().cloned();
    let body = read_json(&api.options, request).await?;
    let node = api.node()?;
    let parsed = match endpoint {
        Endpoint::Chat => parse_chat(&body, &limits(node))?,
        Endpoint::Completion => parse_completion(&body, &limits(node))?,
    };
    drop(body);
    let Parsed { model, mut request, stream, length_field } = parsed;
    let served = &node.model().name;
    if let Some(model) = model.filter(|model| model != served) {
        return Err(ApiError::model_not_found(&model));
    }
    request.tenant = tenant;
    let generation = node.submit(request).await.map_err(|error| about(endpoint, length_field, error))?;
    let started = generation.started();
    tracing::info!(
        request = started.request.0,
        fingerprint = &*started.fingerprint,
        prompt_tokens = started.prompt_tokens,
        "placed"
    );
    #[cfg(feature = "fault-injection")]
    if let Some(id) = tag.as_ref().and_then(|tag| tag.0.to_str().ok()) {
        api.faults.remember(id, started.request.0);
    }
    let writer = Writer {
        endpoint,
        id: api.answer_id(endpoint),
        created: api.unix_now_s(),
        model: served.clone(),
        fingerprint: generation.started().fingerprint.clone(),
    };
    match stream {
        Stream::Off => whole(&writer, generation).await,
        Stream::On(usage) => streamed(writer, generation, usage).await,
    }
}

/// The node speaks of `messages` and `max_tokens` where it cannot know the endpoint or which name the client used.
fn about(endpoint: Endpoint, length_field: &str, error: millrace_node::RequestError) -> ApiError {
    let mut error = ApiError::from(error);
    let name = match error.param.as_deref() {
        Some("messages") if endpoint == Endpoint::Completion => "prompt",
        Some("max_tokens") => length_field,
        _ => return error,
    };
    error.param = Some(name.to_owned());
    error
}

/// What a task that ended without saying so counts as.
const CUT: GenerateError = GenerateError::Stalled;

async fn whole(writer: &Writer, mut generation: Generation) -> Result<Response<Body>, ApiError> {
    let mut text = String::new();
    loop {
        match generation.next().await.unwrap_or(GenerationEvent::Failed(CUT)) {
            GenerationEvent::Text { delta, .. } => text.push_str(&delta),
            GenerationEvent::Finished(finished) => return Ok(json_response(&writer.whole(&text, &finished))),
            GenerationEvent::Failed(error) => return Err(error.into()),
        }
    }
}

/// Waits for the first event, so that what fails before the first byte has a status of its own.
async fn streamed(writer: Writer, mut generation: Generation, usage: Usage) -> Result<Response<Body>, ApiError> {
    let first = generation.next().await.unwrap_or(GenerationEvent::Failed(CUT));
    if let GenerationEvent::Failed(error) = first {
        return Err(error.into());
    }
    let script = Script::new(writer, usage, generation.started().prompt_tokens);
    Ok(sse::response(stream::unfold(Streaming { script, generation: Some(generation), first: Some(first) }, Streaming::next)))
}

/// A stream under way; none left once its last frames are out.
struct Streaming {
    script: Script,
    generation: Option<Generation>,
    first: Option<GenerationEvent>,
}

impl Streaming {
    async fn next(mut self) -> Option<(String, Self)> {
        let event = match self.first.take() {
            Some(event) => event,
            None => self.generation.as_mut()?.next().await.unwrap_or(GenerationEvent::Failed(CUT)),
        };
        let (text, progress) = self.script.write(event);
        if progress == Progress::Over {
            self.generation = None;
        }
        Some((text, self))
    }
}
