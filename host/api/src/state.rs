//! What every handler has at hand: the node once it is there, the listener's options, and ids for answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_node::{Digest, Node};

use crate::chunks::Endpoint;
use crate::error::ApiError;

/// Bounds of the listeners.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    pub max_body_bytes: usize,
    /// Of all headers of a request together.
    pub max_header_bytes: usize,
    pub header_timeout: Duration,
    pub body_timeout: Duration,
    /// How long a write may wait for a client that does not read.
    pub write_timeout: Duration,
    /// On the public listener, beside [`SPARE_CONNECTIONS`](crate::SPARE_CONNECTIONS) for probes.
    pub max_connections: usize,
    /// On the admin listener, beside as many spare ones.
    pub max_admin_connections: usize,
    /// Sites whose pages may send requests and read the answers: `https://chat.example.com`.
    pub allowed_origins: Vec<String>,
    /// Of a policy's component.
    pub max_component_bytes: usize,
    /// SHA-256 of the key of the admin listener; `None`: anyone who reaches it.
    pub admin_key: Option<Digest>,
}

/// Shared by all handlers; cheap to clone.
#[derive(Clone)]
pub struct Api(Arc<Shared>);

/// What [`Api`] shares.
pub struct Shared {
    pub(crate) options: ApiOptions,
    node: OnceLock<Node>,
    draining: AtomicBool,
    /// Random per process, so that ids of answers do not repeat after a restart.
    boot: u64,
    answers: AtomicU64,
    #[cfg(feature = "fault-injection")]
    pub(crate) faults: crate::faults::Targets,
}

impl std::ops::Deref for Api {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Api {
    /// An API without a node yet: it is alive and not ready.
    ///
    /// # Errors
    /// Where the operating system gives no random bytes.
    pub fn new(options: ApiOptions) -> Result<Self, getrandom::Error> {
        Ok(Self(Arc::new(Shared {
            options,
            node: OnceLock::new(),
            draining: AtomicBool::new(false),
            boot: getrandom::u64()?,
            answers: AtomicU64::new(0),
            #[cfg(feature = "fault-injection")]
            faults: crate::faults::Targets::default(),
        })))
    }
}

impl Shared {
    /// From now on the API serves this node. A second one is not taken.
    pub fn serve(&self, node: Node) {
        if self.node.set(node).is_err() {
            tracing::error!("the API was given a second node; it stays with the first");
        }
    }

    /// # Errors
    /// 503 while there is none.
    pub(crate) fn node(&self) -> Result<&Node, ApiError> {
        match self.node.get() {
            Some(_) if self.is_draining() => Err(ApiError::draining()),
            Some(node) => Ok(node),
            None => Err(ApiError::loading()),
        }
    }

    /// The node, also while draining.
    pub(crate) fn loaded(&self) -> Option<&Node> {
        self.node.get()
    }

    /// Takes no new requests from now on, and says so to whoever asks about readiness.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        if let Some(node) = self.node.get() {
            node.drain();
        }
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Requests that have not ended.
    pub(crate) fn in_flight(&self) -> u32 {
        self.node.get().map_or(0, Node::in_flight)
    }

    /// A number that no other answer of this or an earlier process has, for all practical purposes.
    pub(crate) fn fresh_id(&self) -> String {
        let count = self.answers.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}{count:012x}", self.boot)
    }

    pub(crate) fn answer_id(&self, endpoint: Endpoint) -> String {
        let prefix = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completion => "cmpl",
        };
        format!("{prefix}-{}", self.fresh_id())
    }

    pub(crate) fn unix_now_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }
}
