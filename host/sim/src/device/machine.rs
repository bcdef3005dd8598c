//! What runs operations for the simulator: the fake engine or the CPU backend. Knows neither queues nor faults.

use millrace_core::{SeqId, TenantId};
use millrace_ops::{BackendError, Buffer, KvCache, Op, StepRecord};

/// Whose row reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reader {
    pub(crate) seq: SeqId,
    pub(crate) tenant: TenantId,
}

/// Numbers that somebody puts into a page who has no business there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alien {
    /// Another owner's.
    Intruder { tag: u64 },
    /// The page's own, of which none is finite.
    NotFinite,
}

/// One queue's device. Runs operations when it is told to, and at once.
pub(crate) trait Machine: Send {
    /// A submission begins, whose rows are these; none for what is no step.
    fn begin(&mut self, readers: Vec<Reader>);

    /// # Errors
    /// The queue has failed.
    fn run(&mut self, ops: &[Op]) -> Result<(), BackendError>;

    /// # Errors
    /// The buffer is another device's, or too small.
    fn read(&self, from: &Buffer, offset: usize, out: &mut [u8]) -> Result<(), BackendError>;

    /// # Errors
    /// As for [`Self::read`].
    fn read_records(&self, records: &Buffer, out: &mut [StepRecord]) -> Result<(), BackendError>;

    /// What fills a page with such numbers.
    fn alien(&self, cache: &KvCache, page: u32, alien: Alien) -> Vec<u8>;

    /// What was seen that must not be, in words; empty where this machine does not judge.
    fn take_violations(&mut self) -> Vec<String>;
}
