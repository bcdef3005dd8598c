//! The way in at one listener: how many connections there may be at a time, and that probes have an answer when all are taken.
//! Knows no routes.
//!
//! A connection beyond the bound is *spare*: it may send one request, for a route that is open to everybody, and soon. While all
//! spare ones are taken too, the newest takes the oldest one's place. So a flood, silent or not, costs the server so many sockets,
//! and a probe that asks at once still has its answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::gate::{Announced, Bounds, Gate, MAX_HEADERS, Turn, until_answered};
use crate::server::Closing;
use crate::stall::StallGuard;
use crate::state::Api;

/// Connections of a listener beyond its bound, for probes.
pub const SPARE_CONNECTIONS: usize = 32;
/// What a spare connection has at most for its headers: probes send theirs at once.
const SPARE_TIMEOUT: Duration = Duration::from_secs(1);
/// For the read buffer of a connection: bodies come through it as well.
const MIN_BUFFER_BYTES: usize = 64 << 10;
/// After a failed accept, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Marks the request of a spare connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spare;

/// One listener's way in.
pub(crate) struct Door {
    api: Api,
    router: Router,
    places: Arc<Semaphore>,
    /// Spare connections, the oldest first.
    spare: VecDeque<AbortHandle>,
    graceful: Arc<GracefulShutdown>,
}

impl Door {
    pub(crate) fn new(api: Api, router: Router, max_connections: usize, graceful: Arc<GracefulShutdown>) -> Self {
        let places = Arc::new(Semaphore::new(max_connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { api, router, places, spare: VecDeque::new(), graceful }
    }

    pub(crate) async fn accept(mut self, listener: TcpListener, mut closed: watch::Receiver<Closing>) {
        loop {
            let accepted = tokio::select! {
                _ = closed.wait_for(|c| *c == Closing::Yes) => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.admit(stream),
                Err(error) => {
                    tracing::debug!(%error, "accept");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn admit(&mut self, stream: TcpStream) {
        let metrics = self.api.loaded().map(|node| node.metrics());
        metrics.inspect(|m| m.http_connections.add(1));
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            let serving = self.connection(None).serve(stream, self.graceful.watcher());
            tokio::spawn(async move {
                serving.await;
                drop(place);
            });
            return;
        }
        metrics.inspect(|m| m.http_spare_connections.add(1));
        self.spare.retain(|connection| !connection.is_finished());
        if self.spare.len() >= SPARE_CONNECTIONS
            && let Some(oldest) = self.spare.pop_front()
        {
            oldest.abort();
        }
        let serving = self.connection(Some(Spare)).serve(stream, self.graceful.watcher());
        self.spare.push_back(tokio::spawn(serving).abort_handle());
    }

    fn connection(&self, spare: Option<Spare>) -> Connection {
        Connection { api: self.api.clone(), router: self.router.clone(), spare }
    }
}

/// One connection.
struct Connection {
    api: Api,
    router: Router,
    spare: Option<Spare>,
}

impl Connection {
    /// To its end. Dropping its response body is how a client that went away is noticed.
    async fn serve(self, stream: TcpStream, watcher: Watcher) {
        // Tokens are small and each is to arrive at once.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let (options, spare) = (&self.api.options, self.spare);
        let timeout = spare.map_or(options.header_timeout, |_| options.header_timeout.min(SPARE_TIMEOUT));
        let bounds = Bounds { head_bytes: options.max_header_bytes, headers: MAX_HEADERS, timeout };
        let (turn, announced) = (Arc::new(Turn::default()), Arc::new(Announced::default()));
        let gate = Gate::new(StallGuard::new(stream, options.write_timeout), bounds, turn.clone(), announced.clone());
        let router = TowerToHyperService::new(self.router);
        let answer = |mut request: Request<Incoming>| {
            request.extensions_mut().insert(bounds);
            request.extensions_mut().insert(announced.clone());
            if let Some(spare) = spare {
                request.extensions_mut().insert(spare);
            }
            let (answering, turn) = (router.call(request), turn.clone());
            async move { answering.await.map(|answer| until_answered(turn, answer)) }
        };
        // The gate has judged heads and their time already; what hyper bounds here are trailers and its own buffer.
        let connection = http1::Builder::new()
            .header_read_timeout(None)
            .max_headers(MAX_HEADERS)
            .max_header_size(options.max_header_bytes)
            .max_buf_size(options.max_header_bytes.max(MIN_BUFFER_BYTES))
            .serve_connection(TokioIo::new(gate), service_fn(answer));
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}
