//! A recording once more, on another build or another policy: every call with the facts, the time, the randomness and the imports'
//! results that it had then. Decisions are compared with those recorded; faults of time are not, because machines differ.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::Arc;

use millrace_policy::FaultKind;
use serde::de::IgnoredAny;

use crate::belongings::Belongings;
use crate::fault::one_line;
use crate::imports::clock_random::seed;
use crate::imports::metrics::MetricTable;
use crate::instance::{Fault, Instance, Owned};
use crate::trace::{Call, Event, Init, VERSION};
use crate::worlds::{Asking, PrecisionWorld, RouteWorld, ScheduleWorld, World};
use crate::{LoadError, LoadedPolicy, PolicyEngine, PolicyKind, PolicyOptions};

/// A line holds the facts of one call; thousands of rows fit.
const MAX_LINE_BYTES: usize = 64 << 20;
/// Instances at work at one time; a policy has one, and a second while it is rebuilt.
const MAX_INSTANCES: usize = 4;
/// Differences that are kept with their texts.
const MAX_EXAMPLES: usize = 20;

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("line {line}: cannot be read: {source}")]
    Read { line: u64, source: std::io::Error },
    #[error("line {line} is none of a recording: {detail}; give a .trace file that a host with [policy.record] wrote")]
    Format { line: u64, detail: String },
    #[error("line {line}: version {version} of the format, this program reads {VERSION}; replay it with the host's own millrace")]
    Version { line: u64, version: u32 },
    #[error("the recording is empty; ask the recorded host something first")]
    Empty,
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// What came of a replay. `calls = agreed + differed + skipped`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayReport {
    pub calls: u64,
    pub agreed: u64,
    pub differed: u64,
    /// Not compared: the recorded call was late or its imports were not recorded in full, or its instance began before the file.
    pub skipped: u64,
    /// Calls of imports that were others than then, which a policy of another text may well make.
    pub other_imports: u64,
    /// The recording begins later than an instance did: what a policy kept in its own memory is missing.
    pub continued: bool,
    /// Digest of the policy that was recorded.
    pub recorded_sha256: String,
    /// The first ones.
    pub differences: Vec<Difference>,
}

/// A call that was decided otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// In the file, from 1.
    pub line: u64,
    pub call: u64,
    /// As JSON, or the fault.
    pub recorded: String,
    pub replayed: String,
}

impl PolicyEngine {
    /// Replays a recording on a component. Without `config` the policy gets the table that was recorded.
    ///
    /// # Errors
    /// The recording cannot be read, or the policy is refused.
    pub fn replay(
        &self,
        source: &[u8],
        options: &PolicyOptions,
        config: Option<&str>,
        trace: impl BufRead,
    ) -> Result<ReplayReport, ReplayError> {
        let mut lines = Lines { trace, number: 0 };
        let first = lines.next()?.ok_or(ReplayError::Empty)?;
        let init = match parse::<IgnoredAny, IgnoredAny>(&first, 1)? {
            Event::Init(init) => init,
            Event::Call(_) => return Err(format_error(1, "a recording begins with an instance's init")),
        };
        if init.version != VERSION {
            return Err(ReplayError::Version { line: 1, version: init.version });
        }
        let kind = PolicyKind::ALL.into_iter().find(|kind| kind.to_string() == init.kind);
        let kind = kind.ok_or_else(|| format_error(1, "it names no kind of policy"))?;
        let mut options = options.clone();
        config.unwrap_or(&init.config).clone_into(&mut options.config_json);
        options.record = None;
        let loaded = self.load(source, kind, &options)?;
        match kind {
            PolicyKind::Precision => run::<PrecisionWorld>(&loaded, first, lines),
            PolicyKind::Route => run::<RouteWorld>(&loaded, first, lines),
            PolicyKind::Schedule => run::<ScheduleWorld>(&loaded, first, lines),
        }
    }
}

fn run<W: World>(loaded: &LoadedPolicy, first: String, mut lines: Lines<impl BufRead>) -> Result<ReplayReport, ReplayError> {
    let owned = || (Arc::new(Belongings::new()), Arc::new(MetricTable::default()));
    let mut replay = Replay::<W> { loaded, instances: BTreeMap::new(), owned: owned(), report: ReplayReport::default() };
    let mut text = Some(first);
    while let Some(line) = text {
        match parse::<W::Arguments, W::Answer>(&line, lines.number)? {
            Event::Init(init) => replay.begin(init)?,
            Event::Call(call) => replay.call(lines.number, call),
        }
        text = lines.next()?;
    }
    Ok(replay.report)
}

