//! The two traits that a device implements. Object-safe; handles are opaque; queues take operations and return nothing.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::{Activations, BackendError, Op, OperationTime, StepRecord, TensorView, WeightFormat};

/// Device memory behind a [`Buffer`]; only its own backend looks inside.
pub trait DeviceMemory: Any + Send + Sync {
    fn bytes(&self) -> usize;
    fn as_any(&self) -> &dyn Any;
}

/// A piece of device memory. Cloning shares it; it is freed with its last clone. The host cannot look inside.
#[derive(Clone)]
pub struct Buffer(Arc<dyn DeviceMemory>);

impl Buffer {
    pub fn new(memory: Arc<dyn DeviceMemory>) -> Self {
        Self(memory)
    }

    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// For the backend that made it.
    pub fn memory(&self) -> &dyn Any {
        self.0.as_any()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes())
    }
}

/// A prepared weight behind a [`Weight`]; only its own backend looks inside.
pub trait WeightMemory: Any + Send + Sync {
    fn rows(&self) -> usize;
    fn cols(&self) -> usize;
    fn bytes(&self) -> usize;
    fn format(&self) -> WeightFormat;
    fn as_any(&self) -> &dyn Any;
}

/// A matrix `[rows = out, cols = in]` in a device's own layout. Cloning shares it.
#[derive(Clone)]
pub struct Weight(Arc<dyn WeightMemory>);

impl Weight {
    pub fn new(memory: Arc<dyn WeightMemory>) -> Self {
        Self(memory)
    }

    pub fn rows(&self) -> usize {
        self.0.rows()
    }

    pub fn cols(&self) -> usize {
        self.0.cols()
    }

    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    pub fn format(&self) -> WeightFormat {
        self.0.format()
    }

    /// For the backend that made it.
    pub fn memory(&self) -> &dyn Any {
        self.0.as_any()
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weight({}x{} {})", self.rows(), self.cols(), self.format())
    }
}

/// What a device is, for logs and reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceDescription {
    /// As the configuration names it: `cpu`, `cuda:0`.
    pub name: String,
    /// Instruction set or architecture in use.
    pub architecture: String,
    pub threads: usize,
}

/// Which queue goes first where one device serves several. It also tells a device what a queue's steps are like, so that kernels
/// may suit them; never what one step is like, for results must not follow from that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Prefill: steps of many rows.
    Normal,
    /// Decode: short steps that clients wait for, for the most part of one row a sequence.
    High,
}

/// Number of a submission on its queue: 1, 2, 3 .. A queue completes them in order.
pub type Ticket = u64;

/// Called from a device thread each time a submission completes; must not block.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A device.
pub trait Backend: Send + Sync {
    fn describe(&self) -> DeviceDescription;

    /// Zeroed device memory.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn allocate(&self, bytes: usize) -> Result<Buffer, BackendError>;

    /// Repacks `parts`, stacked along their rows, into one weight of `format`. All parts have the same `cols`.
    /// `Int8` keeps 4-bit codes and their scales (and minima) as they are; formats wider than the stored one hold its exact
    /// values rounded to that format. `activations` says how finely its products must take their inputs.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where the device has no such format or shape.
    fn prepare_weight(
        &self,
        parts: &[TensorView<'_>],
        format: WeightFormat,
        activations: Activations,
    ) -> Result<Weight, BackendError>;

    /// A new queue; `wake` is called after each of its submissions.
    fn queue(&self, priority: Priority, wake: Wake) -> Box<dyn Queue>;

    /// What operations have taken so far, one entry for each kind; empty where the device does not measure them.
    fn operation_times(&self) -> Vec<OperationTime> {
        Vec::new()
    }
}

/// Operations that a queue recorded, checked and ready to run again; a clone is the same program.
#[derive(Clone)]
pub struct Program(Arc<dyn Any + Send + Sync>);

impl Program {
    /// What the device keeps of the operations.
    pub fn new(operations: Arc<dyn Any + Send + Sync>) -> Self {
        Self(operations)
    }

    /// For the device to downcast.
    pub fn operations(&self) -> &dyn Any {
        self.0.as_ref()
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Program")
    }
}

/// Operations in order. Nothing runs before [`Queue::submit`]; submissions of one queue run one after the other.
/// A queue whose submission failed stays failed: it runs nothing any more, and its later submissions complete with that error. Other
/// queues of the device do not fail with it.
pub trait Queue: Send {
    fn enqueue(&mut self, op: Op);

    /// Operations enqueued from here to [`Queue::end_recording`] are kept for a program instead: a step's operations are the same
    /// from one step to the next where only its inputs differ.
    fn begin_recording(&mut self);

    /// What was enqueued since [`Queue::begin_recording`]; an empty program without it. A program with an operation that is wrong
    /// makes the submissions fail that it is enqueued in.
    fn end_recording(&mut self) -> Program;

    /// Enqueues the operations of a program that a queue of this backend recorded. They run on what their buffers hold then.
    fn enqueue_program(&mut self, program: &Program);

    /// Hands everything enqueued since the last submission to the device and returns at once.
    fn submit(&mut self) -> Ticket;

    /// The last submission that has completed.
    fn completed(&self) -> Ticket;

    /// Blocks until `ticket` has completed.
    ///
    /// # Errors
    /// What went wrong in this or an earlier submission.
    fn wait(&self, ticket: Ticket) -> Result<(), BackendError>;

    /// Copies the first `out.len()` records out; valid once the step's submission has completed.
    ///
    /// # Errors
    /// [`BackendError::Invalid`] where the buffer is too small, [`BackendError::Failed`] after a failed submission.
    fn read_records(&self, records: &crate::Buffer, out: &mut [StepRecord]) -> Result<(), BackendError>;

    /// Copies device memory to the host, waiting for all submissions. For evaluation and tests, never in a serving step.
    ///
    /// # Errors
    /// [`BackendError::ReadForbidden`] on backends that keep hosts honest.
    fn read(&self, from: &Buffer, offset: usize, out: &mut [u8]) -> Result<(), BackendError>;
}
