//! The writing side of a connection: answers without what is out of them already, and an end that lets the client read the last.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::{Gate, Linger, Phase};
use crate::socket::Socket;

/// A client that is still sending when its connection closes sees a reset instead of the answer. So after the last byte, reading
/// goes on for so long and so much: behind a head that was refused, and behind a body of which the rest was not wanted.
const LINGER_HEAD: (Duration, usize) = (Duration::from_millis(500), 4 << 20);
const LINGER_BODY: (Duration, usize) = (Duration::from_secs(5), 256 << 20);

impl<S: Socket> Gate<S> {
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

impl<S: Socket> AsyncWrite for Gate<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let gate = &mut *self;
        let out = gate.presence.already_out(buf)?;
        let rest = buf.get(out..).unwrap_or_default();
        let count = if rest.is_empty() { 0 } else { ready!(Pin::new(&mut gate.inner).poll_write(cx, rest))? };
        gate.presence.wrote(buf, out + count);
        Poll::Ready(Ok(out + count))
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut full = bufs.iter().filter(|buf| !buf.is_empty());
        let (first, more) = (full.next(), full.next().is_some());
        let gate = &mut *self;
        match first {
            Some(_) if more && !gate.presence.is_ahead() => {
                let count = ready!(Pin::new(&mut gate.inner).poll_write_vectored(cx, bufs))?;
                gate.presence.wrote_pieces();
                Poll::Ready(Ok(count))
            }
            Some(first) => self.poll_write(cx, first),
            None => Poll::Ready(Ok(0)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gate = &mut *self;
        ready!(Pin::new(&mut gate.inner).poll_flush(cx))?;
        gate.presence.flushed();
        Poll::Ready(Ok(()))
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
