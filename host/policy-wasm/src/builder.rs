//! One OS thread that does what must not be on the path of a decision: rebuild instances, and unmap those that failed. In a
//! simulation, where nothing may depend on when a thread gets a core, the caller does it. It does not know what it runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::EngineError;

/// More work than this waiting means that something is wrong; the next call asks again.
const QUEUE: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug, Clone)]
pub(crate) enum Builder {
    Thread(SyncSender<Job>),
    /// On the caller's thread, before [`Builder::submit`] returns.
    AtOnce,
}

impl Builder {
    /// The thread ends when the last builder is gone.
    pub(crate) fn start() -> Result<Self, EngineError> {
        let (sender, receiver) = sync_channel(QUEUE);
        thread::Builder::new()
            .name("policy-builder".into())
            .spawn(move || run(&receiver))
            .map_err(|error| EngineError::Thread { thread: "builder", detail: error.to_string() })?;
        Ok(Self::Thread(sender))
    }

    /// A thread is never waited for; false if its queue is full and the work was dropped. Call it without a lock that the work takes.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) -> bool {
        match self {
            Self::Thread(sender) => sender.try_send(Box::new(job)).is_ok(),
            Self::AtOnce => {
                perform(job);
                true
            }
        }
    }
}

fn run(jobs: &Receiver<Job>) {
    jobs.iter().for_each(perform);
}

fn perform(job: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!(target: "millrace::policy", "preparing an instance panicked: this is a bug");
    }
}
