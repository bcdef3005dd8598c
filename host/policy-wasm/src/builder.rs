//! One OS thread that does what must not be on the path of a decision: rebuild instances, and unmap those that failed.
//! It does not know what it runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::EngineError;

/// More work than this waiting means that something is wrong; the next call asks again.
const QUEUE: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug, Clone)]
pub(crate) struct Builder(SyncSender<Job>);

impl Builder {
    /// The thread ends when the last builder is gone.
    pub(crate) fn start() -> Result<Self, EngineError> {
        let (sender, receiver) = sync_channel(QUEUE);
        thread::Builder::new()
            .name("policy-builder".into())
            .spawn(move || run(&receiver))
            .map_err(|error| EngineError::Thread { thread: "builder", detail: error.to_string() })?;
        Ok(Self(sender))
    }

    /// Never waits; false if the queue is full and the work was dropped.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.0.try_send(Box::new(job)).is_ok()
    }
}

fn run(jobs: &Receiver<Job>) {
    for job in jobs {
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!(target: "millrace::policy", "preparing an instance panicked: this is a bug");
        }
    }
}
