//! Bounds the memory and tables of one store, summed over all of them: a component may have many linear memories.
//! It does not know policies.

use wasmtime::ResourceLimiter;

/// See the module.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory: Bounded,
    tables: Bounded,
}

#[derive(Debug)]
struct Bounded {
    used: usize,
    limit: usize,
    refused: bool,
}

impl Limiter {
    pub(crate) fn new(memory_bytes: usize, table_elements: usize) -> Self {
        let bounded = |limit| Bounded { used: 0, limit, refused: false };
        Self { memory: bounded(memory_bytes), tables: bounded(table_elements) }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory.used
    }

    /// Whether growth was refused since [`Limiter::begin_call`].
    pub(crate) fn has_refused(&self) -> bool {
        self.memory.refused || self.tables.refused
    }

    pub(crate) fn begin_call(&mut self) {
        self.memory.refused = false;
        self.tables.refused = false;
    }
}

impl Bounded {
    /// Guests see -1 where this is false.
    fn grow(&mut self, current: usize, desired: usize) -> bool {
        let total = self.used.saturating_sub(current).saturating_add(desired);
        if total > self.limit {
            self.refused = true;
            return false;
        }
        self.used = total;
        true
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.memory.grow(current, desired))
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.tables.grow(current, desired))
    }

    // One component is instantiated per store; interpreters bring a dozen core modules.
    fn instances(&self) -> usize {
        256
    }

    fn tables(&self) -> usize {
        64
    }

    fn memories(&self) -> usize {
        32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_count_together() {
        let mut limiter = Limiter::new(100, 10);
        let mut grow = |current, desired| limiter.memory_growing(current, desired, None).expect("no error");
        assert!(grow(0, 60));
        assert!(!grow(0, 41));
        assert!(grow(0, 40));
        assert!(!grow(60, 61));
        assert!(!grow(40, usize::MAX));
        assert_eq!(limiter.memory_bytes(), 100);
        assert!(limiter.has_refused());
        limiter.begin_call();
        assert!(!limiter.has_refused());
        assert!(!limiter.table_growing(0, 11, None).expect("no error"));
        assert!(limiter.has_refused());
    }
}
