//! What stands between a socket and the HTTP parser: it lets whole, sound heads through, one at a time, and puts a head of its own in
//! place of one that cannot be taken (see [`Refusal`]). The parser would answer those without an envelope or not at all.
//!
//! It follows where each request ends, so it knows no more of HTTP than heads and the length of bodies, which it tells whoever reads
//! them. A request with a chunked body is the last of its connection: two servers might not agree on where it ends.

mod announced;
mod head;
mod presence;
mod refusal;
mod turn;
mod writing;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

pub(crate) use announced::Announced;
use announced::Chunks;
pub(crate) use head::MAX_HEADERS;
use head::{Framing, has_end, judge};
use presence::Presence;
pub(crate) use refusal::{Bounds, REFUSE, Refusal};
pub(crate) use turn::{Turn, until_answered};

use crate::socket::Socket;

/// Read at a time while a head is incomplete.
const READ_BYTES: usize = 4096;
/// After a client's last word the first look whether it still listens; each further one is after twice the time.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// From here on each look is also a byte: what resets the connection may have happened since the last.
const PROBE_AGAIN: Duration = Duration::from_secs(1);

/// One connection; reading is here, writing in `writing`.
pub(crate) struct Gate<S> {
    inner: S,
    bounds: Bounds,
    turn: Arc<Turn>,
    announced: Arc<Announced>,
    chunks: Chunks,
    phase: Phase,
    /// Read from the socket and not yet passed on.
    held: Vec<u8>,
    /// How many bytes of `held` may be passed on.
    open: usize,
    /// How many bytes of `held` were seen not to hold the end of a head.
    seen: usize,
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
    linger: Linger,
    presence: Presence,
    /// Until the next look whether a client listens that has said its last word.
    look: Option<Duration>,
}

/// What the next bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Head,
    /// Of a body, so many.
    Body(u64),
    /// Of a body that ends with the connection's last request.
    Last,
    /// Of nobody's interest: the gate has spoken.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linger {
    No,
    /// So many bytes may still come.
    Bytes(usize),
}

impl<S: Socket> Gate<S> {
    pub(crate) fn new(inner: S, bounds: Bounds, turn: Arc<Turn>, announced: Arc<Announced>) -> Self {
        let deadline = Box::pin(sleep(bounds.timeout));
        let (held, phase, linger, presence) = (Vec::new(), Phase::Head, Linger::No, Presence::new());
        let chunks = Chunks::new(announced.clone());
        let (open, seen, waiting, look) = (0, 0, false, None);
        Self { inner, bounds, turn, announced, chunks, phase, held, open, seen, deadline, waiting, linger, presence, look }
    }

    /// Passes on what may be.
    fn pass(&mut self, out: &mut ReadBuf<'_>) {
        let count = self.open.min(out.remaining());
        if let Some(bytes) = self.held.get(..count) {
            out.put_slice(bytes);
        }
        self.held.drain(..count);
        self.open -= count;
        self.seen = 0;
    }

