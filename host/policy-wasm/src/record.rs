//! Recording: init, every call, what a policy hears and hands over beside them, and every import's result of the policies in force, so
//! that decisions can be replayed elsewhere.
//!
//! ```text
//!   a call --facts, imports, answer--> queue (64, never waited for) --> thread --> KIND.trace --full--> KIND.previous.trace
//!                                        | full: dropped, counted
//! ```
//! One line of JSON an event; see `record_files` for the files. Policies see facts, never prompts or keys, so neither can be in a
//! recording.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use serde::Serialize;

use crate::PolicyKind;
use crate::record_files::{Files, Line, Written};
use crate::trace::Event;

/// Events that wait for the disk.
const QUEUE: usize = 64;

/// Writes what the instances of one policy do. Clones share everything.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    sender: SyncSender<Job>,
    counts: Arc<Counts>,
    path: PathBuf,
    instances: AtomicU64,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicBool,
}

/// A line that is made on the recorder's thread.
type Job = Box<dyn FnOnce() -> Line + Send>;

/// What became of events so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordCounts {
    pub written: u64,
    /// The disk was slower than the policy, or failed, or the event was larger than a file may be.
    pub dropped: u64,
}

impl Recorder {
    /// Starts the thread that writes `directory/KIND.trace`, behind what an earlier process wrote there. No two processes may write
    /// into one directory.
    ///
    /// # Errors
    /// The directory or file cannot be made, or there is no thread.
    pub fn start(directory: &Path, kind: PolicyKind, max_bytes: u64) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let path = directory.join(format!("{kind}.trace"));
        let mut files = Files::open(path.clone(), max_bytes / 2)?;
        let (sender, receiver) = sync_channel::<Job>(QUEUE);
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        thread::Builder::new().name("policy-record".into()).spawn(move || run(&receiver, &mut files, &shared))?;
        Ok(Self(Arc::new(Inner { sender, counts, path, instances: AtomicU64::new(0) })))
    }

    /// The file that is being written.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    #[must_use]
    pub fn counts(&self) -> RecordCounts {
        let Counts { written, dropped, .. } = &*self.0.counts;
        RecordCounts { written: written.load(Ordering::Relaxed), dropped: dropped.load(Ordering::Relaxed) }
    }

    /// Numbers instances from 1.
    pub(crate) fn next_instance(&self) -> u64 {
        self.0.instances.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Never waits; false: there was no room, and the event is dropped.
    pub(crate) fn record<A: Serialize + Send + 'static, R: Serialize + Send + 'static>(&self, event: Event<A, R>) -> bool {
        let job = move || {
            let (instance, begins) = match &event {
                Event::Init(init) => (init.instance, true),
                Event::Call(call) => (call.instance, false),
                Event::Beside(beside) => (beside.instance, false),
            };
            // Facts are numbers, texts and lists of them, which JSON has.
            Line { text: serde_json::to_string(&event).unwrap_or_default(), instance, begins }
        };
        let taken = self.0.sender.try_send(Box::new(job));
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = &taken {
            self.miss();
        }
        taken.is_ok()
    }

    /// Counts an event that was dropped.
    pub(crate) fn miss(&self) {
        self.0.counts.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recorder").field(&self.0.path).finish()
    }
}

/// The same recorder, not the same content.
impl PartialEq for Recorder {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Recorder {}

fn run(jobs: &Receiver<Job>, files: &mut Files, counts: &Counts) {
    for job in jobs {
        if counts.failed.load(Ordering::Relaxed) {
            counts.dropped.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        match files.write(job()) {
            Ok(Written::Yes) => counts.written.fetch_add(1, Ordering::Relaxed),
            Ok(Written::TooLong) => counts.dropped.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                let path = files.path().display();
                tracing::error!(target: "millrace::policy", "recording ends, {path} cannot be written: {error}; policies go on");
                counts.failed.store(true, Ordering::Relaxed);
                counts.dropped.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
}
