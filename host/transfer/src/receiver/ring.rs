//! Which slots of the staging ring are taken. Knows neither bytes nor transfers.

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Ring {
    slots: u32,
    /// Kept in order, so that equal histories are equal.
    free: Vec<u32>,
}

impl Ring {
    pub(super) fn new(slots: u32) -> Self {
        Self { slots, free: (0..slots).rev().collect() }
    }

    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Whether no slot is taken.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots as usize
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn put_back(&mut self, slot: u32) {
        self.free.push(slot);
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }
}
