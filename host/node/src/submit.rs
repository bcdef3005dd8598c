//! The way of a request into an engine: a place in the queue, tokens, precision, lane, job.
//!
//! The place comes first, so that a flood costs nothing but refusals; what takes processor time runs off the runtime's threads.

use std::sync::Arc;
use std::time::Duration;

use millrace_core::{LaneId, RequestId, SamplingParams, SeqId, TenantId};
use millrace_engine::{Event, Job, SubmitError};
use millrace_policy::{Ask, Choice, Decision, RouteRequest, kind};
use millrace_tokenize::Detokenizer;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::admission::{NoPlace, Place};
use crate::engines::Engines;
use crate::error::NotTaken;
use crate::generation::{Generation, Parts, Wire};
use crate::held::Held;
use crate::ids::random_u64;
use crate::lanes::Lane;
use crate::metrics::{Metrics, Outcome};
use crate::node::{Inner, Node};
use crate::outcomes::{Deciders, Told};
use crate::prompt::token_count;
use crate::request::{ContextLength, GenerateRequest, PolicyGenerations, RequestError, Started, TokenCount};
use crate::stopwatch::Stopwatch;

/// How long a reader may leave its answer lying before it is given up.
const STALL: Duration = Duration::from_secs(60);

/// What an engine process needs to be back, about: loading weights is the most of it. Where an engine within this process failed,
/// another server may answer sooner, or this one once it was started again.
const RESTART_MS: u64 = 5_000;

/// What policies are asked about, and what the engine gets once they have answered.
struct Asked {
    request: RequestId,
    seq: SeqId,
    tenant: TenantId,
    prompt: Arc<[u32]>,
    sampling: SamplingParams,
    priority: i32,
    session: Option<u64>,
    streaming: bool,
    /// Tokens that a lane has to hold for it to be worth a try.
    needed: u32,
    deadline_us: u64,
}

/// A job that is in an engine. Whoever drops it without taking it over aborts it.
struct Placed {
    lane: Lane,
    policies: PolicyGenerations,
    told: Told,
    tokens: Option<mpsc::UnboundedReceiver<Event>>,
    seq: SeqId,
    engine: Engines,
}

impl Drop for Placed {
    fn drop(&mut self) {
        if self.tokens.is_some() {
            self.engine.abort(self.seq);
        }
    }
}

/// Counts a client that went away while its request was still on its way into an engine; from there on the request's task counts.
struct Leaving<'a>(Option<&'a Metrics>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.0 {
            metrics.ended(Outcome::Abort);
        }
    }
}

/// Whether the route policy may hold the request.
#[derive(Clone, Copy)]
enum Holds {
    Taken,
    Over,
}

enum NotPlaced {
    /// The route policy wants to be asked again after so many milliseconds.
    Hold(u32),
    Refused(RequestError),
}

impl From<RequestError> for NotPlaced {
    fn from(error: RequestError) -> Self {
        Self::Refused(error)
    }
}

impl Node {
    /// Takes a request. Dropping what this returns, or the future itself, takes it out again.
    ///
    /// # Errors
    /// Where the request cannot be served now or ever; nothing is left of it then.
    pub async fn submit(&self, request: GenerateRequest) -> Result<Generation, RequestError> {
        let mut leaving = Leaving(Some(&self.inner.metrics));
        let result = self.try_submit(request).await;
        leaving.0 = None;
        if result.is_err() {
            self.inner.metrics.refused.add(1);
        }
        result
    }

    async fn try_submit(&self, request: GenerateRequest) -> Result<Generation, RequestError> {
        let arrived = Instant::now();
        if !self.is_ready() {
            let draining = self.inner.draining.load(std::sync::atomic::Ordering::Acquire);
            return Err(if draining { RequestError::Draining } else { self.inner.out_of_service() });
        }
        let mut place = self.inner.enter(request.tenant)?;
        let deadline = arrived + self.inner.timeout(&request);
        let stop = request.stop.clone();
        let placed = timeout_at(deadline, self.inner.clone().prepare(request, &mut place));
        let late = || self.inner.busy("The request waited for a lane until its time was up.");
        // A request that is in no engine yet, held by the route policy perhaps, is not ended by the engine's end.
        let (asked, mut placed) = tokio::select! {
            placed = placed => placed.map_err(|_| late())??,
            () = self.inner.stopped() => return Err(RequestError::Draining),
        };
        let started = placed.started(&asked);
        let tokens = placed.tokens.take().ok_or_else(|| RequestError::Internal("a job without a wire".to_owned()))?;
        let parts = Parts {
            started,
            seq: asked.seq,
            engine: self.inner.engine.clone(),
            place,
            tokens,
            detokenizer: Detokenizer::new(self.inner.tokenizer.clone()),
            stop,
            watch: Stopwatch::new(self.inner.metrics.clone(), arrived, (self.inner.outcomes.clone(), placed.told)),
            deadline,
            stall: STALL,
        };
        Ok(parts.spawn())
    }
}

