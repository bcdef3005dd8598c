//! What came of a campaign's worlds, put together in the order of their seeds, so that the report does not depend on which thread was
//! first. Knows no thread and no time.

use std::collections::BTreeMap;

use super::{CampaignOptions, Report, Violation};
use crate::trace::follow;
use crate::{FaultKind, Outcome};

/// Violations that are kept; further ones are counted.
const MOST_KEPT: usize = 20;
/// Worlds in a row in which what is waited for comes no nearer; then no more are begun.
pub(super) const IN_VAIN: u64 = 2_000;

/// Whether there must be more worlds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    More,
    Enough,
}

pub(super) struct Books<'a> {
    options: &'a CampaignOptions,
    report: Report,
    /// The seed that is entered next.
    next: u64,
    /// Outcomes whose turn has not come: no more than the other threads end while one world runs.
    early: BTreeMap<u64, Outcome>,
    verdict: Verdict,
    worlds_without_progress: u64,
}

impl<'a> Books<'a> {
    pub(super) fn new(options: &'a CampaignOptions) -> Self {
        Self {
            options,
            report: Report::default(),
            next: options.from,
            early: BTreeMap::new(),
            verdict: Verdict::More,
            worlds_without_progress: 0,
        }
    }

    /// A world has ended. What comes behind the last that was wanted is not counted.
    pub(super) fn enter(&mut self, seed: u64, outcome: Outcome) -> Verdict {
        self.early.insert(seed, outcome);
        while self.verdict == Verdict::More
            && let Some(outcome) = self.early.remove(&self.next)
        {
            self.add(self.next, outcome);
            self.next += 1;
        }
        self.verdict
    }

    pub(super) fn report(&self) -> &Report {
        &self.report
    }

    pub(super) fn close(self) -> Report {
        self.report
    }

    fn add(&mut self, seed: u64, outcome: Outcome) {
        let missing = self.missing();
        let report = &mut self.report;
        report.worlds += 1;
        report.tally.add(&outcome.tally);
        report.digest = follow(report.digest, outcome.digest);
        if let Some(what) = outcome.violation {
            report.violated += 1;
            if report.violations.len() < MOST_KEPT {
                let (reassignments, reassignments_in_all) = (outcome.tally.reassignments(), report.tally.reassignments());
                report.violations.push(Violation { seed, what, reassignments, reassignments_in_all });
            }
        }
        let nearer = self.missing() < missing;
        self.worlds_without_progress = if nearer { 0 } else { self.worlds_without_progress + 1 };
        self.report.in_vain = self.missing() > 0 && self.worlds_without_progress >= IN_VAIN;
        let all = self.missing() == 0 && self.report.worlds >= self.options.seeds;
        let violated = self.options.stop_at_violation && self.report.violated > 0;
        if all || violated || self.report.in_vain {
            self.verdict = Verdict::Enough;
        }
    }

    /// Faults that are waited for still.
    fn missing(&self) -> u64 {
        let CampaignOptions { reassignments, aborts, .. } = *self.options;
        let tally = &self.report.tally;
        reassignments.saturating_sub(tally.reassignments()) + aborts.saturating_sub(tally.of(FaultKind::Abort))
    }
}
