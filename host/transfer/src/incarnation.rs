//! Which life of which process a message is from. An address says nothing: what listens there after a restart is another peer.

use std::fmt;

/// One life of an engine process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation {
    /// Counted by the node for each life that it meets, so that the later of two is known.
    pub epoch: u64,
    /// Random for each life, so that two of them never pass for each other.
    pub boot: u64,
}

impl Incarnation {
    /// Whether this is a later life than `known`. Two lives of one epoch are nobody's to order, so neither supersedes the other.
    pub fn supersedes(self, known: Self) -> bool {
        self.epoch > known.epoch
    }
}

impl fmt::Display for Incarnation {
    /// `3:00f1a2..`: epoch, then the boot nonce.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:016x}", self.epoch, self.boot)
    }
}
