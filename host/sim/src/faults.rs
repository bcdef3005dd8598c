//! What can go wrong in a simulated world, what can be switched off in it, and how often each thing happened. Plain data.

use std::collections::BTreeMap;
use std::fmt;

/// A kind of fault. Each is counted by the state in which it struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The pool hands a page out that somebody still uses.
    Reassign,
    /// A page changes hands on the device, within a step or a copy, and the pool does not know.
    ReassignOnDevice,
    /// KV writes of a step that ended come once more.
    LateWrite,
    /// The numbers in a page stop being finite.
    NotFinite,
    /// A client goes away.
    Abort,
    /// A copy of a hand-off takes so long that many steps pass meanwhile.
    CopyDelayed,
    /// A queue fails with what it runs, and stays failed.
    StepFailure,
    /// A process ends and another one begins: the only one, or that of a pool.
    ProcessDeath,
    PolicyTrap,
    PolicyTimeout,
    /// The policy's answer names what there is not, or is longer than it may be.
    PolicyGarbage,
    /// The policy lets all work rest.
    PolicyIdle,
    /// Time leaps.
    ClockJump,
    /// More work at once than pages or places.
    Exhausted,
    /// Messages between two processes take long.
    MessageDelayed,
    /// A message comes twice, or one of an earlier connection comes once more.
    MessageDuplicated,
    /// A message overtakes the one before it.
    MessageReordered,
    /// A connection breaks, with what was on it.
    ConnectionLost,
}

impl FaultKind {
    pub const ALL: [Self; 18] = [
        Self::Reassign,
        Self::ReassignOnDevice,
        Self::LateWrite,
        Self::NotFinite,
        Self::Abort,
        Self::CopyDelayed,
        Self::StepFailure,
        Self::ProcessDeath,
        Self::PolicyTrap,
        Self::PolicyTimeout,
        Self::PolicyGarbage,
        Self::PolicyIdle,
        Self::ClockJump,
        Self::Exhausted,
        Self::MessageDelayed,
        Self::MessageDuplicated,
        Self::MessageReordered,
        Self::ConnectionLost,
    ];

    /// Whether it takes messages between processes to strike.
    pub fn is_of_messages(self) -> bool {
        matches!(self, Self::MessageDelayed | Self::MessageDuplicated | Self::MessageReordered | Self::ConnectionLost)
    }

    /// As it is written on a command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reassign => "reassign",
            Self::ReassignOnDevice => "reassign_on_device",
            Self::LateWrite => "late_write",
            Self::NotFinite => "not_finite",
            Self::Abort => "abort",
            Self::CopyDelayed => "copy_delayed",
            Self::StepFailure => "step_failure",
            Self::ProcessDeath => "process_death",
            Self::PolicyTrap => "policy_trap",
            Self::PolicyTimeout => "policy_timeout",
            Self::PolicyGarbage => "policy_garbage",
            Self::PolicyIdle => "policy_idle",
            Self::ClockJump => "clock_jump",
            Self::Exhausted => "exhausted",
            Self::MessageDelayed => "message_delayed",
            Self::MessageDuplicated => "message_duplicated",
            Self::MessageReordered => "message_reordered",
            Self::ConnectionLost => "connection_lost",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A guard that a run goes without, to show that the simulator sees what the guard prevents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GuardOff {
    /// No tag check at either end of a step.
    TagChecks,
    HeadCheck,
    TailCheck,
    /// Freed pages are free at once.
    Quarantine,
    /// Prompts find pages of any scope.
    Scope,
    /// Writes do not look at the tag; of the fake engine alone.
    WriteFence,
    /// Freed pages keep what they hold.
    Zeroing,
}

impl GuardOff {
    pub const ALL: [Self; 7] =
        [Self::TagChecks, Self::HeadCheck, Self::TailCheck, Self::Quarantine, Self::Scope, Self::WriteFence, Self::Zeroing];

    /// As it is written on a command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::TagChecks => "tag_checks",
            Self::HeadCheck => "head_check",
            Self::TailCheck => "tail_check",
            Self::Quarantine => "quarantine",
            Self::Scope => "scope",
            Self::WriteFence => "write_fence",
            Self::Zeroing => "zeroing",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|guard| guard.name() == name)
    }
}

/// What happened in one world or in many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Faults by kind and by the state in which they struck.
    pub faults: BTreeMap<(FaultKind, &'static str), u64>,
    /// Requests by how they ended.
    pub ends: BTreeMap<&'static str, u64>,
    pub requests: u64,
    /// Turns of the driver's loop; the invariants of every pool were checked after each.
    pub turns: u64,
    /// Submissions that the devices ran.
    pub submissions: u64,
    pub published_tokens: u64,
    /// Of these: tokens that the same request alone does not have.
    pub wrong_tokens: u64,
    /// Prompts that began behind pages of the prefix tree.
    pub prefix_hits: u64,
    pub preemptions: u64,
    pub hand_offs: u64,
    /// Answers of the policy that were used, and of its fallback.
    pub policy_answers: u64,
    pub fallback_answers: u64,
}

impl Tally {
    pub fn count(&mut self, kind: FaultKind, state: &'static str) {
        *self.faults.entry((kind, state)).or_default() += 1;
    }

    pub fn of(&self, kind: FaultKind) -> u64 {
        self.faults.iter().filter(|((counted, _), _)| *counted == kind).map(|(_, count)| count).sum()
    }

    /// Pages that changed hands under their owners.
    pub fn reassignments(&self) -> u64 {
        self.of(FaultKind::Reassign) + self.of(FaultKind::ReassignOnDevice)
    }

    pub fn add(&mut self, other: &Self) {
        for (&key, count) in &other.faults {
            *self.faults.entry(key).or_default() += count;
        }
        for (&end, count) in &other.ends {
            *self.ends.entry(end).or_default() += count;
        }
        let sums = [
            (&mut self.requests, other.requests),
            (&mut self.turns, other.turns),
            (&mut self.submissions, other.submissions),
            (&mut self.published_tokens, other.published_tokens),
            (&mut self.wrong_tokens, other.wrong_tokens),
            (&mut self.prefix_hits, other.prefix_hits),
            (&mut self.preemptions, other.preemptions),
            (&mut self.hand_offs, other.hand_offs),
            (&mut self.policy_answers, other.policy_answers),
            (&mut self.fallback_answers, other.fallback_answers),
        ];
        for (sum, value) in sums {
            *sum += value;
        }
    }
}