struct Replay<'a, W: World> {
    loaded: &'a LoadedPolicy,
    /// By the number that the recording gives, with the seed of the recorded policy.
    instances: BTreeMap<u64, (Instance<W>, u64)>,
    owned: (Arc<Belongings>, Arc<MetricTable>),
    report: ReplayReport,
}

impl<W: World> Replay<'_, W> {
    fn begin(&mut self, init: Init) -> Result<(), ReplayError> {
        self.report.continued |= init.continued;
        self.report.recorded_sha256 = init.sha256;
        if init.info.is_none() {
            return Ok(());
        }
        if self.instances.len() == MAX_INSTANCES {
            self.instances.pop_first();
        }
        let (belongings, metrics) = self.owned.clone();
        let owned = Owned { belongings, metrics };
        let started = Instance::new(&self.loaded.prepared, owned).map_err(Fault::from).and_then(|mut instance| {
            instance.moment(init.now_us, seed(init.seed, 0));
            instance.replay_imports(init.imports);
            instance.init()?.map_err(|refusal| (FaultKind::Invalid, refusal))?;
            self.report.other_imports += instance.diverged_imports();
            Ok(instance)
        });
        let instance = started.map_err(|(kind, detail)| LoadError::Fault { phase: "`init`", kind, detail })?;
        self.instances.insert(init.instance, (instance, init.seed));
        Ok(())
    }

    fn call(&mut self, line: u64, call: Call<W::Arguments, W::Answer>) {
        self.report.calls += 1;
        let comparable = !call.imports.cut && !call.fault.as_deref().is_some_and(is_of_time);
        let instance = self.instances.get_mut(&call.instance);
        let (Some((instance, digest)), true) = (instance, comparable) else {
            self.report.skipped += 1;
            return;
        };
        let mut facts = call.facts;
        W::narrow(&mut facts, self.loaded.wants());
        instance.moment(call.now_us, seed(*digest, call.call));
        instance.replay_imports(call.imports);
        let asking = Asking { call: call.call, deadline_us: instance.setup_us() };
        let answer = instance.decide_now(asking, facts);
        self.report.other_imports += instance.diverged_imports();
        let agreed = match (&answer, &call.answer) {
            (Ok(now), Some(then)) => now == then,
            (Err((kind, _)), None) => call.fault.as_deref() == Some(&kind.to_string()),
            _ => false,
        };
        let replayed = match answer {
            Ok(answer) => json(&answer),
            Err((kind, detail)) => {
                // As in a host: an instance that failed is not asked again.
                self.instances.remove(&call.instance);
                format!("{kind}: {}", one_line(&detail))
            }
        };
        if agreed {
            self.report.agreed += 1;
            return;
        }
        self.report.differed += 1;
        if self.report.differences.len() < MAX_EXAMPLES {
            let recorded = call.answer.as_ref().map_or_else(|| call.fault.unwrap_or_default(), json);
            self.report.differences.push(Difference { line, call: call.call, recorded, replayed });
        }
    }
}

/// Whether a fault depends on the machine.
fn is_of_time(fault: &str) -> bool {
    [FaultKind::Timeout, FaultKind::Late, FaultKind::Unavailable].iter().any(|kind| kind.to_string() == fault)
}

/// Answers are tuples of one.
fn json<R: serde::Serialize>(answer: &R) -> String {
    let text = serde_json::to_string(answer).unwrap_or_default();
    text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).map_or(text.clone(), str::to_owned)
}

fn parse<A: serde::de::DeserializeOwned, R: serde::de::DeserializeOwned>(
    line: &str,
    number: u64,
) -> Result<Event<A, R>, ReplayError> {
    serde_json::from_str(line).map_err(|error| format_error(number, &error.to_string()))
}

fn format_error(line: u64, detail: &str) -> ReplayError {
    ReplayError::Format { line, detail: one_line(detail) }
}

/// Lines of bounded length, numbered.
struct Lines<T> {
    trace: T,
    number: u64,
}

impl<T: BufRead> Lines<T> {
    fn next(&mut self) -> Result<Option<String>, ReplayError> {
        self.number += 1;
        let line = self.number;
        let mut bytes = Vec::new();
        let limit = MAX_LINE_BYTES as u64;
        let read = std::io::Read::take(&mut self.trace, limit).read_until(b'\n', &mut bytes);
        let read = read.map_err(|source| ReplayError::Read { line, source })?;
        if read == 0 {
            return Ok(None);
        }
        if bytes.pop_if(|byte| *byte == b'\n').is_none() && read == MAX_LINE_BYTES {
            return Err(format_error(line, &format!("longer than {MAX_LINE_BYTES} bytes")));
        }
        String::from_utf8(bytes).map(Some).map_err(|_| format_error(line, "not UTF-8"))
    }
}
