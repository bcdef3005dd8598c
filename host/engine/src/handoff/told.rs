//! What was logged of a peer: trouble that comes again with every connection is told once, until something has got through. Knows no
//! peer and writes no log.

use std::collections::VecDeque;

/// Causes that are remembered; beyond them the one that was new first is told again.
const CAUSES: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Told(VecDeque<String>);

impl Told {
    /// Whether this is to be told: it was not since [`Self::forget`].
    pub(super) fn is_new(&mut self, cause: impl ToString) -> bool {
        let cause = cause.to_string();
        if self.0.contains(&cause) {
            return false;
        }
        if self.0.len() == CAUSES {
            self.0.pop_front();
        }
        self.0.push_back(cause);
        true
    }

    /// Something got through: whatever comes now is new.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_until_something_gets_through() {
        let mut told = Told::default();
        assert!(told.is_new("a") && told.is_new("b"));
        assert!(!(0..100).any(|_| told.is_new("a") || told.is_new("b")), "nor in turns");
        told.forget();
        assert!(told.is_new("a"));
    }

    #[test]
    fn causes_are_remembered_up_to_a_bound() {
        let mut told = Told::default();
        assert!((0..=CAUSES).all(|cause| told.is_new(cause)));
        assert_eq!(told.0.len(), CAUSES);
        assert!(told.is_new(0) && !told.is_new(CAUSES));
    }
}
