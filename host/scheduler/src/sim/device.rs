//! A device that holds numbers in pages and beside them the tags, and works its queue off when asked: late, as a GPU does.
//!
//! The entry of a position hashes (the entry before it, token, position), the first one the sequence's scope; a drawn token
//! hashes all entries of the table. So a page that is another's, follows other tokens, was zeroed or was never written shows in
//! the token.

use std::collections::{BTreeMap, VecDeque};

use millrace_core::{FinishReason, SeqId};
use millrace_kv::{PageRef, PrefixScope, TagChange};

use super::PAGE_TOKENS;
use crate::{Entry, Outcome, OutcomeStatus, PlanRow, StepPlan};

pub(crate) const VOCAB: u64 = 97;

fn mix(state: u64, value: u64) -> u64 {
    let mixed = (state ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

/// What the first entry follows.
fn origin(scope: Option<PrefixScope>) -> u64 {
    scope.map_or(3, |scope| mix(4, u64::from(scope.0[0])))
}

fn kv_entry(before: u64, token: u32, position: u32) -> u64 {
    mix(mix(before, u64::from(token) + 1), u64::from(position)) | 1
}

fn draw(entries: impl Iterator<Item = u64>) -> u32 {
    (mix(entries.fold(1, mix), 5) % VOCAB) as u32
}

/// The output of a sequence that has the device to itself, and why it ends.
pub(crate) fn alone(entry: &Entry, max_context: u32) -> (Vec<u32>, FinishReason) {
    let mut tokens = entry.prompt.to_vec();
    let (mut output, mut entries) = (Vec::new(), Vec::new());
    loop {
        for (&token, position) in tokens.iter().zip(0..).skip(entries.len()) {
            let before = entries.last().copied().unwrap_or_else(|| origin(entry.scope));
            entries.push(kv_entry(before, token, position));
        }
        let token = draw(entries.iter().copied());
        if entry.stop_tokens.contains(&token) {
            return (output, FinishReason::Stop);
        }
        output.push(token);
        tokens.push(token);
        if output.len() as u32 >= entry.max_output || tokens.len() as u32 >= max_context {
            return (output, FinishReason::Length);
        }
    }
}

enum Work {
    Tags(Vec<TagChange>),
    Step(StepPlan),
    /// Writes a page if it carries the tag.
    Write(PageRef, Vec<u64>),
}

pub(crate) struct Device {
    tags: Vec<u64>,
    pages: Vec<Vec<u64>>,
    queue: VecDeque<Work>,
    done: Vec<(u64, Vec<Outcome>)>,
    scopes: BTreeMap<SeqId, Option<PrefixScope>>,
}

impl Device {
    pub(crate) fn new(pages: u32) -> Self {
        let empty = vec![0; PAGE_TOKENS as usize];
        Self {
            tags: vec![0; pages as usize],
            pages: vec![empty; pages as usize],
            queue: VecDeque::new(),
            done: Vec::new(),
            scopes: BTreeMap::new(),
        }
    }

    /// A sequence that steps may name from now on.
    pub(crate) fn know(&mut self, entry: &Entry) {
        self.scopes.insert(entry.seq, entry.scope);
    }

    pub(crate) fn apply(&mut self, changes: Vec<TagChange>) {
        self.queue.push_back(Work::Tags(changes));
    }

    pub(crate) fn write(&mut self, page: PageRef, entries: Vec<u64>) {
        self.queue.push_back(Work::Write(page, entries));
    }

    pub(crate) fn launch(&mut self, mut plan: StepPlan) {
        self.apply(std::mem::take(&mut plan.changes));
        self.queue.push_back(Work::Step(plan));
    }

    /// Works off the whole queue and returns the outcomes of the step.
    pub(crate) fn finish(&mut self, step: u64) -> Vec<Outcome> {
        self.run();
        let position = self.done.iter().position(|(done, _)| *done == step).expect("the step was launched");
        self.done.swap_remove(position).1
    }

    /// The page's entries, if it carries the tag.
    pub(crate) fn read(&mut self, page: PageRef) -> Option<Vec<u64>> {
        self.run();
        self.carries(page).then(|| self.pages[page.page.0 as usize].clone())
    }

    pub(crate) fn run(&mut self) {
        while let Some(work) = self.queue.pop_front() {
            match work {
                Work::Tags(changes) => changes.into_iter().for_each(|change| self.change(change)),
                Work::Write(page, entries) => {
                    if self.carries(page) {
                        self.pages[page.page.0 as usize] = entries;
                    }
                }
                Work::Step(plan) => {
                    let outcomes = plan.rows.iter().map(|row| self.row(row)).collect();
                    self.done.push((plan.step, outcomes));
                }
            }
        }
    }

    /// Whether every page is zeros.
    pub(crate) fn is_blank(&mut self) -> bool {
        self.run();
        self.pages.iter().flatten().all(|&entry| entry == 0)
    }

    fn change(&mut self, change: TagChange) {
        let page = change.page.0 as usize;
        assert!(self.tags[page] < change.tag.raw(), "tags of a page rise");
        self.tags[page] = change.tag.raw();
        if change.zero {
            self.pages[page].fill(0);
        }
    }

    fn carries(&self, page: PageRef) -> bool {
        self.tags[page.page.0 as usize] == page.tag.raw()
    }

    fn row(&mut self, row: &PlanRow) -> Outcome {
        let outcome = |token, status| Outcome { seq: row.seq, epoch: row.epoch, token, status };
        if !row.table.iter().all(|&page| self.carries(page)) {
            return outcome(0, OutcomeStatus::StalePage);
        }
        let slot =
            |position: u32| (row.table[(position / PAGE_TOKENS) as usize].page.0 as usize, (position % PAGE_TOKENS) as usize);
        for (&token, position) in row.tokens.iter().zip(row.start..) {
            let before = position.checked_sub(1).map(slot).map(|(page, offset)| self.pages[page][offset]);
            let (page, offset) = slot(position);
            let before = before.unwrap_or_else(|| origin(self.scopes[&row.seq]));
            self.pages[page][offset] = kv_entry(before, token, position);
        }
        let end = row.start + row.tokens.len() as u32;
        assert_eq!(row.table.len() as u32, end.div_ceil(PAGE_TOKENS), "a table lists the used pages");
        let entries = (0..end).map(slot).map(|(page, offset)| self.pages[page][offset]);
        outcome(if row.sample { draw(entries) } else { 0 }, OutcomeStatus::Ok)
    }
}
