//! Whether a client that has said its last word still listens. Knows neither sockets nor time.
//!
//! Its end of stream does not tell: closing a socket and closing its writing half look alike. But a socket that is closed answers
//! bytes with a reset. So while the server has not begun to answer, the gate sends the first bytes of what every answer begins
//! with, one at a time, and leaves them out of the answer when it comes. Once that has begun, its own bytes do the same.

use std::io;
use std::ops::Range;

/// What every answer begins with, and `100 Continue` too.
const START: &[u8] = b"HTTP/1.";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What of the answers is out.
#[derive(Debug)]
pub(super) struct Presence {
    /// Bytes of `START` that are out before the answer, without those that the answer has come to.
    ahead: Range<usize>,
    /// Whether the current answer may have bytes out beside them.
    begun: bool,
    /// Whether all that was written is out of the parser's buffers.
    flushed: bool,
}

impl Presence {
    pub(super) fn new() -> Self {
        Self { ahead: 0..0, begun: false, flushed: true }
    }

    /// A request begins. Behind an answer that is not all out nobody could tell where its own begins.
    pub(super) fn begin_request(&mut self) {
        self.begun = !self.flushed;
    }

    /// The byte by which to find out; none where the answer itself does it, or no more can be known to come.
    pub(super) fn probe(&self) -> Option<u8> {
        if self.begun || !self.flushed { None } else { START.get(self.ahead.end).copied() }
    }

    pub(super) fn probed(&mut self) {
        self.ahead.end += 1;
    }

    /// How many bytes at the front of an answer are out already.
    ///
    /// # Errors
    /// Where the answer begins with others.
    pub(super) fn already_out(&self, bytes: &[u8]) -> io::Result<usize> {
        let out = self.ahead.len().min(bytes.len());
        let ahead = START.get(self.ahead.clone()).unwrap_or_default();
        if ahead.get(..out) == bytes.get(..out) {
            return Ok(out);
        }
        Err(io::Error::other("an answer does not begin as the gate has begun it"))
    }

    /// So many bytes of these went out, those that were out already included.
    pub(super) fn wrote(&mut self, bytes: &[u8], count: usize) {
        self.ahead.start += self.ahead.len().min(count);
        if self.ahead.is_empty() {
            self.ahead = 0..0;
        }
        self.flushed = false;
        self.begun |= count < bytes.len() || bytes != CONTINUE;
    }

    /// Whether any byte is out ahead of its answer.
    pub(super) fn is_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Some of an answer in several pieces went out, of which nothing was out before.
    pub(super) fn wrote_pieces(&mut self) {
        self.flushed = false;
        self.begun = true;
    }

    pub(super) fn flushed(&mut self) {
        self.flushed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

    /// Writes all of an answer in pieces of so many bytes; what goes to the socket.
    fn write(presence: &mut Presence, answer: &[u8], piece: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        for bytes in answer.chunks(piece) {
            let out = presence.already_out(bytes).unwrap();
            sent.extend_from_slice(&bytes[out..]);
            presence.wrote(bytes, bytes.len());
        }
        presence.flushed();
        sent
    }

    fn probe(presence: &mut Presence, times: usize) -> Vec<u8> {
        let bytes = (0..times).map_while(|_| {
            let byte = presence.probe();
            presence.probed();
            byte
        });
        bytes.collect()
    }

    #[test]
    fn what_was_sent_ahead_is_left_out_of_the_answer() {
        for piece in [1, 3, 7, 100] {
            for times in 0..=START.len() {
                let mut presence = Presence::new();
                let ahead = probe(&mut presence, times);
                assert_eq!(ahead.len(), times);
                assert_eq!([ahead, write(&mut presence, ANSWER, piece)].concat(), ANSWER, "{piece} {times}");
                assert_eq!(presence.probe(), None, "the answer has begun");
                presence.begin_request();
                assert_eq!(presence.probe(), Some(b'H'), "the next one has not");
            }
        }
        let mut presence = Presence::new();
        probe(&mut presence, START.len());
        assert_eq!(presence.probe(), None, "no more is known");
        assert!(presence.already_out(b"HTTP/2").is_err());
    }

    #[test]
    fn an_interim_answer_is_no_beginning() {
        let mut presence = Presence::new();
        write(&mut presence, CONTINUE, 100);
        assert_eq!(presence.probe(), Some(b'H'));
        assert_eq!(write(&mut presence, ANSWER, 100), ANSWER);
        assert_eq!(presence.probe(), None);
    }

    #[test]
    fn nothing_is_sent_ahead_behind_an_answer_that_is_not_out() {
        let mut presence = Presence::new();
        presence.wrote(ANSWER, 4);
        presence.begin_request();
        assert_eq!(presence.probe(), None);
        presence.wrote(&ANSWER[4..], ANSWER.len() - 4);
        presence.flushed();
        assert_eq!(presence.probe(), None, "whose bytes these were nobody knows");
        presence.begin_request();
        assert_eq!(presence.probe(), Some(b'H'));
    }
}
