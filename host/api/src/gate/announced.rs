//! How long a body says it is, told to whoever reads it before the bytes come: at once for a `Content-Length`, chunk by chunk
//! otherwise. Judges nothing; where chunks are framed wrongly, the parser behind says so.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;

/// Shared by the gate, which tells, and the reader of the body.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    bytes: AtomicU64,
    reader: AtomicWaker,
}

impl Announced {
    pub(super) fn tell(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Release);
        self.reader.wake();
    }

    pub(crate) fn exceeds(&self, limit: usize) -> bool {
        self.bytes.load(Ordering::Acquire) > limit as u64
    }

    /// Ends when the body says that it is longer.
    pub(crate) async fn more_than(&self, limit: usize) {
        poll_fn(|cx| {
            self.reader.register(cx.waker());
            if self.exceeds(limit) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Follows the framing of a chunked body.
#[derive(Debug)]
pub(super) struct Chunks {
    announced: Arc<Announced>,
    at: At,
    /// Of all chunks before the current one.
    before: u64,
    /// Of the current one, as far as its digits were seen.
    size: u64,
}

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Size,
    /// Behind the digits.
    SizeLine,
    SizeLf,
    /// So many are left.
    Data(u64),
    DataCr,
    DataLf,
    /// The first byte of a trailer, or the end.
    Trailer,
    TrailerLine,
    TrailerLf,
    EndLf,
    End,
    /// Framed wrongly.
    Lost,
}

impl Chunks {
    pub(super) fn new(announced: Arc<Announced>) -> Self {
        Self { announced, at: At::Size, before: 0, size: 0 }
    }

    pub(super) fn follow(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let At::Data(left) = self.at {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                bytes = bytes.get(here..).unwrap_or_default();
                self.at = if left == here as u64 { At::DataCr } else { At::Data(left - here as u64) };
                continue;
            }
            self.at = self.behind(byte);
            bytes = rest;
        }
        self.announced.tell(self.before.saturating_add(self.size));
    }

    pub(super) fn ended(&self) -> bool {
        self.at == At::End
    }

    fn behind(&mut self, byte: u8) -> At {
        match (self.at, byte) {
            (At::Size, b'\r') | (At::SizeLine, b'\r') => At::SizeLf,
            (At::Size, b';' | b' ' | b'\t') => At::SizeLine,
            (At::Size, _) => match char::from(byte).to_digit(16) {
                Some(digit) => {
                    // Further digits only make it larger, so what was seen of them counts already.
                    self.size = self.size.saturating_mul(16).saturating_add(u64::from(digit));
                    At::Size
                }
                None => At::Lost,
            },
            (At::SizeLine, _) => At::SizeLine,
            (At::SizeLf, b'\n') if self.size == 0 => At::Trailer,
            (At::SizeLf, b'\n') => At::Data(self.size),
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => {
                self.before = self.before.saturating_add(self.size);
                self.size = 0;
                At::Size
            }
            (At::Trailer, b'\r') => At::EndLf,
            (At::TrailerLine, b'\r') => At::TrailerLf,
            (At::Trailer | At::TrailerLine, _) => At::TrailerLine,
            (At::TrailerLf, b'\n') => At::Trailer,
            (At::EndLf, b'\n') | (At::End, _) => At::End,
            _ => At::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known after each byte, and where it ends.
    fn told(body: &[u8]) -> (u64, At) {
        let announced = Arc::new(Announced::default());
        let mut chunks = Chunks::new(announced.clone());
        for byte in body {
            chunks.follow(&[*byte]);
        }
        let mut whole = Chunks::new(Arc::new(Announced::default()));
        whole.follow(body);
        assert_eq!(whole.at, chunks.at, "however it is cut");
        (announced.bytes.load(Ordering::Acquire), chunks.at)
    }

    #[test]
    fn sizes_add_up_and_the_end_is_found() {
        assert_eq!(told(b"5\r\nhello\r\n1A;x=\"y\"\r\n"), (31, At::Data(26)));
        assert_eq!(told(b"5\r\nhello\r\n0\r\n\r\n"), (5, At::End));
        assert_eq!(told(b"5 \r\n0\r\n\r\n\r\n00\r\na: b\r\nc: d\r\n\r\nmore"), (5, At::End));
        assert_eq!(told(b"0\r\na: b\r\n"), (0, At::Trailer));
    }

    #[test]
    fn a_size_counts_before_its_bytes_come() {
        assert_eq!(told(b"ffffffff").0, u64::from(u32::MAX));
        assert_eq!(told(b"ffffffffffffffff\r\n").0, u64::MAX);
        assert_eq!(told(b"5\r\nhello\r\nffffffffffffffff").0, u64::MAX);
        assert_eq!(told(b"fffffffffffffffffffffff").0, u64::MAX);
    }

    #[test]
    fn what_is_no_chunk_is_left_to_the_parser() {
        for body in [&b"zz\r\n"[..], b"-1\r\n", b"5\n", b"5\r\nhelloX", b"5\r\nhello\rX", b"0\r\n\rX", b"0\r\na\rX"] {
            assert_eq!(told(body).1, At::Lost, "{}", String::from_utf8_lossy(body));
        }
    }

    #[tokio::test]
    async fn a_reader_is_woken_by_what_is_too_much() {
        let announced = Arc::new(Announced::default());
        let reader = tokio::spawn({
            let announced = announced.clone();
            async move { announced.more_than(10).await }
        });
        for bytes in [10, 11] {
            tokio::task::yield_now().await;
            assert!(!reader.is_finished());
            announced.tell(bytes);
        }
        reader.await.unwrap();
        assert!(announced.exceeds(10) && !announced.exceeds(11));
    }
}
