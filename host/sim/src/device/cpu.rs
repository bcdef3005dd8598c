//! The CPU backend under the simulator: real kernels on a tiny model. A submission is waited for where it is run, so that nothing
//! depends on when threads get a core. Knows no faults but the numbers that they leave.

use std::sync::Arc;

use millrace_ops::{Backend, BackendError, Buffer, KvCache, Op, Priority, Queue, StepRecord};

use super::machine::{Alien, Machine, Reader};

pub(crate) struct CpuMachine {
    queue: Box<dyn Queue>,
}

impl CpuMachine {
    pub(crate) fn new(backend: &dyn Backend, priority: Priority) -> Self {
        Self { queue: backend.queue(priority, Arc::new(|| {})) }
    }
}

impl Machine for CpuMachine {
    fn begin(&mut self, _: Vec<Reader>) {}

    fn run(&mut self, ops: &[Op]) -> Result<(), BackendError> {
        if ops.is_empty() {
            return Ok(());
        }
        ops.iter().for_each(|op| self.queue.enqueue(op.clone()));
        let ticket = self.queue.submit();
        self.queue.wait(ticket)
    }

    fn read(&self, from: &Buffer, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        self.queue.read(from, offset, out)
    }

    fn read_records(&self, records: &Buffer, out: &mut [StepRecord]) -> Result<(), BackendError> {
        self.queue.read_records(records, out)
    }

    /// Of an intruder: numbers as large as any of the model's, other ones for each tag. Pages are F32.
    fn alien(&self, cache: &KvCache, _: u32, alien: Alien) -> Vec<u8> {
        let numbers = cache.layout.page_bytes() / 4;
        let number = |index: usize| match alien {
            Alien::Intruder { tag } => {
                let bits = crate::rng::mix(tag ^ index as u64);
                // In -8 .. 8.
                (bits % 16_000) as f32 / 1000.0 - 8.0
            }
            Alien::NotFinite => f32::NAN,
        };
        (0..numbers).flat_map(|index| number(index).to_le_bytes()).collect()
    }

    fn take_violations(&mut self) -> Vec<String> {
        Vec::new()
    }
}
