//! Recording: init, every call and every import's result of the policies in force, so that decisions can be replayed elsewhere.
//!
//! ```text
//!   a call --facts, imports, answer--> queue (64, never waited for) --> thread --> KIND.trace --full--> KIND.previous.trace
//!                                        | full: dropped, counted
//! ```
//! One line of JSON an event. Two files of half the bound each; a file that begins in the middle repeats how its instances began.
//! Policies see facts, never prompts or keys, so neither can be in a recording.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use serde::Serialize;

use crate::PolicyKind;
use crate::trace::Event;

/// Events that wait for the disk.
const QUEUE: usize = 64;
/// Instances whose beginning a fresh file repeats.
const REMEMBERED: usize = 4;

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
type Job = Box<dyn FnOnce() -> (String, Option<u64>) + Send>;

/// What became of events so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordCounts {
    pub written: u64,
    /// The disk was slower than the policy, or failed.
    pub dropped: u64,
}

impl Recorder {
    /// Starts the thread that writes `directory/KIND.trace`; what an earlier process wrote becomes `KIND.previous.trace`.
    ///
    /// # Errors
    /// The directory or file cannot be made, or there is no thread.
    pub fn start(directory: &Path, kind: PolicyKind, max_bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
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

    /// Never waits.
    pub(crate) fn record<A: Serialize + Send + 'static, R: Serialize + Send + 'static>(&self, event: Event<A, R>) {
        let job = move || {
            let begins = match &event {
                Event::Init(init) => Some(init.instance),
                Event::Call(_) => None,
            };
            // Facts are numbers, texts and lists of them, which JSON has.
            let line = serde_json::to_string(&event).unwrap_or_default();
            (line, begins)
        };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.0.sender.try_send(Box::new(job)) {
            self.0.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
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
        let (line, begins) = job();
        match files.write(line, begins) {
            Ok(()) => counts.written.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                let path = files.path.display();
                tracing::error!(target: "millrace::policy", "recording ends, {path} cannot be written: {error}; policies go on");
                counts.failed.store(true, Ordering::Relaxed);
                counts.dropped.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
}

/// The two files.
struct Files {
    path: PathBuf,
    /// Of one file.
    max_bytes: u64,
    file: BufWriter<File>,
    bytes: u64,
    /// How the last instances began, the latest last.
    beginnings: Vec<(u64, String)>,
}

impl Files {
    fn open(path: PathBuf, max_bytes: u64) -> io::Result<Self> {
        if path.exists() {
            fs::rename(&path, previous(&path))?;
        }
        let file = BufWriter::new(File::create(&path)?);
        Ok(Self { path, max_bytes, file, bytes: 0, beginnings: Vec::new() })
    }

    fn write(&mut self, line: String, begins: Option<u64>) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.max_bytes {
            self.turn_over()?;
        }
        self.put(&line)?;
        if let Some(instance) = begins {
            if self.beginnings.len() == REMEMBERED {
                self.beginnings.remove(0);
            }
            self.beginnings.push((instance, line));
        }
        // A recording is for when something goes wrong, so the last line counts.
        self.file.flush()
    }

    fn put(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())?;
        self.file.write_all(b"\n")?;
        self.bytes += line.len() as u64 + 1;
        Ok(())
    }

    fn turn_over(&mut self) -> io::Result<()> {
        self.file.flush()?;
        fs::rename(&self.path, previous(&self.path))?;
        self.file = BufWriter::new(File::create(&self.path)?);
        self.bytes = 0;
        for (_, line) in self.beginnings.clone() {
            // The instance did more before this file began.
            self.put(&line.replacen("\"continued\":false", "\"continued\":true", 1))?;
        }
        Ok(())
    }
}

fn previous(path: &Path) -> PathBuf {
    path.with_extension("previous.trace")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_bounded_and_a_fresh_one_repeats_how_its_instances_began() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("route.trace");
        let mut files = Files::open(path.clone(), 1_000).expect("a file");
        files.write("{\"init\":1,\"continued\":false}".into(), Some(1)).expect("written");
        for number in 0..100 {
            files.write(format!("{{\"call\":{number},\"padding\":\"{}\"}}", "x".repeat(50)), None).expect("written");
        }
        let text = fs::read_to_string(&path).expect("text");
        let before = fs::read_to_string(previous(&path)).expect("text");
        assert!(text.len() <= 1_000 && before.len() <= 1_000, "{} and {} bytes", text.len(), before.len());
        for text in [&text, &before] {
            assert!(text.starts_with("{\"init\":1,\"continued\":true}\n"), "{text}");
        }
        assert!(text.lines().last().is_some_and(|line| line.contains("\"call\":99")), "{text}");
        let _again = Files::open(path.clone(), 1_000).expect("a file");
        assert_eq!(fs::read_to_string(previous(&path)).expect("text"), text);
    }
}
