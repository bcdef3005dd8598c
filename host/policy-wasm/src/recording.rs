//! A recording as it is read: whole lines of bounded length, numbered, of which the first says what was recorded. A crash may have
//! torn the last one, which is told and not held against the rest. It does not know how a decision is made once more.

use std::io::{BufRead, Read as _, Seek, SeekFrom};

use serde::de::{DeserializeOwned, IgnoredAny};

use crate::fault::one_line;
use crate::trace::{Event, Init, VERSION};
use crate::{PolicyKind, ReplayError};

/// A line holds the facts of one call; thousands of rows fit.
const MAX_LINE_BYTES: usize = 64 << 20;

/// A recording that is open, and of which decision it is.
#[derive(Debug)]
pub struct Recording<T> {
    trace: T,
    kind: PolicyKind,
}

/// What all of its lines together tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Survey {
    /// That can be read.
    pub(crate) lines: u64,
    /// The one behind them, if a crash cut it short.
    pub(crate) torn_line: Option<u64>,
    /// Whether some instance was of the component that is asked for.
    pub(crate) has_own: bool,
    /// The table of the first such instance, or else of the first.
    pub(crate) config: String,
}

impl<T: BufRead + Seek> Recording<T> {
    /// # Errors
    /// It is none, of another version, or cannot be read.
    pub fn open(mut trace: T) -> Result<Self, ReplayError> {
        let mut lines = Lines::of(&mut trace)?;
        let first = lines.next()?.ok_or(ReplayError::Empty)?;
        let init = match first.event::<IgnoredAny, IgnoredAny>() {
            Ok(Event::Init(init)) => init,
            Ok(Event::Call(_) | Event::Beside(_)) => {
                return Err(format_error(1, "a recording begins with an instance's init"));
            }
            Err(_) if !first.is_ended => return Err(ReplayError::Empty),
            Err(error) => return Err(error),
        };
        let kind = kind_of(&init, 1)?;
        Ok(Self { trace, kind })
    }

    /// Which decision was recorded.
    #[must_use]
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    pub(crate) fn survey(&mut self, sha256: &str) -> Result<Survey, ReplayError> {
        let kind = self.kind;
        let mut survey = Survey { lines: 0, torn_line: None, has_own: false, config: String::new() };
        let mut lines = Lines::of(&mut self.trace)?;
        while let Some(line) = lines.next()? {
            match line.event::<IgnoredAny, IgnoredAny>() {
                Ok(Event::Init(init)) => {
                    if kind_of(&init, line.number)? != kind {
                        return Err(format_error(line.number, &format!("it is about another decision than {kind}")));
                    }
                    let is_own = init.sha256 == sha256;
                    if survey.lines == 0 || (is_own && !survey.has_own) {
                        survey.config = init.config;
                    }
                    survey.has_own |= is_own;
                }
                Ok(Event::Call(_) | Event::Beside(_)) => {}
                Err(_) if !line.is_ended => {
                    survey.torn_line = Some(line.number);
                    break;
                }
                Err(error) => return Err(error),
            }
            survey.lines = line.number;
        }
        Ok(survey)
    }

    /// The first so many lines from the beginning.
    pub(crate) fn lines(&mut self) -> Result<Lines<&mut T>, ReplayError> {
        Lines::of(&mut self.trace)
    }
}

fn kind_of(init: &Init, line: u64) -> Result<PolicyKind, ReplayError> {
    if !(1..=VERSION).contains(&init.version) {
        return Err(ReplayError::Version { line, version: init.version });
    }
    let kind = PolicyKind::ALL.into_iter().find(|kind| kind.to_string() == init.kind);
    kind.ok_or_else(|| format_error(line, "it names no kind of policy"))
}

pub(crate) fn format_error(line: u64, detail: &str) -> ReplayError {
    ReplayError::Format { line, detail: one_line(detail) }
}

/// Lines of bounded length, numbered from 1.
pub(crate) struct Lines<T> {
    trace: T,
    number: u64,
}

/// One of them, without its end.
pub(crate) struct Line {
    pub(crate) number: u64,
    bytes: Vec<u8>,
    /// False: the file ends within it.
    is_ended: bool,
}

impl Line {
    pub(crate) fn event<A: DeserializeOwned, R: DeserializeOwned>(&self) -> Result<Event<A, R>, ReplayError> {
        serde_json::from_slice(&self.bytes).map_err(|error| format_error(self.number, &error.to_string()))
    }
}

impl<T: BufRead + Seek> Lines<T> {
    fn of(mut trace: T) -> Result<Self, ReplayError> {
        trace.seek(SeekFrom::Start(0)).map_err(|source| ReplayError::Read { line: 1, source })?;
        Ok(Self { trace, number: 0 })
    }

    pub(crate) fn next(&mut self) -> Result<Option<Line>, ReplayError> {
        self.number += 1;
        let number = self.number;
        let mut bytes = Vec::new();
        let read = (&mut self.trace).take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut bytes);
        let read = read.map_err(|source| ReplayError::Read { line: number, source })?;
        if read == 0 {
            return Ok(None);
        }
        let is_ended = bytes.pop_if(|byte| *byte == b'\n').is_some();
        if !is_ended && read == MAX_LINE_BYTES {
            return Err(format_error(number, &format!("longer than {MAX_LINE_BYTES} bytes")));
        }
        Ok(Some(Line { number, bytes, is_ended }))
    }
}