    /// Reads until a head can be opened. Ready with nothing open: the client is gone or idle for too long, or has said its last word
    /// and had its last answer.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let theirs = self.turn.is_clients(cx);
            if theirs {
                self.decide();
                if self.open > 0 {
                    return Poll::Ready(Ok(()));
                }
                if self.is_late(cx) {
                    // Nobody has asked for anything on an idle connection, so it ends without an answer.
                    if !self.held.iter().all(|byte| matches!(byte, b'\r' | b'\n')) {
                        self.refuse(Refusal::Timeout);
                    }
                    return Poll::Ready(Ok(()));
                }
            } else if self.held.len() > READ_BYTES {
                // A client that sends ahead waits, as does whoever wants to know whether it is still there.
                return Poll::Pending;
            }
            if ready!(self.poll_more(cx))? == 0 {
                return if theirs { Poll::Ready(Ok(())) } else { self.poll_presence(cx) };
            }
        }
    }

    /// Behind a chunked body that has ended.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let theirs = self.turn.is_clients(cx);
        if !self.held.is_empty() && !theirs {
            // What comes there is nobody's; whether its sender is still there is not known then.
            return Poll::Pending;
        }
        match ready!(self.poll_more(cx))? {
            0 if !theirs => self.poll_presence(cx),
            0 => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    /// The client has said its last word and waits for an answer, or is gone. Ready with an error if it is gone.
    fn poll_presence(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(fault) = self.inner.fault() {
                return Poll::Ready(Err(fault));
            }
            let next = match self.look {
                None => FIRST_LOOK,
                Some(last) => {
                    ready!(self.deadline.as_mut().poll(cx));
                    last.saturating_mul(2)
                }
            };
            if self.look.is_none() || next > PROBE_AGAIN {
                self.probe(cx)?;
            }
            self.look = Some(next);
            self.deadline.as_mut().reset(Instant::now() + next);
        }
    }

    fn probe(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(byte) = self.presence.probe() else { return Ok(()) };
        match Pin::new(&mut self.inner).poll_write(cx, &[byte]) {
            Poll::Ready(Ok(0)) | Poll::Pending => Ok(()),
            Poll::Ready(Ok(_)) => {
                self.presence.probed();
                Ok(())
            }
            Poll::Ready(Err(error)) => Err(error),
        }
    }

    /// Opens the head at the front of what is held, if it is all there.
    fn decide(&mut self) {
        let whole = self.seen == 0 || has_end(&self.held, self.seen) || self.held.len() > self.bounds.head_bytes;
        self.seen = self.held.len();
        if !whole {
            return;
        }
        match judge(&self.held, self.bounds.head_bytes) {
            Ok(None) => {}
            Ok(Some(head)) => {
                self.open = head.bytes;
                self.waiting = false;
                self.look = None;
                self.presence.begin_request();
                self.turn.to_server();
                self.phase = match head.body {
                    Framing::Length(0) => Phase::Head,
                    Framing::Length(bytes) => Phase::Body(bytes),
                    Framing::Chunked => Phase::Last,
                };
                self.announced.tell(if let Phase::Body(bytes) = self.phase { bytes } else { 0 });
            }
            Err(refusal) => self.refuse(refusal),
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.held = refusal.head().into_bytes();
        self.open = self.held.len();
        self.phase = Phase::Refused;
        self.turn.to_server();
    }

    /// Whether the client has had its time for a head, which begins when it is its turn.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.waiting {
            self.waiting = true;
            self.deadline.as_mut().reset(Instant::now() + self.bounds.timeout);
        }
        self.deadline.as_mut().poll(cx).is_ready()
    }

    /// Reads some bytes into `held`; how many.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut bytes = [0; READ_BYTES];
        let mut read = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
        self.held.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// Reads at most `limit` bytes straight to the parser; how many.
    fn poll_through(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>, limit: u64) -> Poll<io::Result<u64>> {
        let room = usize::try_from(limit).unwrap_or(usize::MAX).min(out.remaining());
        let mut read = ReadBuf::new(out.initialize_unfilled_to(room));
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
        let count = read.filled().len();
        if self.phase == Phase::Last {
            self.chunks.follow(read.filled());
        }
        out.advance(count);
        Poll::Ready(Ok(count as u64))
    }

    /// Opens what is held of a body.
    fn open_held(&mut self, limit: u64) {
        self.open = self.held.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
    }
}

impl<S: Socket> AsyncRead for Gate<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let gate = &mut *self;
        if gate.open == 0 {
            match gate.phase {
                Phase::Head => ready!(gate.poll_head(cx))?,
                Phase::Refused => return Poll::Pending,
                // All of it is passed on.
                Phase::Last if gate.chunks.ended() => ready!(gate.poll_rest(cx))?,
                Phase::Last if gate.held.is_empty() => {
                    ready!(gate.poll_through(cx, out, u64::MAX))?;
                    return Poll::Ready(Ok(()));
                }
                Phase::Last => {
                    gate.open_held(u64::MAX);
                    gate.chunks.follow(&gate.held);
                }
                Phase::Body(left) if gate.held.is_empty() => {
                    let count = ready!(gate.poll_through(cx, out, left))?;
                    gate.phase = if count == left { Phase::Head } else { Phase::Body(left - count) };
                    return Poll::Ready(Ok(()));
                }
                Phase::Body(left) => {
                    gate.open_held(left);
                    let rest = left - gate.open as u64;
                    gate.phase = if rest == 0 { Phase::Head } else { Phase::Body(rest) };
                }
            }
        }
        gate.pass(out);
        Poll::Ready(Ok(()))
    }
}
