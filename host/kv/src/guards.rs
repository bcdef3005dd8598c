//! Guards of a pool that a test can switch off, to show that it sees what they prevent (feature `fault-injection`). Without the
//! feature they are always on, and nothing here is compiled but that.

use crate::{PagePool, PrefixScope};

/// What keeps pages of different owners apart.
#[cfg(any(test, feature = "fault-injection"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// A freed page rests until the fence has passed.
    Quarantine,
    /// A prompt finds pages of its own scope alone.
    Scope,
}

/// Those that are off.
#[cfg(any(test, feature = "fault-injection"))]
#[derive(Debug, Default)]
pub(crate) struct GuardsOff {
    quarantine: bool,
    scope: bool,
}

#[cfg(any(test, feature = "fault-injection"))]
impl PagePool {
    /// Switches a guard off for good.
    pub fn switch_off(&mut self, guard: Guard) {
        match guard {
            Guard::Quarantine => self.guards_off.quarantine = true,
            Guard::Scope => self.guards_off.scope = true,
        }
    }

    pub(crate) fn resting_step(&self, after_step: u64) -> u64 {
        if self.guards_off.quarantine { 0 } else { after_step }
    }

    pub(crate) fn root(&self, scope: PrefixScope) -> PrefixScope {
        if self.guards_off.scope { PrefixScope([0; 32]) } else { scope }
    }
}

#[cfg(not(any(test, feature = "fault-injection")))]
impl PagePool {
    /// The step that a freed page rests until.
    pub(crate) fn resting_step(&self, after_step: u64) -> u64 {
        after_step
    }

    /// Where the pages of a scope begin.
    pub(crate) fn root(&self, scope: PrefixScope) -> PrefixScope {
        scope
    }
}