impl Inner {
    /// Returns once the node is stopped.
    async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        if stop.wait_for(|stopped| *stopped).await.is_err() {
            // Nobody is left to stop it.
            std::future::pending::<()>().await;
        }
    }

    fn enter(&self, tenant: TenantId) -> Result<Place, RequestError> {
        self.admission.enter(tenant).map_err(|no| match no {
            NoPlace::QueueFull => RequestError::QueueFull { retry_after_ms: self.retry_after_ms() },
            NoPlace::Tenant(limit) => RequestError::TenantLimit { limit, retry_after_ms: self.retry_after_ms() },
        })
    }

    /// The time in which about one waiting request starts, within the configured bounds.
    fn retry_after_ms(&self) -> u64 {
        let slowest_us = self.engine.snapshot().lanes.iter().map(|l| u64::from(l.ttft_us)).max().unwrap_or(0);
        self.within_retry_bounds(slowest_us / 1000)
    }

    fn within_retry_bounds(&self, ms: u64) -> u64 {
        let low = self.limits.retry_after_min_ms;
        ms.clamp(low, self.limits.retry_after_max_ms.max(low))
    }

    fn busy(&self, message: &str) -> RequestError {
        RequestError::Refused { status: 503, retry_after_ms: Some(self.retry_after_ms()), message: message.to_owned() }
    }

    fn out_of_service(&self) -> RequestError {
        RequestError::Unavailable { retry_after_ms: self.within_retry_bounds(RESTART_MS) }
    }

    /// Tokens, then a lane; asks again as long as the route policy holds.
    async fn prepare(self: Arc<Self>, request: GenerateRequest, place: &mut Place) -> Result<(Arc<Asked>, Placed), RequestError> {
        let inner = self.clone();
        let asked = Arc::new(off_runtime(move || inner.ask(request)).await??);
        place.may_run().await;
        let mut held = Held::new(self.max_held);
        loop {
            let (inner, again, holds) = (self.clone(), asked.clone(), if held.is_over() { Holds::Over } else { Holds::Taken });
            match off_runtime(move || inner.place(&again, holds)).await? {
                Ok(placed) => return Ok((asked, placed)),
                Err(NotPlaced::Refused(error)) => return Err(error),
                Err(NotPlaced::Hold(ms)) => held.wait(ms).await,
            }
        }
    }

    /// How long the answer may take.
    fn timeout(&self, request: &GenerateRequest) -> Duration {
        request.deadline_ms.map_or(self.request_timeout, |ms| self.request_timeout.min(Duration::from_millis(ms)))
    }

    fn ask(&self, request: GenerateRequest) -> Result<Asked, RequestError> {
        let timeout_us = u64::try_from(self.timeout(&request).as_micros()).unwrap_or(u64::MAX);
        self.check_ids("stop_token_ids", &request.stop_token_ids)?;
        let prompt = self.encode(&request.prompt, request.max_tokens)?;
        let tenant = request.tenant.0 as usize;
        let max_tokens = self.output_tokens(tenant, prompt.len(), request.max_tokens)?;
        let mut stop_tokens = request.stop_token_ids;
        if !request.ignore_eos {
            stop_tokens.extend_from_slice(&self.eos);
        }
        // Special tokens have no text, so one that is named as a stop string has to be found as a token.
        stop_tokens.extend(request.stop.iter().filter_map(|stop| self.tokenizer.special_id(stop)));
        let draw = &request.sampling;
        let sampling = SamplingParams {
            temperature: draw.temperature.unwrap_or(1.0),
            top_p: draw.top_p.unwrap_or(1.0),
            top_k: draw.top_k,
            min_p: draw.min_p.unwrap_or(0.0),
            seed: draw.seed.map_or_else(random_u64, Ok).map_err(RequestError::Internal)?,
            max_tokens,
            stop_tokens,
        };
        let (id, seq) = self.ids.next();
        let prompt_tokens = token_count(prompt.len());
        Ok(Asked {
            request: id,
            seq,
            tenant: request.tenant,
            sampling,
            priority: request.priority,
            session: request.session.map(|session| self.sessions.number(request.tenant, &session)),
            streaming: request.streaming,
            needed: prompt_tokens.saturating_add(request.max_tokens.unwrap_or(1)),
            deadline_us: self.clock.now_us().saturating_add(timeout_us),
            prompt,
        })
    }

    /// Asks both policies and hands the job to the engine.
    fn place(&self, asked: &Asked, holds: Holds) -> Result<Placed, NotPlaced> {
        let engine = self.engine.snapshot();
        let tenant = asked.tenant.0 as usize;
        let offer = self.lanes.offer(tenant, &engine);
        if offer.rows.is_empty() {
            return Err(self.out_of_service().into());
        }
        let tenants = self.lanes.tenants(&self.admission, &engine);
        let now_us = self.clock.now_us();
        let answer = self.policies.precision().choose(now_us, &[self.precision_ask(asked)], &offer.table, &tenants);
        let choice = answer.value.first().copied().unwrap_or(Choice { precision: 0, may_downgrade: false, reason: 0 });
        let hits = self.prefix_hits(asked);
        let (mut full, mut room) = (None, 0);
        for precision_row in offer.to_try(choice) {
            let table = self.lanes.table(tenant, precision_row, asked.needed, &engine);
            let table = hits.iter().fold(table, |table, hits| table.with(kind::PREFIX_HIT_TOKENS, hits.clone()));
            room = room.max(self.lanes.capacity_tokens(tenant, precision_row));
            if table.column(kind::ELIGIBLE).is_none_or(|lanes| !lanes.contains(&1)) {
                continue;
            }
            let (request, slot) = (self.route_request(asked, now_us), self.policies.route());
            let route = match holds {
                Holds::Taken => slot.decide(now_us, &request, &table, &tenants),
                Holds::Over => slot.decide_at_last(now_us, &request, &table, &tenants),
            };
            let forward = match route.value {
                Decision::Forward(forward) => forward,
                Decision::Hold(ms) => return Err(NotPlaced::Hold(ms)),
                Decision::Refuse(refusal) => {
                    return Err(NotPlaced::Refused(RequestError::Refused {
                        status: refusal.status,
                        retry_after_ms: refusal.retry_after_ms.map(u64::from),
                        message: refusal.message,
                    }));
                }
            };
            let policies = PolicyGenerations {
                precision: answer.generation,
                route: route.generation,
                schedule: self.policies.schedule().generation(),
            };
            let by = Deciders {
                precision: answer.fault.is_none().then_some((answer.generation, choice.reason)),
                route: route.fault.is_none().then_some((route.generation, forward.reason)),
                schedule: policies.schedule,
            };
            for row in forward.lanes {
                let Some(lane) = self.lanes.rows.get(row as usize) else { continue };
                let priority = forward.priority.unwrap_or(asked.priority);
                match self.hand_in(asked, LaneId(row), priority) {
                    Ok(tokens) => {
                        let told = told(asked, (row, lane), priority, by);
                        return Ok(self.placed(asked, (lane, told), policies, tokens));
                    }
                    // Another lane may have room, or be up.
                    Err(error @ (RequestError::QueueFull { .. } | RequestError::Unavailable { .. })) => full = Some(error),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let never_fits = (room < asked.needed).then(|| too_long(asked, room.min(self.model.context_tokens)));
        Err(full.or(never_fits).unwrap_or_else(|| self.out_of_service()).into())
    }

    /// By lane, what it keeps of the beginning of this prompt for its tenant or trust group; none where no lane keeps any.
    fn prefix_hits(&self, asked: &Asked) -> Option<Vec<u32>> {
        let hit = |lane| {
            let scope = self.scopes.of(asked.tenant, lane)?;
            self.engine.prefix_hit_tokens(lane, scope, &asked.prompt)
        };
        let hits: Vec<Option<u32>> = (0..).map(LaneId).take(self.lanes.rows.len()).map(hit).collect();
        let any = hits.iter().any(Option::is_some);
        any.then(|| hits.into_iter().map(|hit| hit.unwrap_or(u32::MAX)).collect())
    }

    fn placed(
        &self,
        asked: &Asked,
        (lane, told): (&Lane, Told),
        policies: PolicyGenerations,
        tokens: mpsc::UnboundedReceiver<Event>,
    ) -> Placed {
        Placed { lane: lane.clone(), policies, told, tokens: Some(tokens), seq: asked.seq, engine: self.engine.clone() }
    }

    fn hand_in(&self, asked: &Asked, lane: LaneId, priority: i32) -> Result<mpsc::UnboundedReceiver<Event>, RequestError> {
        let (wire, tokens) = mpsc::unbounded_channel();
        let job = Job {
            seq: asked.seq,
            request: asked.request,
            lane,
            tenant: asked.tenant,
            priority,
            deadline_us: Some(asked.deadline_us),
            prompt: asked.prompt.clone(),
            scope: self.scopes.of(asked.tenant, lane),
            sampling: asked.sampling.clone(),
            events: Box::new(Wire(wire)),
        };
        match self.engine.submit(job) {
            Ok(()) => Ok(tokens),
            Err(NotTaken::Down { .. }) => Err(self.out_of_service()),
            Err(NotTaken::Refused(error)) => Err(self.not_taken(asked, error)),
        }
    }

    fn not_taken(&self, asked: &Asked, error: SubmitError) -> RequestError {
        match error {
            SubmitError::QueueFull { retry_after_ms, .. } => {
                RequestError::QueueFull { retry_after_ms: self.within_retry_bounds(retry_after_ms) }
            }
            SubmitError::ShuttingDown => RequestError::Draining,
            SubmitError::TooLong { limit, .. } => too_long(asked, token_count(limit)),
            error @ (SubmitError::UnknownLane(_) | SubmitError::EmptyPrompt) => RequestError::Internal(error.to_string()),
        }
    }

    fn precision_ask(&self, asked: &Asked) -> Ask {
        Ask {
            tenant: asked.tenant,
            model: self.model.name.clone(),
            prompt_tokens: token_count(asked.prompt.len()),
            max_output_tokens: asked.sampling.max_tokens,
            priority: asked.priority,
            streaming: asked.streaming,
            attributes: Vec::new(),
        }
    }

    fn route_request(&self, asked: &Asked, now_us: u64) -> RouteRequest {
        RouteRequest {
            tenant: asked.tenant,
            model: self.model.name.clone(),
            session: asked.session,
            prompt_tokens: token_count(asked.prompt.len()),
            max_output_tokens: asked.sampling.max_tokens,
            priority: asked.priority,
            slack_us: Some(u32::try_from(asked.deadline_us.saturating_sub(now_us)).unwrap_or(u32::MAX - 1)),
            streaming: asked.streaming,
            attributes: Vec::new(),
        }
    }
}

impl Placed {
    fn started(&self, asked: &Asked) -> Started {
        Started {
            request: asked.request,
            lane: self.lane.name.clone(),
            precision: self.lane.precision,
            fingerprint: self.lane.fingerprint.clone(),
            prompt_tokens: token_count(asked.prompt.len()),
            policies: self.policies,
        }
    }
}

fn told(asked: &Asked, (row, lane): (u32, &Lane), priority: i32, by: Deciders) -> Told {
    Told {
        tenant: asked.tenant,
        priority,
        lane: row,
        precision: token_count(lane.precision_row),
        prompt_tokens: token_count(asked.prompt.len()),
        max_output_tokens: asked.sampling.max_tokens,
        by,
    }
}

/// What was asked for is more than any lane holds that may serve it.
fn too_long(asked: &Asked, limit: u32) -> RequestError {
    let prompt = token_count(asked.prompt.len());
    let completion = asked.needed.saturating_sub(prompt);
    RequestError::ContextLength(ContextLength { limit, prompt: TokenCount::Exactly(prompt), completion })
}

/// Runs what takes processor time on a thread of its own.
async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, RequestError> {
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
        .await
        .map_err(|error| RequestError::Internal(format!("a request's preparation ended early: {error}")))
}
