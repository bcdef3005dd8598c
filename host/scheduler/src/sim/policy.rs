//! Schedule policies for tests: one that obeys, one that wanders, one that answers garbage, one that never lets work run.

use millrace_core::Stage;
use millrace_policy::{Budget, Plan, Table, kind};

use super::Lcg;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Temper {
    Orderly,
    Random,
    Garbage,
    Idle,
}

pub(crate) fn answer(temper: Temper, lcg: &mut Lcg, budget: &Budget, rows: &Table) -> Plan {
    check_facts(budget, rows);
    let count = rows.rows;
    match temper {
        Temper::Orderly => Plan { run: (0..count).collect(), ..Plan::default() },
        Temper::Random => {
            let run: Vec<u32> = (0..lcg.below(count + 2)).map(|_| lcg.below(count)).collect();
            let tokens = if lcg.one_in(2) { run.iter().map(|_| lcg.below(9)).collect() } else { Vec::new() };
            let preempt = (0..lcg.below(3)).map(|_| lcg.below(count)).collect();
            Plan { run, tokens, preempt, valid_steps: lcg.below(6), ..Plan::default() }
        }
        Temper::Garbage => {
            let mut numbers = || -> Vec<u32> { (0..lcg.below(6)).map(|_| lcg.below(u32::MAX) << lcg.below(2)).collect() };
            Plan { run: numbers(), tokens: numbers(), preempt: numbers(), valid_steps: u32::MAX, reason: 1 }
        }
        Temper::Idle => Plan::default(),
    }
}

/// What every table promises.
fn check_facts(budget: &Budget, rows: &Table) {
    assert!(rows.rows > 0 && budget.free_pages <= budget.total_pages);
    for row in 0..rows.rows as usize {
        let fact = |kind| rows.value(kind, row).unwrap();
        assert!(fact(kind::STATE) <= 4);
        assert!(fact(kind::PAGES_HELD) <= budget.total_pages);
        if budget.stage == Stage::Prefill {
            assert!(fact(kind::COMPUTED_TOKENS) <= fact(kind::PROMPT_TOKENS));
        } else {
            assert!(fact(kind::COMPUTED_TOKENS) >= fact(kind::PROMPT_TOKENS));
        }
    }
}
