//! What one tenant's first tokens cost it beside another that wants more than there is, in virtual time: the same requests with the
//! other one away, held by what an operator can set, and not held. No faults; every token is judged nevertheless.
//!
//! One device runs what the pools of a lane submit, in the order in which it comes, at the prices of `price`. So a figure says what
//! scheduling and quotas do, on a machine of that speed, and not how fast the code is.

mod arm;
mod door;
mod price;

use millrace_scheduler::StageLimits;

use crate::lab::{EngineKind, Lab, Shape};
use crate::policy::{Guest, PolicyChoice};
use crate::rng::Rng;
use crate::workload::TENANTS;
use crate::{Contest, SimError};

use arm::{Arm, run};
use door::Quota;

/// Requests of the tenant that is measured.
const MEASURED: u32 = 120;
/// Between two of them: never so close that one waits for the other where they are alone.
const EVERY_US: (u64, u32) = (2_600_000, 800_000);
/// Its prompts: a part that all have alike, and one of their own.
const SHARED_TOKENS: u32 = 512;
const OWN_TOKENS: u32 = 3_500;
/// The rival's prompts, each of its own.
const RIVAL_TOKENS: u32 = 1_200;
const OUTPUT_TOKENS: u32 = 16;
/// Of the rival's answers where it floods: as long as decode has many of them, prefill cannot hand over what it has.
const FLOOD_OUTPUT_TOKENS: u32 = 200;
/// Every prompt with its answer.
const CONTEXT: u32 = 4_096;
/// A tenant that sends this many times its share, which is half of what the device can do.
const TIMES_ITS_SHARE: u64 = 20;
/// Of a prompt of the rival in prefill and of its answer in decode, all alone, as `price` has it.
const RIVAL_WORK_US: u64 = 450_000;

/// One way of running the same requests, and how long first tokens took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArmReport {
    pub name: &'static str,
    /// Of the tenant that is measured, in microseconds from its asking to its first token.
    pub ttft_us: Percentiles,
    pub answered: u32,
    pub refused: u32,
    /// Prompts of it that began behind pages of the prefix tree.
    pub prefix_hits: u32,
    pub rival_answered: u32,
    pub rival_refused: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Percentiles {
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
}

impl Percentiles {
    fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        // The smallest value that so many of a hundred do not pass.
        let at = |percent: usize| values.get((values.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0);
        Self { p50: at(50), p95: at(95), p99: at(99) }
    }
}

/// What came of a contest: the tenant alone, beside the rival held, beside the rival not held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContestReport {
    pub contest: Contest,
    pub alone: ArmReport,
    pub held: ArmReport,
    pub free: ArmReport,
}

impl Contest {
    pub const ALL: [Self; 2] = [Self::Flood, Self::Fairness];

    /// As it is written on a command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flood => "flood",
            Self::Fairness => "fairness",
        }
    }

    /// Of the tenant's time alone, what it may be beside the held rival, in thousandths.
    pub fn most_per_mille(self) -> u64 {
        match self {
            Self::Flood => 1_200,
            Self::Fairness => 1_300,
        }
    }

    /// The percentile that is compared, and its name.
    pub fn compared(self, of: &Percentiles) -> (&'static str, u64) {
        match self {
            Self::Flood => ("p95", of.p95),
            Self::Fairness => ("p99", of.p99),
        }
    }
}

impl ContestReport {
    /// An arm's percentile as a part of what it is alone, in thousandths, rounded up.
    pub fn per_mille(&self, arm: &ArmReport) -> u64 {
        let of = |arm: &ArmReport| self.contest.compared(&arm.ttft_us).1;
        (of(arm) * 1_000).div_ceil(of(&self.alone).max(1))
    }

    /// Whether the tenant keeps what it is promised.
    pub fn holds(&self) -> bool {
        self.per_mille(&self.held) <= self.contest.most_per_mille()
    }
}

