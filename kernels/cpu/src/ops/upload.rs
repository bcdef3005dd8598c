//! Upload: host bytes into a buffer. Knows not what they mean.

use millrace_ops::{BackendError, Upload};

use crate::memory::Region;
use crate::task::{Arguments, Task, Worker};

pub(crate) struct UploadTask {
    to: Region,
    offset: usize,
    bytes: Vec<u8>,
}

impl UploadTask {
    pub(crate) fn new(arguments: Arguments, op: Upload) -> Result<Self, BackendError> {
        let Upload { to, offset, bytes } = op;
        let to = arguments.region("to", to, offset.saturating_add(bytes.len()))?;
        Ok(Self { to, offset, bytes })
    }
}

impl Task for UploadTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        while let Some(range) = worker.take(1 << 20, self.bytes.len()) {
            // SAFETY: ranges of different workers are disjoint and nobody else touches the buffer in this phase.
            let to = unsafe { self.to.items_at_mut::<u8>(self.offset + range.start, range.len()) };
            to.copy_from_slice(&self.bytes[range]);
        }
        Ok(())
    }
}
