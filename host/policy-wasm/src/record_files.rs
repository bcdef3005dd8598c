//! The two files of a recording, each of half its bound, for their owner alone to read.
//!
//! ```text
//!   KIND.trace --full--> KIND.previous.trace, and a fresh KIND.trace that repeats how its instances began
//! ```
//! A process goes on behind what an earlier one wrote: however often it is started again, the recording of a crash stays until so much
//! was written after it. What the crash cut short is taken off. It does not know what an event is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use crate::trace::{Event, VERSION};

/// Instances whose beginning a fresh file repeats: the one in force, those on the way back, and those being rebuilt.
const REMEMBERED: usize = 8;
/// For their owner alone: facts tell how much whom is asking for what.
const MODE: u32 = 0o600;
/// Of a file's first line that are looked at.
const MAX_FIRST_BYTES: u64 = 4 << 20;
const BLOCK: u64 = 64 << 10;

/// An event, and the instance that it is of.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) instance: u64,
    pub(crate) begins: bool,
}

/// What became of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    Yes,
    /// Longer than a file may be.
    TooLong,
}

/// See the module's drawing.
pub(crate) struct Files {
    path: PathBuf,
    /// Of one file.
    max_bytes: u64,
    file: BufWriter<File>,
    bytes: u64,
    /// How the instances that did something last began, the latest last.
    beginnings: Vec<Line>,
}

impl Files {
    pub(crate) fn open(path: PathBuf, max_bytes: u64) -> io::Result<Self> {
        let bytes = whole_bytes(&path)?;
        if bytes > 0 && !is_ours(&path)? {
            fs::rename(&path, previous(&path))?;
        }
        let mut file = open(&path)?;
        // Behind the last whole line.
        let bytes = bytes.min(file.metadata()?.len());
        file.set_len(bytes)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { path, max_bytes, file: BufWriter::new(file), bytes, beginnings: Vec::new() })
    }

    /// The file that is being written.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&mut self, line: Line) -> io::Result<Written> {
        let bytes = line.text.len() as u64 + 1;
        if bytes > self.max_bytes {
            return Ok(Written::TooLong);
        }
        if self.bytes > 0 && self.bytes + bytes > self.max_bytes {
            self.turn_over(bytes)?;
        }
        self.put(&line.text)?;
        self.remember(line);
        // A recording is for when something goes wrong, so the last line counts.
        self.file.flush()?;
        Ok(Written::Yes)
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        self.file.write_all(b"\n")?;
        self.bytes += text.len() as u64 + 1;
        Ok(())
    }

    fn remember(&mut self, line: Line) {
        let known = self.beginnings.iter().position(|beginning| beginning.instance == line.instance);
        let known = known.map(|at| self.beginnings.remove(at));
        if let Some(beginning) = if line.begins { Some(line) } else { known } {
            self.beginnings.push(beginning);
        }
        if self.beginnings.len() > REMEMBERED {
            self.beginnings.remove(0);
        }
    }

    /// Leaves room for `bytes` to come.
    fn turn_over(&mut self, bytes: u64) -> io::Result<()> {
        self.file.flush()?;
        fs::rename(&self.path, previous(&self.path))?;
        self.file = BufWriter::new(open(&self.path)?);
        self.bytes = 0;
        // The latest where not all of them fit. Said to be continued they are a byte shorter.
        let mut room = self.max_bytes.saturating_sub(bytes);
        let mut fits = |line: &Line| {
            let left = room.checked_sub(line.text.len() as u64 + 1);
            room = left.unwrap_or(0);
            left.is_some()
        };
        let fitting: Vec<Line> = self.beginnings.iter().rev().take_while(|line| fits(line)).cloned().collect();
        for line in fitting.into_iter().rev() {
            // The instance did more before this file began.
            self.put(&line.text.replacen("\"continued\":false", "\"continued\":true", 1))?;
        }
        Ok(())
    }
}

fn previous(path: &Path) -> PathBuf {
    path.with_extension("previous.trace")
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(MODE).open(path)?;
    // One that was there may have had another mode.
    file.set_permissions(fs::Permissions::from_mode(MODE))?;
    Ok(file)
}

/// How much of a file is whole lines; 0 where there is none.
fn whole_bytes(path: &Path) -> io::Result<u64> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        file => file?,
    };
    let mut end = file.metadata()?.len();
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        (&mut file).take(end - start).read_to_end(&mut block)?;
        if let Some(at) = block.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Whether a file begins as this program's recordings do; behind another's nothing is written.
