//! Who may come in: each tenant's bounds, as the node's admission keeps them. A request waits from its asking to its first token, and
//! runs from there on; so many of a tenant may wait, and so many be in the engine. Knows no engine.

use std::collections::VecDeque;

/// What an operator sets for a tenant; `u32::MAX` is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) max_waiting: u32,
    pub(super) max_running: u32,
}

impl Quota {
    pub(super) const NONE: Self = Self { max_waiting: u32::MAX, max_running: u32::MAX };
}

/// Of one tenant. `R`: what comes in.
pub(super) struct Door<R> {
    quota: Quota,
    /// Without a first token.
    waiting: u32,
    /// In the engine.
    inside: u32,
    outside: VecDeque<R>,
}

impl<R> Door<R> {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, waiting: 0, inside: 0, outside: VecDeque::new() }
    }

    /// False: refused.
    pub(super) fn knock(&mut self, request: R) -> bool {
        let comes = self.waiting < self.quota.max_waiting;
        if comes {
            self.waiting += 1;
            self.outside.push_back(request);
        }
        comes
    }

    /// Who comes in next, in the order of their coming.
    pub(super) fn open(&mut self) -> Option<R> {
        if self.inside >= self.quota.max_running {
            return None;
        }
        let request = self.outside.pop_front()?;
        self.inside += 1;
        Some(request)
    }

    /// One has its first token, or ended without one.
    pub(super) fn waits_no_longer(&mut self) {
        self.waiting -= 1;
    }

    pub(super) fn leaves(&mut self) {
        self.inside -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_wait_and_so_many_are_inside() {
        let mut door = Door::new(Quota { max_waiting: 2, max_running: 1 });
        assert_eq!([1, 2, 3].map(|request| door.knock(request)), [true, true, false]);
        assert_eq!((door.open(), door.open()), (Some(1), None));
        door.waits_no_longer();
        assert!(door.knock(4), "it runs, so another may wait");
        assert_eq!(door.open(), None);
        door.leaves();
        assert_eq!((door.open(), door.open()), (Some(2), None));
    }
}
