//! A policy's order that may serve further steps without asking: for how long, and for which rows. Knows sequences by number only;
//! whether pages suffice is the stage's to say.
//!
//! It holds for the rows that it was made for: one that came, ended, left, came back or stopped being runnable ends it, as does a
//! token budget that halved or doubled. At most [`MAX_VALID_STEPS`] further steps, whatever the policy says.

use millrace_core::SeqId;
use millrace_policy::MAX_VALID_STEPS;

use crate::validate::Order;

/// An order in sequences: row numbers hold for one table only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SeqOrder {
    /// Tokens where the policy said how many.
    pub(crate) run: Vec<(SeqId, Option<u32>)>,
    /// First victim first.
    pub(crate) preempt: Vec<SeqId>,
}

impl SeqOrder {
    /// `rows` are the table's.
    pub(crate) fn of(order: &Order, rows: &[SeqId]) -> Self {
        Self {
            run: order.run.iter().filter_map(|&(row, tokens)| Some((*rows.get(row)?, tokens))).collect(),
            preempt: order.preempt.iter().filter_map(|&row| rows.get(row).copied()).collect(),
        }
    }
}

/// What a plan depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Premises {
    /// (sequence, its stay, whether it can run), in order of sequence.
    rows: Vec<(SeqId, u32, bool)>,
    /// Tokens of a step.
    budget_tokens: u32,
}

impl Premises {
    pub(crate) fn new(mut rows: Vec<(SeqId, u32, bool)>, budget_tokens: u32) -> Self {
        rows.sort_unstable();
        Self { rows, budget_tokens }
    }

    fn hold_in(&self, now: &Self) -> bool {
        let (then, tokens) = (u64::from(self.budget_tokens), u64::from(now.budget_tokens));
        self.rows == now.rows && tokens <= 2 * then && then <= 2 * tokens
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct KeptOrder {
    order: SeqOrder,
    premises: Premises,
    steps_left: u32,
}

impl KeptOrder {
    /// None: the policy wants to be asked for the next step.
    pub(crate) fn new(order: &SeqOrder, premises: Premises, valid_steps: u32) -> Option<Self> {
        let steps_left = valid_steps.min(MAX_VALID_STEPS);
        (steps_left > 0).then(|| Self { order: order.clone(), premises, steps_left })
    }

    /// Whether the order may serve one more step on these premises.
    pub(crate) fn holds(&self, now: &Premises) -> bool {
        self.premises.hold_in(now)
    }

    pub(crate) fn order(&self) -> &SeqOrder {
        &self.order
    }

    /// The order for one more step, and what is left of it after that.
    pub(crate) fn next(mut self) -> (SeqOrder, Option<Self>) {
        self.steps_left -= 1;
        (self.order.clone(), (self.steps_left > 0).then_some(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn premises(rows: &[(u64, u32, bool)], budget_tokens: u32) -> Premises {
        Premises::new(rows.iter().map(|&(seq, epoch, runs)| (SeqId(seq), epoch, runs)).collect(), budget_tokens)
    }

    fn uses(valid_steps: u32) -> u32 {
        let on = premises(&[(1, 1, true)], 8);
        let mut kept = KeptOrder::new(&SeqOrder::default(), on.clone(), valid_steps);
        let mut uses = 0;
        while let Some(order) = kept.take().filter(|kept| kept.holds(&on)) {
            uses += 1;
            kept = order.next().1;
        }
        uses
    }

    #[test]
    fn so_many_further_steps_and_no_more_than_the_bound() {
        assert_eq!([0, 1, 7, 32, 33, u32::MAX].map(uses), [0, 1, 7, 32, 32, 32]);
    }

    #[test]
    fn other_rows_or_another_budget_end_it() {
        let made_for = premises(&[(1, 1, true), (2, 5, false)], 100);
        let holds = |now: Premises| {
            let kept = KeptOrder::new(&SeqOrder::default(), made_for.clone(), 4).unwrap();
            kept.holds(&now)
        };
        assert!(holds(premises(&[(2, 5, false), (1, 1, true)], 100)), "the order of the rows does not matter");
        for rows in [
            &[(1, 1, true)][..],
            &[(1, 1, true), (2, 5, false), (3, 1, true)],
            &[(1, 2, true), (2, 5, false)],
            &[(1, 1, false), (2, 5, false)],
            &[(1, 1, true), (2, 5, true)],
        ] {
            assert!(!holds(premises(rows, 100)), "{rows:?}");
        }
        let budgets = [49, 50, 200, 201].map(|tokens| holds(premises(&[(1, 1, true), (2, 5, false)], tokens)));
        assert_eq!(budgets, [false, true, true, false]);
    }
}
