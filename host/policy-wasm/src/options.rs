//! What an operator says about a policy: its kind, its grants, its limits. Plain data; it does not know TOML.

use std::fmt;

use crate::Recorder;

/// Which decision a policy makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyKind {
    Precision,
    Route,
    Schedule,
}

/// An import that needs a grant. Clock and random do not: both are frozen per call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Grant {
    Log,
    Metrics,
    State,
}

/// Bounds of one policy. There is no "unlimited".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyLimits {
    /// A decision that takes longer is interrupted, at most two ticks of the engine later. Counts the time that its thread had a
    /// core; with waiting for one it may take eight times as long.
    pub deadline_us: u64,
    /// Bound of instantiating, `check-config`, `init` and each smoke decision.
    pub setup_us: u64,
    /// All linear memories of an instance together.
    pub memory_bytes: usize,
    /// Elements of all tables of an instance together.
    pub table_elements: usize,
    /// What a guest may hand to the host in one call, answers and arguments of imports alike.
    pub output_bytes: usize,
    /// Size of the component.
    pub component_bytes: usize,
    /// Compile time.
    pub compile_us: u64,
    pub log_lines_per_second: u32,
    pub metric_names: usize,
    pub state_keys: usize,
    /// Keys and values together.
    pub state_bytes: usize,
}

/// How to load a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyOptions {
    /// The policy's name in the configuration; `state` belongs to it and outlives swaps.
    pub name: String,
    /// For messages: `built-in` or a path.
    pub origin: String,
    /// The policy's table as a JSON object.
    pub config_json: String,
    /// Pins the bytes: 64 hex digits, of the file as it is.
    pub sha256: Option<String>,
    pub grants: Vec<Grant>,
    pub limits: PolicyLimits,
    /// Where what it does is written down.
    pub record: Option<Recorder>,
}

impl PolicyKind {
    pub const ALL: [Self; 3] = [Self::Precision, Self::Route, Self::Schedule];

    /// The interface that a policy of this kind exports, without version.
    #[must_use]
    pub fn interface(self) -> &'static str {
        match self {
            Self::Precision => "millrace:policy/precision",
            Self::Route => "millrace:policy/route",
            Self::Schedule => "millrace:policy/schedule",
        }
    }

    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::Precision => "choose",
            Self::Route => "decide",
            Self::Schedule => "plan-step",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Precision => "precision",
            Self::Route => "route",
            Self::Schedule => "schedule",
        })
    }
}

impl Grant {
    pub const ALL: [Self; 3] = [Self::Log, Self::Metrics, Self::State];
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Log => "log",
            Self::Metrics => "metrics",
            Self::State => "state",
        })
    }
}

/// Rows of the largest table that a host gives: as many sequences as a pool may have, and in prefill one that waits.
pub const MAX_ROWS: usize = (1 << 16) + 1;
/// A schedule names every row to run, how many tokens of it, and once more to preempt; a precision choice is as long; a route is
/// shorter. The rest is for texts.
const OUTPUT_BYTES: usize = MAX_ROWS * 12 + (4 << 10);

impl PolicyLimits {
    /// Sane for compiled and interpreted guests alike. The schedule's deadline is the shortest: a step waits for it.
    #[must_use]
    pub fn of(kind: PolicyKind) -> Self {
        Self {
            deadline_us: if kind == PolicyKind::Route { 5_000 } else { 2_000 },
            setup_us: 500_000,
            memory_bytes: 64 << 20,
            table_elements: 100_000,
            output_bytes: OUTPUT_BYTES,
            component_bytes: 64 << 20,
            compile_us: 120_000_000,
            log_lines_per_second: 20,
            metric_names: 32,
            state_keys: 256,
            state_bytes: 64 << 10,
        }
    }
}

impl PolicyOptions {
    /// No configuration, no pin, every grant, default limits.
    #[must_use]
    pub fn new(name: &str, kind: PolicyKind) -> Self {
        Self {
            name: name.to_owned(),
            origin: name.to_owned(),
            config_json: "{}".to_owned(),
            sha256: None,
            grants: Grant::ALL.to_vec(),
            limits: PolicyLimits::of(kind),
            record: None,
        }
    }
}
