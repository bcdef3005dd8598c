//! A policy's plan, made harmless: row numbers come from outside, so none is used before it is checked here.

use millrace_core::SeqId;
use millrace_policy::Plan;

use crate::kept::SeqOrder;

/// What is left of a plan after checking.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// (row, tokens if the policy said how many), each row once and runnable.
    pub(crate) run: Vec<(usize, Option<u32>)>,
    /// Rows to preempt, first victim first, each once.
    pub(crate) preempt: Vec<usize>,
    /// Entries that were dropped.
    pub(crate) ignored: u64,
}

/// Keeps what names a row of the table for the first time; of `run` also only what is runnable. Token counts are used only
/// if there is one for each named row; a count of 0 makes the row wait.
pub(crate) fn order(plan: &Plan, runnable: &[bool]) -> Order {
    let mut order = Order::default();
    let counted = plan.tokens.len() == plan.run.len();
    let mut seen = vec![false; runnable.len()];
    for (position, &row) in plan.run.iter().enumerate() {
        let row = row as usize;
        let fresh = seen.get_mut(row).is_some_and(|seen| !std::mem::replace(seen, true));
        if !fresh || !runnable.get(row).is_some_and(|&can| can) {
            order.ignored += 1;
            continue;
        }
        let tokens = plan.tokens.get(position).copied().filter(|_| counted);
        if tokens != Some(0) {
            order.run.push((row, tokens));
        }
    }
    seen.fill(false);
    for &row in &plan.preempt {
        match seen.get_mut(row as usize) {
            Some(seen) if !*seen => {
                *seen = true;
                order.preempt.push(row as usize);
            }
            _ => order.ignored += 1,
        }
    }
    order
}

/// The host's own order: everything runnable as listed, no victims named. `rows` as a policy would be shown them.
pub(crate) fn default_order(rows: &[(SeqId, u32, bool)]) -> SeqOrder {
    let runnable = rows.iter().filter(|&&(_, _, runs)| runs);
    SeqOrder { run: runnable.map(|&(seq, _, _)| (seq, None)).collect(), ..SeqOrder::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_of_the_table_survives() {
        let plan = Plan {
            run: vec![2, u32::MAX, 0, 2, 1, 3],
            tokens: vec![7, 1, 0, 9, 5, 1],
            preempt: vec![3, 3, 4, 0],
            ..Plan::default()
        };
        let checked = order(&plan, &[true, false, true]);
        assert_eq!(checked, Order { run: vec![(2, Some(7))], preempt: vec![0], ignored: 4 + 3 });
    }

    #[test]
    fn counts_that_do_not_fit_the_rows_are_not_used() {
        let plan = Plan { run: vec![1, 0], tokens: vec![4], ..Plan::default() };
        assert_eq!(order(&plan, &[true, true]).run, [(1, None), (0, None)]);
        let rows = [(SeqId(7), 1, true), (SeqId(8), 1, false), (SeqId(4), 2, true)];
        assert_eq!(default_order(&rows).run, [(SeqId(7), None), (SeqId(4), None)]);
    }
}
