//! A recording once more, on another build or another policy: every call with the facts, the time, the randomness and the imports'
//! results that it had then, and between them what it heard and handed over, so that it knows what it knew. Decisions are compared with
//! those recorded; faults of time are not, because machines differ.
//!
//! Where policies were swapped while it was recorded, a component that was among them is compared with its own decisions alone, and
//! exactly; one that was not is compared with all, by what a host would do with the answers.

mod beside;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{BufRead, Seek};
use std::sync::Arc;

use millrace_policy::FaultKind;

use crate::belongings::Belongings;
use crate::fault::one_line;
use crate::imports::clock_random::seed;
use crate::imports::metrics::MetricTable;
use crate::instance::{Fault, Instance, Owned};
use crate::load::{digest, sorted};
use crate::recording::{Recording, Survey};
use crate::trace::{Call, Event, Init, VERSION, VERSION_WITH_BESIDE};
use crate::worlds::{Asking, PrecisionWorld, RouteWorld, ScheduleWorld, World};
use crate::{LoadError, LoadedPolicy, PolicyEngine, PolicyKind, PolicyOptions};

/// Instances at work at one time: the one in force, those on the way back, and those being rebuilt.
const MAX_INSTANCES: usize = 8;
/// Numbers of instances that are remembered without them.
const MAX_NUMBERS: usize = 4_096;
/// Differences that are kept with their texts.
const MAX_EXAMPLES: usize = 20;

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("line {line}: cannot be read: {source}")]
    Read { line: u64, source: std::io::Error },
    #[error("line {line} is none of a recording: {detail}; give a .trace file that a host with [policy.record] wrote")]
    Format { line: u64, detail: String },
    #[error(
        "line {line}: version {version} of the format, this program reads 1 to {VERSION}; replay it with the host's own millrace"
    )]
    Version { line: u64, version: u32 },
    #[error("the recording has no whole line; ask the recorded host something first")]
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
    /// Not compared: of another component, late, its imports not recorded in full, or its instance began before the file or did
    /// not start.
    pub skipped: u64,
    /// Of those that were skipped: another component decided them, and this one is in the recording too.
    pub of_others: u64,
    /// Of those that were skipped: so many instances of this component were begun since that theirs was given up.
    pub of_given_up: u64,
    /// Why an instance did not start, the first one that did not.
    pub not_started: Option<String>,
    /// A crash cut this line short, the last one; it is no call.
    pub torn_line: Option<u64>,
    /// Calls of imports that were others than then, which a policy of another text may well make.
    pub other_imports: u64,
    /// The recording begins later than an instance did: what a policy kept in its own memory is missing.
    pub continued: bool,
    /// What was called beside decisions, `feedback` and `handover`.
    pub beside: BesideReport,
    /// Events that the recording lacks between others, because there was no room for them: what a policy learnt in them is missing.
    pub missed: u64,
    /// An older host wrote the recording, which left out what is called beside decisions, and this policy exports that.
    pub without_beside: bool,
    /// Digest of the policy that was recorded, of several the last that was compared with.
    pub recorded_sha256: String,
    /// The first ones.
    pub differences: Vec<Difference>,
}

/// What came of what is called beside decisions. `calls = agreed + differed + skipped`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BesideReport {
    pub calls: u64,
    pub agreed: u64,
    pub differed: u64,
    /// As with decisions; or this policy does not export it, or is another one and refused memory that is not its own.
    pub skipped: u64,
}

/// What a policy was called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The decision of this number.
    Call(u64),
    Feedback,
    Save,
    Restore,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(number) => write!(f, "call {number}"),
            Self::Feedback => f.write_str("feedback"),
            Self::Save => f.write_str("save of handover"),
            Self::Restore => f.write_str("restore of handover"),
        }
    }
}

/// A call that came to another end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// In the file, from 1.
    pub line: u64,
    pub asked: Asked,
    /// As JSON, what was saved in hexadecimal digits, or the fault.
    pub recorded: String,
    pub replayed: String,
}

