//! Whose turn it is on a connection: the client's to ask, or the server's to answer. Knows neither question nor answer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Response;
use futures_util::task::AtomicWaker;
use hyper::body::{Frame, SizeHint};

/// Shared by the gate, which gives the turn to the server, and the answer, whose end gives it back.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    servers: AtomicBool,
    client: AtomicWaker,
}

impl Turn {
    pub(super) fn to_server(&self) {
        self.servers.store(true, Ordering::Release);
    }

    fn to_client(&self) {
        self.servers.store(false, Ordering::Release);
        self.client.wake();
    }

    /// Whether it is the client's; if not, the caller is woken when it is.
    pub(super) fn is_clients(&self, cx: &Context<'_>) -> bool {
        self.client.register(cx.waker());
        !self.servers.load(Ordering::Acquire)
    }
}

/// An answer whose end, or loss, gives the turn back.
pub(crate) fn until_answered(turn: Arc<Turn>, answer: Response<Body>) -> Response<Body> {
    answer.map(|body| Body::new(Answer { body, turn }))
}

struct Answer {
    body: Body,
    turn: Arc<Turn>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.turn.to_client();
    }
}
