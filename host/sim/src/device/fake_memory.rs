//! Memory and weights of the fake engine: plain bytes that come into being where something is written. Knows no operation.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_ops::{
    Activations, Backend, BackendError, Buffer, DeviceDescription, DeviceMemory, Op, Priority, Program, Queue, StepRecord,
    TensorView, Ticket, Wake, Weight, WeightFormat, WeightMemory,
};

pub(crate) const DEVICE: &str = "fake";

/// Zeros as far as nothing was written; activations never are, so they take no room.
pub(crate) struct FakeMemory {
    bytes: usize,
    written: Mutex<Vec<u8>>,
}

impl DeviceMemory for FakeMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl FakeMemory {
    pub(crate) fn of(buffer: &Buffer) -> Result<&Self, BackendError> {
        buffer
            .memory()
            .downcast_ref()
            .ok_or_else(|| BackendError::Failed { device: DEVICE.into(), why: "a buffer of another backend".into() })
    }

    /// All bytes, for reading and writing.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if written.is_empty() {
            written.resize(self.bytes, 0);
        }
        look(&mut written)
    }
}

struct FakeWeight {
    rows: usize,
    cols: usize,
    format: WeightFormat,
}

impl WeightMemory for FakeWeight {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn bytes(&self) -> usize {
        0
    }

    fn format(&self) -> WeightFormat {
        self.format
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Gives memory and takes weights; a [`super::SimBackend`] puts queues in front of it.
pub(crate) struct FakeBackend;

impl Backend for FakeBackend {
    fn describe(&self) -> DeviceDescription {
        DeviceDescription { name: DEVICE.into(), architecture: "provenance".into(), threads: 1 }
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, BackendError> {
        Ok(Buffer::new(Arc::new(FakeMemory { bytes, written: Mutex::new(Vec::new()) })))
    }

    fn prepare_weight(&self, parts: &[TensorView<'_>], format: WeightFormat, _: Activations) -> Result<Weight, BackendError> {
        let rows = parts.iter().map(|part| part.rows).sum();
        let cols = parts.first().map_or(0, |part| part.cols);
        Ok(Weight::new(Arc::new(FakeWeight { rows, cols, format })))
    }

    /// Runs nothing: what the model loads is not looked at.
    fn queue(&self, _: Priority, _: Wake) -> Box<dyn Queue> {
        Box::new(IdleQueue(0))
    }
}

/// Takes everything and does nothing.
struct IdleQueue(Ticket);

impl Queue for IdleQueue {
    fn enqueue(&mut self, _: Op) {}

    fn begin_recording(&mut self) {}

    fn end_recording(&mut self) -> Program {
        Program::new(Arc::new(()))
    }

    fn enqueue_program(&mut self, _: &Program) {}

    fn submit(&mut self) -> Ticket {
        self.0 += 1;
        self.0
    }

    fn completed(&self) -> Ticket {
        self.0
    }

    fn wait(&self, _: Ticket) -> Result<(), BackendError> {
        Ok(())
    }

    fn read_records(&self, _: &Buffer, _: &mut [StepRecord]) -> Result<(), BackendError> {
        Ok(())
    }

    fn read(&self, _: &Buffer, _: usize, _: &mut [u8]) -> Result<(), BackendError> {
        Err(BackendError::ReadForbidden { device: DEVICE.into() })
    }
}
