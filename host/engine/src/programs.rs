//! The model's operations of steps of one shape, recorded once: what differs from step to step is in buffers. Knows neither plans
//! nor what operations do.

use std::collections::HashMap;

use millrace_ops::{Program, Queue};

/// Shapes kept at most. Decode has one for each number of sequences and width of page tables that occur; a prefill pool's chunks
/// vary more, and where they vary endlessly, recording must not grow with them.
const MOST_PROGRAMS: usize = 128;

/// Everything that the model's operations depend on, beside buffers that stay the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) sequences: usize,
    /// Sequences that get logits.
    pub(crate) sampled: usize,
    pub(crate) table_stride: usize,
}

#[derive(Default)]
pub(crate) struct Programs {
    recorded: HashMap<Shape, Program>,
}

impl Programs {
    /// Enqueues the program of a shape, which `enqueue` puts together where it is new.
    pub(crate) fn run(&mut self, queue: &mut dyn Queue, shape: Shape, enqueue: impl FnOnce(&mut dyn Queue)) {
        if let Some(program) = self.recorded.get(&shape) {
            return queue.enqueue_program(program);
        }
        queue.begin_recording();
        enqueue(queue);
        let program = queue.end_recording();
        queue.enqueue_program(&program);
        if self.recorded.len() >= MOST_PROGRAMS {
            self.recorded.clear();
        }
        self.recorded.insert(shape, program);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
    use millrace_ops::{Backend, Op, Priority, Upload};

    use super::*;

    #[test]
    fn a_shape_is_recorded_once_and_endlessly_many_take_no_room() {
        let backend = CpuBackend::new(CpuOptions { threads: 1, compute: CpuCompute::Fast, isa: None }).unwrap();
        let mut queue = backend.queue(Priority::Normal, Arc::new(|| {}));
        let counter = backend.allocate(8).unwrap();
        let (mut programs, mut recorded) = (Programs::default(), 0u64);
        for round in 0..3 * MOST_PROGRAMS {
            let shape = |rows| Shape { rows, sequences: 1, sampled: 1, table_stride: 8 };
            for rows in [round, round.saturating_sub(1)] {
                programs.run(queue.as_mut(), shape(rows), |queue| {
                    recorded += 1;
                    let bytes = (rows as u64).to_le_bytes().to_vec();
                    queue.enqueue(Op::Upload(Upload { to: counter.clone(), offset: 0, bytes }));
                });
                let ticket = queue.submit();
                queue.wait(ticket).unwrap();
                let mut bytes = [0; 8];
                queue.read(&counter, 0, &mut bytes).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), rows as u64, "the program of this shape ran");
            }
            assert!(programs.recorded.len() <= MOST_PROGRAMS);
        }
        // The one before is new again only where the list was just emptied.
        let emptied = 3;
        assert!(recorded <= (3 * MOST_PROGRAMS + emptied) as u64, "{recorded} recordings");
    }
}