impl PolicyEngine {
    /// Replays a recording on a component. Without `config` each instance gets the table that it had then.
    ///
    /// # Errors
    /// The recording cannot be read, or the policy is refused.
    pub fn replay(
        &self,
        source: &[u8],
        options: &PolicyOptions,
        config: Option<&str>,
        mut recording: Recording<impl BufRead + Seek>,
    ) -> Result<ReplayReport, ReplayError> {
        let survey = recording.survey(&digest(source).0)?;
        let mut options = options.clone();
        config.unwrap_or(&survey.config).clone_into(&mut options.config_json);
        options.record = None;
        let loaded = self.load(source, recording.kind(), &options)?;
        let asked = (&loaded, config);
        match recording.kind() {
            PolicyKind::Precision => run::<PrecisionWorld>(asked, &survey, recording),
            PolicyKind::Route => run::<RouteWorld>(asked, &survey, recording),
            PolicyKind::Schedule => run::<ScheduleWorld>(asked, &survey, recording),
        }
    }
}

fn run<W: World>(
    (loaded, config): (&LoadedPolicy, Option<&str>),
    survey: &Survey,
    mut recording: Recording<impl BufRead + Seek>,
) -> Result<ReplayReport, ReplayError> {
    let owned = (Arc::new(Belongings::new()), Arc::new(MetricTable::default()));
    let report = ReplayReport { torn_line: survey.torn_line, ..ReplayReport::default() };
    let mut replay = Replay::<W> {
        loaded,
        config,
        has_own: survey.has_own,
        instances: BTreeMap::new(),
        others: Numbers::default(),
        given_up: Numbers::default(),
        owned,
        report,
    };
    let mut lines = recording.lines()?;
    for _ in 0..survey.lines {
        let Some(line) = lines.next()? else { break };
        match line.event::<W::Arguments, W::Answer>()? {
            Event::Init(init) => replay.begin(line.number, init),
            Event::Call(call) => replay.call(line.number, call),
            Event::Beside(beside) => replay.beside(line.number, beside),
        }
    }
    Ok(replay.report)
}

struct Replay<'a, W: World> {
    loaded: &'a LoadedPolicy,
    /// In place of the tables that were recorded.
    config: Option<&'a str>,
    /// The component is among those recorded, so that others' decisions are none of its.
    has_own: bool,
    /// By the number that the recording gives.
    instances: BTreeMap<u64, Replayed<W>>,
    /// Instances of other components, which are left out.
    others: Numbers,
    given_up: Numbers,
    owned: (Arc<Belongings>, Arc<MetricTable>),
    report: ReplayReport,
}

/// An instance of the recording.
struct Replayed<W: World> {
    /// None did not start, or failed.
    instance: Option<Instance<W>>,
    /// Of the recorded policy.
    seed: u64,
    /// Sorted.
    wants: Vec<u32>,
    /// Line of its last event.
    used: u64,
    /// How it began, where it may have to begin once more.
    begun: Option<Init>,
}

/// The last instances of some kind, by number. Those of a host count up.
#[derive(Default)]
struct Numbers(BTreeSet<u64>);

impl Numbers {
    fn insert(&mut self, number: u64) {
        if self.0.len() == MAX_NUMBERS {
            self.0.pop_first();
        }
        self.0.insert(number);
    }
}

