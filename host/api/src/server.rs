//! Two listeners, each with its own door, and an end in good order.
//!
//! Only HTTP/1.1: TLS and HTTP/2 are a proxy's. It does not know routes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::door::Door;
use crate::routes;
use crate::state::Api;

/// How often a drain looks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// For what is still being written when everything else has ended.
const LAST_WRITES: Duration = Duration::from_secs(1);

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
pub(crate) enum Closing {
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
        let (options, api) = (&self.api.options, &self.api);
        let listeners = [
            (self.public, routes::public(api), options.max_connections),
            (self.admin, routes::admin(api), options.max_admin_connections),
        ];
        let open = |(listener, router, max_connections)| {
            let door = Door::new(api.clone(), router, max_connections, graceful.clone());
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
