//! Which request a fault is meant for. Only in builds with the feature `fault-injection`.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Requests that are remembered.
const REMEMBERED: usize = 1024;

/// The last requests: the id that the client sent, and the node's number.
#[derive(Debug, Default)]
pub(crate) struct Targets(Mutex<VecDeque<(String, u64)>>);

impl Targets {
    pub(crate) fn remember(&self, id: &str, sequence: u64) {
        let mut targets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if targets.len() >= REMEMBERED {
            targets.pop_front();
        }
        targets.push_back((id.to_owned(), sequence));
    }

    /// The latest of this id.
    pub(crate) fn find(&self, id: &str) -> Option<u64> {
        let targets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        targets.iter().rev().find(|(known, _)| known == id).map(|(_, sequence)| *sequence)
    }
}
