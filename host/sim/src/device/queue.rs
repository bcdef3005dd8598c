//! The driver's end of a simulated queue: what is submitted is held until the simulator runs it. Knows no machine.

use std::sync::Arc;

use millrace_ops::{BackendError, Buffer, Op, Program, Queue, StepRecord, Ticket};

use super::Device;
use super::submission::Submission;

pub(crate) struct HeldQueue {
    device: Device,
    index: usize,
    ops: Vec<Op>,
    /// What had been enqueued when a recording began.
    before_recording: Option<Vec<Op>>,
}

impl HeldQueue {
    pub(super) fn new(device: Device, index: usize) -> Self {
        Self { device, index, ops: Vec::new(), before_recording: None }
    }
}

impl Queue for HeldQueue {
    fn enqueue(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn begin_recording(&mut self) {
        let before = std::mem::take(&mut self.ops);
        self.before_recording.get_or_insert(before);
    }

    fn end_recording(&mut self) -> Program {
        let recorded = match self.before_recording.take() {
            Some(before) => std::mem::replace(&mut self.ops, before),
            None => Vec::new(),
        };
        Program::new(Arc::new(recorded))
    }

    fn enqueue_program(&mut self, program: &Program) {
        if let Some(ops) = program.operations().downcast_ref::<Vec<Op>>() {
            self.ops.extend_from_slice(ops);
        }
    }

    fn submit(&mut self) -> Ticket {
        let submission = Submission::of(std::mem::take(&mut self.ops));
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
