//! The driver's end of a simulated queue: what is submitted is held until the simulator runs it. Knows no machine.

use millrace_ops::{BackendError, Buffer, Op, Program, Queue, RecordingList, StepRecord, Ticket};

use super::Device;
use super::submission::Submission;

pub(crate) struct HeldQueue {
    device: Device,
    index: usize,
    ops: RecordingList<Vec<Op>>,
}

impl HeldQueue {
    pub(super) fn new(device: Device, index: usize) -> Self {
        Self { device, index, ops: RecordingList::default() }
    }
}

impl Queue for HeldQueue {
    fn enqueue(&mut self, op: Op) {
        self.ops.collected_mut().push(op);
    }

    fn begin_recording(&mut self) {
        self.ops.begin();
    }

    fn end_recording(&mut self) -> Program {
        self.ops.end()
    }

    fn enqueue_program(&mut self, program: &Program) {
        if let Some(ops) = RecordingList::<Vec<Op>>::of(program) {
            self.ops.collected_mut().extend_from_slice(ops);
        }
    }

    fn submit(&mut self) -> Ticket {
        let submission = Submission::of(self.ops.take());
        let mut state = self.device.lock();
        let queue = &mut state.queues[self.index];
        queue.submitted += 1;
        let ticket = queue.submitted;
        queue.held.push_back((ticket, submission));
        ticket
    }

    fn completed(&self) -> Ticket {
        self.device.lock().queues[self.index].completed
    }

    fn wait(&self, ticket: Ticket) -> Result<(), BackendError> {
        let state = self.device.lock();
        let queue = &state.queues[self.index];
        match &queue.failure {
            Some(error) => Err(error.clone()),
            None if queue.completed >= ticket => Ok(()),
            // Nothing runs while the driver waits; a driver that never waits for what runs does not come here.
            None => Err(BackendError::Failed { device: "simulated".into(), why: format!("waited for {ticket}, which runs") }),
        }
    }

    fn read_records(&self, records: &Buffer, out: &mut [StepRecord]) -> Result<(), BackendError> {
        let state = self.device.lock();
        let queue = &state.queues[self.index];
        match &queue.failure {
            Some(error) => Err(error.clone()),
            None => queue.machine.read_records(records, out),
        }
    }

    fn read(&self, _: &Buffer, _: usize, _: &mut [u8]) -> Result<(), BackendError> {
        Err(BackendError::ReadForbidden { device: "simulated".into() })
    }
}
