//! What stands between a socket and the HTTP parser: it lets whole, sound heads through, one at a time, and puts a head of its own in
//! place of one that cannot be taken (see [`Refusal`]). The parser would answer those without an envelope or not at all.
//!
//! It follows where each request ends, so it knows no more of HTTP than heads and the length of bodies, which it tells whoever reads
//! them. A request with a chunked body is the last of its connection: two servers might not agree on where it ends.

mod announced;
mod head;
mod refusal;
mod turn;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

pub(crate) use announced::Announced;
use announced::Chunks;
pub(crate) use head::MAX_HEADERS;
use head::{Framing, has_end, judge};
pub(crate) use refusal::{Bounds, REFUSE, Refusal};
pub(crate) use turn::{Turn, until_answered};

/// Read at a time while a head is incomplete.
const READ_BYTES: usize = 4096;
/// A client that is still sending when its connection closes sees a reset instead of the answer. So after the last byte, reading goes
/// on for so long and so much: behind a head that was refused, and behind a body of which the rest was not wanted.
const LINGER_HEAD: (Duration, usize) = (Duration::from_millis(500), 4 << 20);
const LINGER_BODY: (Duration, usize) = (Duration::from_secs(5), 256 << 20);

/// The reading side of one connection.
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

impl<S: AsyncRead + Unpin> Gate<S> {
    pub(crate) fn new(inner: S, bounds: Bounds, turn: Arc<Turn>, announced: Arc<Announced>) -> Self {
        let deadline = Box::pin(sleep(bounds.timeout));
        let (held, phase, linger) = (Vec::new(), Phase::Head, Linger::No);
        let chunks = Chunks::new(announced.clone());
        Self { inner, bounds, turn, announced, chunks, phase, held, open: 0, seen: 0, deadline, waiting: false, linger }
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

    /// Reads until a head can be opened. Ready with nothing open: the client is gone or idle for too long.
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
                return Poll::Ready(Ok(()));
            }
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

impl<S: AsyncRead + Unpin> AsyncRead for Gate<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let gate = &mut *self;
        if gate.open == 0 {
            match gate.phase {
                Phase::Head => ready!(gate.poll_head(cx))?,
                Phase::Refused => return Poll::Pending,
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

impl<S: AsyncRead + AsyncWrite + Unpin> Gate<S> {
    /// Reads on and keeps nothing, within the bounds of lingering.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Linger::Bytes(left) = self.linger else { return Poll::Ready(()) };
            if self.deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            self.held.clear();
            // Whether the client closes or breaks off, it has had its answer.
            match ready!(self.poll_more(cx)) {
                Ok(count) if count > 0 && count <= left => self.linger = Linger::Bytes(left - count),
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Gate<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gate = &mut *self;
        if gate.linger == Linger::No {
            ready!(Pin::new(&mut gate.inner).poll_shutdown(cx))?;
            let (time, bytes) = match gate.phase {
                Phase::Head => return Poll::Ready(Ok(())),
                Phase::Refused => LINGER_HEAD,
                Phase::Body(_) | Phase::Last => LINGER_BODY,
            };
            gate.linger = Linger::Bytes(bytes);
            gate.deadline.as_mut().reset(Instant::now() + time);
        }
        gate.poll_linger(cx).map(Ok)
    }
}
