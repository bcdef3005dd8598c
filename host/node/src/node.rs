//! The node: one deployment, running. Everything that a listener or a command asks for goes through it.
//!
//! It does not know HTTP, JSON or TOML.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_config::Limits;
use millrace_core::{Clock, PoolId};
use millrace_tokenize::{ChatTemplate, Tokenizer};

use tokio::sync::watch;

use crate::admission::Admission;
use crate::engine_process::HEARTBEAT_GRACE_US;
use crate::engines::Engines;
use crate::error::ReadmitError;
use crate::lanes::Lanes;
use crate::metrics::{LaneLabels, Metrics, Scrape};
use crate::outcomes::Outcomes;
use crate::policies::Policies;
use crate::scopes::Scopes;
use crate::sessions::Sessions;
use crate::tenants::KeyRing;

/// A running deployment. Cheap to clone.
#[derive(Clone)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

/// What a node consists of.
pub(crate) struct Inner {
    pub(crate) model: ServedModel,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// None: the checkpoint has none, so chat is refused.
    pub(crate) template: Option<Arc<ChatTemplate>>,
    pub(crate) eos: Vec<u32>,
    /// Bytes of the longest token: a lower bound for the tokens of a text before it is tokenized.
    pub(crate) longest_token_bytes: usize,
    pub(crate) lanes: Lanes,
    pub(crate) scopes: Scopes,
    pub(crate) sessions: Sessions,
    pub(crate) page_tokens: u32,
    pub(crate) keys: KeyRing,
    /// Per tenant: output tokens of one request.
    pub(crate) output_limits: Vec<u32>,
    pub(crate) tenant_names: Vec<String>,
    pub(crate) limits: Limits,
    pub(crate) request_timeout: Duration,
    pub(crate) admission: Arc<Admission>,
    pub(crate) engine: Engines,
    pub(crate) policies: Policies,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) outcomes: Outcomes,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: crate::ids::Ids,
    pub(crate) draining: AtomicBool,
    /// How long the route policy may hold a request.
    pub(crate) max_held: Duration,
    /// Told to requests that are in no engine yet.
    pub(crate) stop: watch::Sender<bool>,
}

/// The served model as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    /// The id that clients send.
    pub name: String,
    /// Tokens of one sequence, prompt and answer together.
    pub context_tokens: u32,
    /// When this process loaded it, in seconds since 1970.
    pub created_unix_s: u64,
    /// Identifies the weights, in hex.
    pub digest: String,
}

/// A lane in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneSummary {
    pub name: String,
    /// `int8+kv-bf16/int4+kv-fp8`
    pub precision: String,
    pub fingerprint: String,
}

impl Node {
    pub fn model(&self) -> &ServedModel {
        &self.inner.model
    }

    pub fn keys(&self) -> &KeyRing {
        &self.inner.keys
    }

    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    pub fn engine(&self) -> &Engines {
        &self.inner.engine
    }

    pub fn policies(&self) -> &Policies {
        &self.inner.policies
    }

    pub fn lanes(&self) -> Vec<LaneSummary> {
        let summary = |lane: &crate::lanes::Lane| LaneSummary {
            name: lane.name.to_string(),
            precision: lane.precision.to_string(),
            fingerprint: lane.fingerprint.to_string(),
        };
        self.inner.lanes.rows.iter().map(summary).collect()
    }

    pub fn tenant_names(&self) -> &[String] {
        &self.inner.tenant_names
    }

    /// Takes requests: not draining, and at least one lane works.
    pub fn is_ready(&self) -> bool {
        !self.inner.draining.load(Ordering::Acquire) && self.inner.engine.snapshot().lanes.iter().any(|lane| lane.healthy)
    }

    /// The engine's loop still turns, that of this process: engine processes are started again by themselves.
    pub fn is_alive(&self) -> bool {
        let taken_us = self.inner.engine.snapshot().taken_us;
        !self.inner.engine.has_ended() && self.inner.clock.now_us().saturating_sub(taken_us) < HEARTBEAT_GRACE_US
    }

    /// Waiting and running requests.
    pub fn in_flight(&self) -> u32 {
        self.inner.admission.waiting().saturating_add(self.inner.admission.running())
    }

    /// Takes no new requests from now on; those that are in go on.
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::Release);
        self.inner.engine.drain();
    }

    /// Ends the engine; requests that still run fail.
    pub fn stop(&self) {
        self.drain();
        self.inner.stop.send_replace(true);
        self.inner.engine.stop();
    }

    /// Takes the pages of a pool back into use that a tag mismatch had put under suspicion; tells how many. `None`: the pool is a
    /// process of its own; it was told, and the log will say how many. For an operator who knows what was wrong. Waits for the
    /// engine: not for the runtime's threads.
    ///
    /// # Errors
    /// Where there is no such pool or the engine does not answer.
    pub fn readmit(&self, pool: &str) -> Result<Option<u32>, ReadmitError> {
        let pools = &self.inner.engine.snapshot().pools;
        let row = pools.iter().position(|facts| facts.name == pool).and_then(|row| u32::try_from(row).ok());
        let row = row.ok_or_else(|| ReadmitError::UnknownPool(pool.to_owned()))?;
        let readmitted = self.inner.engine.readmit(PoolId(row), pool)?;
        match readmitted {
            Some(pages) => tracing::info!(target: "millrace::audit", pool, pages, "suspect pages readmitted"),
            None => tracing::info!(target: "millrace::audit", pool, "the pool's process was told to readmit suspect pages"),
        }
        Ok(readmitted)
    }

    /// Takes a page away from a running sequence behind its owner's back, as a bug would. `sequence` is [`Started::request`]'s number.
    ///
    /// # Errors
    /// Where the sequence holds no page that could be taken.
    ///
    /// [`Started::request`]: crate::Started::request
    #[cfg(feature = "fault-injection")]
    pub fn steal_page(&self, sequence: u64) -> Result<(), String> {
        tracing::warn!(target: "millrace::audit", sequence, "fault injection: taking a page away");
        self.inner.engine.steal_page(millrace_core::SeqId(sequence))
    }

    /// Prometheus text 0.0.4.
    pub fn render_metrics(&self) -> String {
        let inner = &self.inner;
        let lanes: Vec<LaneLabels> =
            self.lanes().into_iter().map(|lane| LaneLabels { name: lane.name, precision: lane.precision }).collect();
        let scrape = Scrape {
            model: &inner.model.name,
            lanes: &lanes,
            page_tokens: inner.page_tokens,
            slots: inner.policies.slot_labels(),
            outcomes_dropped: inner.outcomes.dropped(),
            engine: &inner.engine.snapshot(),
            processes: inner.engine.processes(),
            waiting: inner.admission.waiting(),
            running: inner.admission.running(),
            ready: u8::from(self.is_ready()),
            uptime_s: inner.clock.now_us() as f64 / 1e6,
        };
        inner.metrics.render(&scrape)
    }
}

/// Seconds since 1970; 0 on a machine whose clock is before that.
pub(crate) fn unix_now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
