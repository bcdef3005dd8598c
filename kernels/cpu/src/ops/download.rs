//! Download: pieces of a buffer into host memory. Knows not what they mean.

use millrace_ops::{BackendError, Download, HostPieces};

use crate::memory::Region;
use crate::task::{Arguments, Task, Worker, product};

pub(crate) struct DownloadTask {
    from: Region,
    piece_bytes: usize,
    to: HostPieces,
}

impl DownloadTask {
    pub(crate) fn new(arguments: Arguments, op: Download) -> Result<Self, BackendError> {
        let Download { from, piece_bytes, to } = op;
        let from = arguments.region("from", from, product(&[piece_bytes, to.count()]))?;
        Ok(Self { from, piece_bytes, to })
    }
}

impl Task for DownloadTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        while let Some(range) = worker.take(1, self.to.count()) {
            for piece in range {
                // SAFETY: nobody writes the buffer in this phase.
                let bytes = unsafe { self.from.items_at::<u8>(piece * self.piece_bytes, self.piece_bytes) };
                self.to.put(piece, bytes);
            }
        }
        Ok(())
    }
}