impl<W: World> Replay<'_, W> {
    fn begin(&mut self, line: u64, init: Init) {
        self.instances.remove(&init.instance);
        self.others.0.remove(&init.instance);
        self.given_up.0.remove(&init.instance);
        if init.info.is_none() {
            return;
        }
        if self.has_own && init.sha256 != self.loaded.info().sha256 {
            return self.others.insert(init.instance);
        }
        if self.instances.len() == MAX_INSTANCES {
            let longest_idle = self.instances.iter().min_by_key(|(_, replayed)| replayed.used).map(|(number, _)| *number);
            if let Some(number) = longest_idle.filter(|number| self.instances.remove(number).is_some()) {
                self.given_up.insert(number);
            }
        }
        let (number, seed) = (init.instance, init.seed);
        let mut replayed = Replayed { instance: None, seed, wants: Vec::new(), used: line, begun: None };
        self.report.continued |= init.continued;
        self.report.without_beside |= init.version < VERSION_WITH_BESIDE && self.exports_beside();
        self.report.recorded_sha256.clone_from(&init.sha256);
        replayed.begun = (!self.exactly()).then(|| init.clone());
        match self.start(init) {
            Ok((instance, wants)) => (replayed.instance, replayed.wants) = (Some(instance), wants),
            Err((kind, detail)) => {
                self.report.not_started.get_or_insert_with(|| format!("line {line}: {kind}: {}", one_line(&detail)));
            }
        }
        self.instances.insert(number, replayed);
    }

    fn start(&mut self, init: Init) -> Result<(Instance<W>, Vec<u32>), Fault> {
        let (belongings, metrics) = self.owned.clone();
        let mut instance = Instance::new(&self.loaded.prepared, Owned { belongings, metrics })?;
        instance.moment(init.now_us, seed(init.seed, 0));
        instance.replay_imports(init.imports);
        let config = self.config.map_or(init.config, str::to_owned);
        let info = instance.init_with(config)?.map_err(|refusal| (FaultKind::Invalid, refusal))?;
        self.report.other_imports += instance.diverged_imports();
        Ok((instance, sorted(&info.wants)))
    }

    fn call(&mut self, line: u64, call: Call<W::Arguments, W::Answer>) {
        self.report.calls += 1;
        let comparable = !call.imports.cut && !call.fault.as_deref().is_some_and(is_of_time);
        // The same component on the same table has no reason to differ in anything.
        let exactly = self.exactly();
        let replayed = self.instances.get_mut(&call.instance);
        let Some(replayed) = replayed else {
            self.report.skipped += 1;
            self.report.of_others += u64::from(self.others.0.contains(&call.instance));
            self.report.of_given_up += u64::from(self.given_up.0.contains(&call.instance));
            return;
        };
        replayed.used = line;
        self.report.missed += call.missed;
        let (Some(instance), true) = (&mut replayed.instance, comparable) else {
            self.report.skipped += 1;
            return;
        };
        let asked = call.facts;
        let mut facts = asked.clone();
        W::narrow(&mut facts, &replayed.wants);
        instance.moment(call.now_us, seed(replayed.seed, call.call));
        instance.replay_imports(call.imports);
        let asking = Asking { call: call.call, deadline_us: instance.setup_us() };
        let answer = instance.decide_now(asking, facts);
        self.report.other_imports += instance.diverged_imports();
        let agreed = match (&answer, &call.answer) {
            (Ok(now), Some(then)) => now == then || (!exactly && W::agree(&asked, now, then)),
            (Err((kind, _)), None) => call.fault.as_deref() == Some(&kind.to_string()),
            _ => false,
        };
        let now = match answer {
            Ok(answer) => json(&answer),
            Err((kind, detail)) => {
                // As in a host: an instance that failed is not asked again.
                replayed.instance = None;
                format!("{kind}: {}", one_line(&detail))
            }
        };
        if agreed {
            self.report.agreed += 1;
            return;
        }
        self.report.differed += 1;
        let recorded = call.answer.as_ref().map_or_else(|| call.fault.unwrap_or_default(), json);
        self.differs(Difference { line, asked: Asked::Call(call.call), recorded, replayed: now });
    }

    /// Keeps the first ones.
    fn differs(&mut self, difference: Difference) {
        if self.report.differences.len() < MAX_EXAMPLES {
            self.report.differences.push(difference);
        }
    }

    /// Whether the policy is the one that was recorded, on its own table.
    fn exactly(&self) -> bool {
        self.has_own && self.config.is_none()
    }

    fn exports_beside(&self) -> bool {
        let exports = self.loaded.prepared.exports.optional;
        exports.observes() || exports.hands_over()
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
