//! A guest in a slot whose calls are recorded, and the recording given to a component once more.

use std::io::{BufReader, Cursor};
use std::time::{Duration, Instant};

use millrace_policy::ScheduleSlot;
use millrace_policy_wasm::{PolicyKind, PolicyLimits, PolicyOptions, Recorder, Recording, ReplayError, ReplayReport};

use crate::support::{self, engine};

const KIND: PolicyKind = PolicyKind::Schedule;

/// A guest in a slot whose calls are recorded, and where.
pub(crate) struct Recorded {
    pub(crate) slot: ScheduleSlot,
    pub(crate) recorder: Recorder,
    pub(crate) directory: tempfile::TempDir,
}

pub(crate) fn recorded(source: &[u8], name: &str) -> Recorded {
    let directory = tempfile::tempdir().expect("a directory");
    let recorder = Recorder::start(directory.path(), KIND, 1 << 20).expect("starts");
    // Time enough on a busy machine: what is late is not compared.
    let limits = PolicyLimits { deadline_us: 5_000_000, setup_us: 5_000_000, ..PolicyLimits::of(KIND) };
    let options = PolicyOptions { record: Some(recorder.clone()), limits, ..PolicyOptions::new(name, KIND) };
    let loaded = engine().load(source, KIND, &options).expect("loads");
    Recorded { slot: support::slot_of(&loaded), recorder, directory }
}

impl Recorded {
    /// The recording so far, once `events` are written.
    pub(crate) fn text(&self, events: u64) -> String {
        let started = Instant::now();
        while self.recorder.counts().written < events {
            assert!(started.elapsed() < Duration::from_secs(20), "{:?}", self.recorder.counts());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.recorder.counts().dropped, 0);
        std::fs::read_to_string(self.directory.path().join("schedule.trace")).expect("text")
    }
}

pub(crate) fn replay(source: &[u8], text: &str) -> Result<ReplayReport, ReplayError> {
    let recording = Recording::open(BufReader::new(Cursor::new(text)))?;
    engine().replay(source, &PolicyOptions::new("replay", KIND), None, recording)
}
