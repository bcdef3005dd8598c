//! The order in words of the module, then: every plan is valid, whatever the table.

use super::*;
use crate::validate_plan;

fn budget(stage: Stage, tokens: u32, sequences: u32) -> Budget {
    Budget {
        stage,
        step: 0,
        tokens,
        sequences,
        free_pages: 9,
        total_pages: 99,
        page_tokens: 16,
        step_us: 0,
        answer_within_us: None,
    }
}

fn tenants() -> Table {
    // Per weight: 300, 100, 100.
    Table::new(3).with(kind::WEIGHT, vec![1, 2, 1]).with(kind::TOKENS_SERVED, vec![300, 200, 100])
}

#[test]
fn least_served_for_its_weight_runs_first_then_priority_then_age() {
    let rows = Table::new(6)
        .with(kind::TENANT, vec![0, 1, 1, 2, 2, 1])
        .with(kind::AGE_US, vec![99, 5, 8, 6, 1, 2])
        .with(kind::PRIORITY, vec![9, 0, 0, 0, 0, (-1i32).cast_unsigned()])
        .with(kind::STATE, vec![3; 6]);
    let plan = FairSchedule.plan(&budget(Stage::Decode, 64, 64), &rows, &tenants());
    assert_eq!(plan.run, [2, 3, 1, 4, 5, 0]);
    assert!(plan.tokens.is_empty());
    // The most served tenant, then lower priority, then the youngest.
    assert_eq!(plan.preempt, [0, 5, 4, 1, 3, 2]);
}

#[test]
fn decode_runs_running_rows_before_those_that_wait() {
    let rows = Table::new(4).with(kind::TENANT, vec![1, 0, 0, 1]).with(kind::STATE, vec![0, 3, 2, 4]);
    let plan = FairSchedule.plan(&budget(Stage::Decode, 64, 64), &rows, &tenants());
    assert_eq!(plan.run, [1, 0, 3]);
    assert_eq!(FairSchedule.plan(&budget(Stage::Decode, 64, 2), &rows, &tenants()).run, [1, 0]);
    assert_eq!(FairSchedule.plan(&budget(Stage::Decode, 1, 64), &rows, &tenants()).run, [1]);
    assert_eq!(plan.preempt, [1]);
}

#[test]
fn prefill_fills_chunks_in_order_until_the_tokens_are_spent() {
    let rows = Table::new(4)
        .with(kind::TENANT, vec![0, 1, 1, 1])
        .with(kind::AGE_US, vec![50, 30, 20, 10])
        .with(kind::STATE, vec![0, 1, 4, 3])
        .with(kind::PROMPT_TOKENS, vec![500, 100, 40, 7])
        .with(kind::COMPUTED_TOKENS, vec![0, 64, 0, 7]);
    let plan = FairSchedule.plan(&budget(Stage::Prefill, 128, 8), &rows, &tenants());
    assert_eq!((plan.run, plan.tokens), (vec![1, 2, 0], vec![36, 40, 52]));
    let plan = FairSchedule.plan(&budget(Stage::Prefill, 36, 8), &rows, &tenants());
    assert_eq!((plan.run, plan.tokens), (vec![1], vec![36]));
    let plan = FairSchedule.plan(&budget(Stage::Prefill, 0, 8), &rows, &tenants());
    assert!(plan.run.is_empty() && plan.tokens.is_empty());
}

#[test]
fn victims_hold_pages() {
    let rows =
        Table::new(3).with(kind::STATE, vec![3, 3, 1]).with(kind::AGE_US, vec![1, 2, 3]).with(kind::PAGES_HELD, vec![0, 4, 2]);
    assert_eq!(FairSchedule.plan(&budget(Stage::Decode, 9, 9), &rows, &Table::new(0)).preempt, [1, 2]);
}

#[test]
fn every_plan_is_valid_whatever_the_table() {
    let mut seed = 11u64;
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((seed >> 33) % n).expect("small")
    };
    for _ in 0..2_000 {
        let count = below(40) as usize;
        let mut rows = Table::new(count);
        for kind in kind::TENANT..=kind::PREEMPTIONS {
            if below(4) > 0 {
                let values = (0..count).map(|_| if below(9) == 0 { u32::MAX } else { below(6) }).collect();
                rows = rows.with(kind, values);
            }
        }
        let stage = if below(2) == 0 { Stage::Prefill } else { Stage::Decode };
        let budget = budget(stage, below(64), below(32));
        let plan = FairSchedule.plan(&budget, &rows, &tenants());
        assert_eq!(validate_plan(&plan, &budget, &rows), Ok(()), "{plan:?} {budget:?} {rows:?}");
    }
}