fn is_ours(path: &Path) -> io::Result<bool> {
    let mut first = Vec::new();
    BufReader::new(File::open(path)?.take(MAX_FIRST_BYTES)).read_until(b'\n', &mut first)?;
    let event = serde_json::from_slice::<Event<IgnoredAny, IgnoredAny>>(&first);
    Ok(matches!(event, Ok(Event::Init(init)) if init.version == VERSION))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Imports, Init};

    fn begins(instance: u64, version: u32) -> Line {
        let init = Init {
            version,
            instance,
            kind: "route".into(),
            sha256: "0".repeat(64),
            seed: 0,
            config: "{}".into(),
            now_us: 0,
            imports: Imports::default(),
            info: None,
            continued: false,
        };
        let text = serde_json::to_string(&Event::<(), ()>::Init(init)).expect("JSON");
        Line { text, instance, begins: true }
    }

    fn call(instance: u64, number: u32) -> Line {
        Line { text: format!("{{\"call\":{number},\"padding\":\"{}\"}}", "x".repeat(50)), instance, begins: false }
    }

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a directory"))
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("route.trace")
        }

        fn open(&self, max_bytes: u64) -> Files {
            Files::open(self.path(), max_bytes).expect("files")
        }

        fn text(&self) -> String {
            fs::read_to_string(self.path()).expect("text")
        }

        fn before(&self) -> String {
            fs::read_to_string(previous(&self.path())).unwrap_or_default()
        }
    }

    #[test]
    fn files_are_bounded_and_a_fresh_one_repeats_how_its_instances_began() {
        let place = Place::new();
        let mut files = place.open(1_000);
        files.write(begins(1, VERSION)).expect("written");
        for number in 0..100 {
            files.write(call(1, number)).expect("written");
        }
        let (text, before) = (place.text(), place.before());
        assert!(text.len() <= 1_000 && before.len() <= 1_000, "{} and {} bytes", text.len(), before.len());
        for text in [&text, &before] {
            let first = text.lines().next().expect("a line");
            assert!(first.contains("\"instance\":1") && first.contains("\"continued\":true"), "{text}");
        }
        assert!(text.lines().last().is_some_and(|line| line.contains("\"call\":99")), "{text}");
        assert_eq!(files.write(Line { text: "y".repeat(1_000), instance: 1, begins: false }).expect("dropped"), Written::TooLong);
        assert_eq!(place.text(), text);
    }

    /// However often a process is started again, what a crash left is there until enough was written behind it.
    #[test]
    fn a_process_goes_on_behind_what_an_earlier_one_wrote() {
        let place = Place::new();
        let mut files = place.open(10_000);
        for line in [begins(1, VERSION), call(1, 7)] {
            files.write(line).expect("written");
        }
        drop(files);
        let whole = place.text();
        fs::write(place.path(), format!("{whole}{{\"call\":8,\"pad")).expect("a crash");
        for _ in 0..3 {
            drop(place.open(10_000));
        }
        assert_eq!((place.text(), place.before()), (whole.clone(), String::new()), "the torn line is off, the rest is there");
        place.open(10_000).write(begins(1, VERSION)).expect("written");
        assert!(place.text().starts_with(&whole) && place.text().lines().count() == 3);
    }

    #[test]
    fn behind_another_programs_file_nothing_is_written() {
        for other in ["what somebody else wrote\n".to_owned(), format!("{}\n", begins(1, VERSION + 1).text)] {
            let place = Place::new();
            fs::write(place.path(), &other).expect("written");
            drop(place.open(1_000));
            assert_eq!((place.text(), place.before()), (String::new(), other));
        }
    }

    #[test]
    fn a_fresh_file_repeats_those_that_are_in_use_and_no_more_than_fit() {
        let place = Place::new();
        let mut files = place.open(3_000);
        for instance in 1..=REMEMBERED as u64 {
            files.write(begins(instance, VERSION)).expect("written");
        }
        // The first is in use again, so the second is the one that the ninth puts out.
        files.write(call(1, 0)).expect("written");
        files.write(begins(9, VERSION)).expect("written");
        while place.before().is_empty() {
            files.write(call(1, 1)).expect("written");
        }
        let repeated: Vec<bool> = (1..=9).map(|n| place.text().contains(&format!("\"instance\":{n},"))).collect();
        assert_eq!(repeated, [true, false, true, true, true, true, true, true, true], "{}", place.text());
        let mut narrow = place.open(3_000);
        narrow.beginnings.clone_from(&files.beginnings);
        narrow.max_bytes = 700;
        narrow.write(call(1, 2)).expect("written");
        assert!(place.text().len() <= 700 && place.text().contains("\"instance\":1,"), "{}", place.text());
    }

    #[test]
    fn recordings_are_for_their_owner_alone() {
        let place = Place::new();
        fs::write(place.path(), "").expect("a file");
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o644)).expect("a mode");
        let mut files = place.open(1_000);
        for number in 0..100 {
            files.write(call(1, number)).expect("written");
        }
        for path in [place.path(), previous(&place.path())] {
            assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, MODE, "{}", path.display());
        }
    }
}