/// Runs the three arms of a contest on the fake engine.
///
/// # Errors
/// An engine cannot be built or a policy not loaded, or a request gets another answer than it has alone, or none.
pub fn contest(contest: Contest, seed: u64) -> Result<ContestReport, SimError> {
    let lab = Lab::new(EngineKind::Fake)?;
    let [alone, held, free] = arms(contest).map(|arm| run(&lab, seed, &arm));
    Ok(ContestReport { contest, alone: alone?, held: held?, free: free? })
}

fn arms(contest: Contest) -> [Arm; 3] {
    let fair = PolicyChoice::Guest(Guest::Fair);
    let alone = Arm {
        name: "alone",
        policy: fair,
        rival_every_us: None,
        rival_output: OUTPUT_TOKENS,
        quota: Quota::NONE,
        owner_pages: u32::MAX,
        weights: [1; TENANTS as usize],
    };
    // Each tenant's requests wait apart at the door, so that the one that sends too much is refused, and not the other.
    let waits = Quota { max_waiting: 64, ..Quota::NONE };
    match contest {
        // As fast as it is answered or refused, and faster.
        Contest::Flood => {
            let floods = Arm { rival_every_us: Some(RIVAL_WORK_US / 10), rival_output: FLOOD_OUTPUT_TOKENS, ..alone };
            // The default of `prefix_tenant_percent`: equal shares.
            let share = shape(&alone).pages[0] / TENANTS;
            // What it is sold: most of what there is when it wants it, and the rival what is left, one request at a time.
            let (weights, quota) = ([4, 1, 1], Quota { max_running: 1, ..waits });
            [
                alone,
                Arm { name: "quotas", quota, weights, owner_pages: share, ..floods },
                Arm { name: "no quotas", quota: waits, ..floods },
            ]
        }
        Contest::Fairness => {
            let every_us = Some(2 * RIVAL_WORK_US / TIMES_ITS_SHARE);
            let beside = Arm { rival_every_us: every_us, quota: waits, ..alone };
            let fcfs = PolicyChoice::Guest(Guest::Fcfs);
            [alone, Arm { name: "fair", ..beside }, Arm { name: "fcfs", policy: fcfs, ..beside }]
        }
    }
}

/// What an operator sets, in all arms alike.
fn shape(arm: &Arm) -> Shape {
    let limits = StageLimits {
        max_step_tokens: 0,
        // Half the default: of two such steps a first token may have to wait for others' tokens.
        max_step_us: Some(50_000),
        max_sequences: 16,
        max_resident: 16,
        max_waiting: 512,
        max_context: CONTEXT,
        watermark_pages: 8,
        max_preemptions: 3,
        max_view_rows: 256,
        step_us_hint: 10_000,
    };
    // Sixteen of the longest prompts, in either pool.
    let pages = 16 * (SHARED_TOKENS + OWN_TOKENS + OUTPUT_TOKENS).div_ceil(32);
    Shape {
        page_tokens: 32,
        pages: [pages; 2],
        limits,
        chunk: 512,
        owner_pages: Some(arm.owner_pages),
        max_waiting: 512,
        weights: arm.weights,
    }
}

/// Tokens of a prompt of the measured tenant.
fn measured_prompt(rng: &mut Rng) -> Vec<u32> {
    let shared = (0..SHARED_TOKENS).map(|position| position * 5 % crate::device::entry::POISON);
    shared.chain((0..OWN_TOKENS).map(|_| rng.below(crate::device::entry::POISON))).collect()
}

fn rival_prompt(rng: &mut Rng) -> Vec<u32> {
    (0..RIVAL_TOKENS).map(|_| rng.below(crate::device::entry::POISON)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        assert_eq!(Percentiles::of((1..=100).rev().collect()), Percentiles { p50: 50, p95: 95, p99: 99 });
        assert_eq!(Percentiles::of(vec![7]), Percentiles { p50: 7, p95: 7, p99: 7 });
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }
}
