//! Two listeners: connections within bounds of number, time and size, and an end in good order.
//!
//! Only HTTP/1.1: TLS and HTTP/2 are a proxy's. It does not know routes.

use std::io;
use std::net::SocketAddr;
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
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::gate::{Bounds, Gate, MAX_HEADERS, Turn, until_answered};
use crate::routes;
use crate::stall::StallGuard;
use crate::state::Api;

/// How often a drain looks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// For what is still being written when everything else has ended.
const LAST_WRITES: Duration = Duration::from_secs(1);
/// For the read buffer of a connection: bodies come through it as well.
const MIN_BUFFER_BYTES: usize = 64 << 10;
/// After a failed accept, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bound listeners that do not answer yet.
pub struct Server {
    api: Api,
    public: TcpListener,
    admin: TcpListener,
}

/// A port that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose another address or end what uses it")]
pub struct BindError {
    pub address: SocketAddr,
    pub source: io::Error,
}

/// Listeners that answer.
pub struct Running {
    api: Api,
    closing: watch::Sender<Closing>,
    doors: Vec<JoinHandle<()>>,
    graceful: Arc<GracefulShutdown>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    Yes,
}

impl Server {
    /// # Errors
    /// Where an address cannot be had.
    pub async fn bind(api: Api, public: SocketAddr, admin: SocketAddr) -> Result<Self, BindError> {
        Ok(Self { api, public: listen(public).await?, admin: listen(admin).await? })
    }

    /// Where the public listener is.
    ///
    /// # Errors
    /// Where the operating system does not say.
    pub fn public_addr(&self) -> io::Result<SocketAddr> {
        self.public.local_addr()
    }

    /// Where the admin listener is.
    ///
    /// # Errors
    /// Where the operating system does not say.
    pub fn admin_addr(&self) -> io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Starts to answer.
    pub fn start(self) -> Running {
        let (closing, closed) = watch::channel(Closing::No);
        let graceful = Arc::new(GracefulShutdown::new());
        let slots = Arc::new(Semaphore::new(self.api.options.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
        let listeners = [(self.public, routes::public(&self.api)), (self.admin, routes::admin(&self.api))];
        let open = |(listener, router)| {
            let door = Door { api: self.api.clone(), router, slots: slots.clone(), graceful: graceful.clone() };
            tokio::spawn(door.accept(listener, closed.clone()))
        };
        let doors = listeners.into_iter().map(open).collect();
        Running { api: self.api, closing, doors, graceful }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| BindError { address, source })
}

impl Running {
    /// Takes no new requests, waits for those that run, then closes. What still runs after `timeout` is told so and cut.
    /// Meanwhile probes and new requests are answered, with 503.
    pub async fn drain(self, timeout: Duration) {
        let until = Instant::now() + timeout;
        self.api.drain();
        while self.api.in_flight() > 0 && Instant::now() < until {
            sleep(DRAIN_LOOK).await;
        }
        let left = self.api.in_flight();
        if left > 0 {
            tracing::warn!(left, "the drain time is over; the requests that still run are ended");
        }
        if let Some(node) = self.api.loaded() {
            node.stop();
        }
        self.closing.send_replace(Closing::Yes);
        for door in self.doors {
            // A door that panicked is closed as well.
            let _ = door.await;
        }
        let Some(graceful) = Arc::into_inner(self.graceful) else { return };
        let rest = until.saturating_duration_since(Instant::now()).max(LAST_WRITES);
        if tokio::time::timeout(rest, graceful.shutdown()).await.is_err() {
            tracing::warn!("some clients did not read their last bytes in time");
        }
    }
}

/// One listener's way in.
struct Door {
    api: Api,
    router: Router,
    slots: Arc<Semaphore>,
    graceful: Arc<GracefulShutdown>,
}

impl Door {
    async fn accept(self, listener: TcpListener, mut closed: watch::Receiver<Closing>) {
        loop {
            // The place comes first: who finds none waits in the backlog and costs nothing.
            let next = async {
                let place = self.slots.clone().acquire_owned().await;
                (place, listener.accept().await)
            };
            let accepted = tokio::select! {
                _ = closed.wait_for(|c| *c == Closing::Yes) => return,
                accepted = next => accepted,
            };
            let (Ok(place), Ok((stream, _))) = accepted else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            if let Some(node) = self.api.loaded() {
                node.metrics().http_connections.add(1);
            }
            let serving = serve(stream, self.router.clone(), self.api.clone(), self.graceful.watcher());
            tokio::spawn(async move {
                serving.await;
                drop(place);
            });
        }
    }
}

/// One connection to its end. Dropping its response body is how a client that went away is noticed.
async fn serve(stream: TcpStream, router: Router, api: Api, watcher: Watcher) {
    // Tokens are small and each is to arrive at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let options = &api.options;
    let bounds = Bounds { head_bytes: options.max_header_bytes, headers: MAX_HEADERS, timeout: options.header_timeout };
    let turn = Arc::new(Turn::default());
    let gate = Gate::new(StallGuard::new(stream, options.write_timeout), bounds, turn.clone());
    let router = TowerToHyperService::new(router);
    let answer = |mut request: Request<Incoming>| {
        request.extensions_mut().insert(bounds);
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
