//! Who is in force and who was before: the way back. Returns what is to be dropped, because dropping takes longer than a caller
//! that holds a lock should. It does not know why somebody takes over.
//!
//! ```text
//!   base <- earlier[0] <- .. <- earlier[3] <- active            base: the built-in, never dropped
//!
//!   put:        active joins `earlier` if it is proven, at most 4 stay; new is active
//!   roll back:  active is dropped; the last of `earlier` is active, or the base
//!   to base:    active and all of `earlier` are dropped; the base is active
//! ```

use std::collections::VecDeque;

use crate::generation::Generation;
use crate::{BreakerSettings, Policy, PolicyInfo};

/// Proven generations that are kept beside the one in force and the base; each keeps its memory.
pub const MAX_EARLIER: usize = 4;

/// See the module's drawing.
pub(crate) struct Lineage<P: ?Sized> {
    pub(crate) active: Generation<P>,
    /// None while it is in force itself.
    base: Option<Generation<P>>,
    /// The latest last.
    earlier: VecDeque<Generation<P>>,
    numbers: u64,
    settings: BreakerSettings,
}

/// To be dropped where it holds nobody up.
pub(crate) type Retired<P> = Vec<Generation<P>>;

impl<P: Policy + ?Sized> Lineage<P> {
    /// The first policy is the base, and in force.
    pub(crate) fn new(policy: Box<P>, info: PolicyInfo, settings: BreakerSettings) -> Self {
        let active = Generation::new(policy, info, 1, settings);
        Self { active, base: None, earlier: VecDeque::new(), numbers: 1, settings }
    }

    /// The first policy is the base, this one is in force.
    pub(crate) fn starting_with(mut self, policy: Box<P>, info: PolicyInfo) -> Self {
        let first = Generation::new(policy, info, 1, self.settings);
        self.base = Some(std::mem::replace(&mut self.active, first));
        self
    }

    /// Puts a new policy in force; returns who was.
    pub(crate) fn put(&mut self, policy: Box<P>, info: PolicyInfo) -> (PolicyInfo, Retired<P>) {
        let number = self.next_number();
        let old = std::mem::replace(&mut self.active, Generation::new(policy, info, number, self.settings));
        let was = old.info.clone();
        let mut retired = Vec::new();
        if self.base.is_none() {
            self.base = Some(old);
        } else if old.is_worth_keeping() {
            self.earlier.push_back(old);
            if self.earlier.len() > MAX_EARLIER {
                retired.extend(self.earlier.pop_front());
            }
        } else {
            retired.push(old);
        }
        (was, retired)
    }

    /// One back; none if the base is in force.
    pub(crate) fn roll_back(&mut self) -> Option<Retired<P>> {
        let target = self.earlier.pop_back().or_else(|| self.base.take())?;
        Some(vec![self.restore(target)])
    }

    /// All the way back; nothing if the base is in force.
    pub(crate) fn return_to_base(&mut self) -> Retired<P> {
        let mut retired: Retired<P> = self.earlier.drain(..).collect();
        if let Some(base) = self.base.take() {
            retired.push(self.restore(base));
        }
        retired
    }

    /// Who is returned to by one, two .. roll backs.
    pub(crate) fn way_back(&self) -> Vec<PolicyInfo> {
        self.earlier.iter().rev().chain(&self.base).map(|generation| generation.info.clone()).collect()
    }

    fn restore(&mut self, target: Generation<P>) -> Generation<P> {
        let number = self.next_number();
        std::mem::replace(&mut self.active, target.again(number, self.settings))
    }

    fn next_number(&mut self) -> u64 {
        self.numbers = self.numbers.saturating_add(1);
        self.numbers
    }
}
