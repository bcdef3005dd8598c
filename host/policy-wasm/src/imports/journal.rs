//! What imports give, written down for a recording or given once more in a replay. It does not know where recordings are kept.

use std::collections::VecDeque;

use crate::trace::{Import, Imports};

#[derive(Debug)]
pub(crate) enum Journal {
    Off,
    Recording(Imports),
    Replaying(Script),
}

/// What is given once more, in the same order. A guest that asks for something else gets what the replay's own state gives.
#[derive(Debug)]
pub(crate) struct Script {
    left: VecDeque<Import>,
    diverged: u64,
}

impl Script {
    pub(crate) fn new(imports: Imports) -> Self {
        Self { left: imports.results.into(), diverged: 0 }
    }

    pub(crate) fn diverged(&self) -> u64 {
        self.diverged
    }

    /// The next result, if `wanted` finds it to be the one that is asked for.
    fn next<R>(&mut self, wanted: impl FnOnce(&Import) -> Option<R>) -> Option<R> {
        let found = self.left.front().and_then(wanted);
        if found.is_some() {
            self.left.pop_front();
        } else {
            self.diverged += 1;
        }
        found
    }
}

impl Journal {
    /// What is given once more.
    pub(crate) fn replayed<R>(&mut self, wanted: impl FnOnce(&Import) -> Option<R>) -> Option<R> {
        match self {
            Self::Replaying(script) => script.next(wanted),
            Self::Off | Self::Recording(_) => None,
        }
    }

    pub(crate) fn note(&mut self, import: impl FnOnce() -> Import) {
        if let Self::Recording(imports) = self {
            imports.push(import());
        }
    }
}
