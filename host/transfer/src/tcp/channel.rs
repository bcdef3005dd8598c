//! A connection between two sides that have proved themselves: frames, keep-alives, timeouts.
//!
//! ```text
//!   [length u32][bytes]     length 0: a keep-alive
//! ```

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsStream;

use crate::MAX_FRAME_BYTES;

/// A side that has nothing to say says so this often.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// A peer that is not heard of for so long, not even a keep-alive, is gone or stopped. A busy machine gives its threads a turn
/// much sooner.
const SILENCE: Duration = Duration::from_secs(10);
/// One frame, from its length to its last byte; also what one write may take: 6 MiB over 5 Mbit/s.
const FRAME_TIME: Duration = Duration::from_secs(10);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the peer is gone")]
    Gone,
    #[error("this side has ended it")]
    Ended,
    #[error("the connection broke: {0}")]
    Broken(std::io::Error),
    #[error("the peer was not heard of for {} s", SILENCE.as_secs())]
    Silent,
    #[error("the peer took longer than {} s for one frame", FRAME_TIME.as_secs())]
    Slow,
    #[error("the peer did not read for {} s", FRAME_TIME.as_secs())]
    Stalled,
    #[error("a frame of {0} bytes, which is more than {MAX_FRAME_BYTES}")]
    TooLong(usize),
}

impl From<std::io::Error> for ChannelError {
    /// A process that ends says no goodbye, which TLS would want.
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::UnexpectedEof { Self::Gone } else { Self::Broken(error) }
    }
}

/// See the module.
pub struct Channel {
    stream: TlsStream<TcpStream>,
}

impl Channel {
    pub(super) fn new(stream: TlsStream<TcpStream>) -> Self {
        Self { stream }
    }

    pub fn split(self) -> (FrameReader, FrameWriter) {
        let (reader, writer) = split(self.stream);
        (FrameReader { half: reader }, FrameWriter { half: writer })
    }
}

/// The receiving half.
pub struct FrameReader {
    half: ReadHalf<TlsStream<TcpStream>>,
}

impl FrameReader {
    /// The next frame. Not to be dropped half way: what it has read is lost then.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub async fn next(&mut self) -> Result<Vec<u8>, ChannelError> {
        loop {
            let length = timeout(SILENCE, self.half.read_u32_le()).await.map_err(|_| ChannelError::Silent)??;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > MAX_FRAME_BYTES {
                return Err(ChannelError::TooLong(length));
            }
            if length > 0 {
                let mut bytes = vec![0; length];
                timeout(FRAME_TIME, self.half.read_exact(&mut bytes)).await.map_err(|_| ChannelError::Slow)??;
                return Ok(bytes);
            }
        }
    }
}

/// The sending half.
pub struct FrameWriter {
    half: WriteHalf<TlsStream<TcpStream>>,
}

impl FrameWriter {
    /// Writes a frame; [`Self::flush`] sends what is left of it.
    ///
    /// # Errors
    /// The connection is of no use any more, or the frame is longer than one may be.
    pub async fn write(&mut self, frame: &[u8]) -> Result<(), ChannelError> {
        let length = u32::try_from(frame.len()).ok().filter(|_| frame.len() <= MAX_FRAME_BYTES);
        let length = length.ok_or(ChannelError::TooLong(frame.len()))?;
        let write = async {
            self.half.write_u32_le(length).await?;
            self.half.write_all(frame).await
        };
        Ok(timeout(FRAME_TIME, write).await.map_err(|_| ChannelError::Stalled)??)
    }

    /// # Errors
    /// As for [`Self::write`].
    pub async fn flush(&mut self) -> Result<(), ChannelError> {
        Ok(timeout(FRAME_TIME, self.half.flush()).await.map_err(|_| ChannelError::Stalled)??)
    }

    /// Writes the frames that `encode` makes of what comes out of a queue, with keep-alives while nothing comes, until the queue or
    /// the connection ends. `encode` is told how many wait behind it; what was written is sent where none does.
    pub async fn carry<T>(&mut self, queue: &mut mpsc::Receiver<T>, mut encode: impl FnMut(T, usize) -> Vec<u8>) -> ChannelError {
        loop {
            let frame = match timeout(KEEP_ALIVE, queue.recv()).await {
                Ok(Some(next)) => encode(next, queue.len()),
                Ok(None) => return ChannelError::Ended,
                Err(_) => Vec::new(),
            };
            if let Err(error) = self.write(&frame).await {
                return error;
            }
            if queue.is_empty()
                && let Err(error) = self.flush().await
            {
                return error;
            }
        }
    }
}

#[cfg(test)]
mod tests;
