//! The largest tables that a host gives are answered within the limits, by answers that name every row everywhere.

mod support;

use millrace_core::Stage;
use millrace_policy::{Answer, Ask, Budget, PrecisionSlot, Table, TierPrecision, kind};
use millrace_policy_wasm::{MAX_ROWS, PolicyKind, PolicyLimits, PolicyOptions, builtin};
use support::{HELD_CLOSED, engine, slot_of};

/// Time enough on a busy machine; all other limits are a deployment's.
fn options(kind: PolicyKind) -> PolicyOptions {
    let limits = PolicyLimits { deadline_us: 20_000_000, setup_us: 20_000_000, ..PolicyLimits::of(kind) };
    PolicyOptions { limits, ..builtin::options(kind) }
}

/// Every column, all rows in this state.
fn rows(state: u32) -> Table {
    let value = |kind: u32, row: usize| match kind {
        kind::TENANT | kind::PRIORITY => 0,
        kind::STATE => state,
        kind::COMPUTED_TOKENS => 1,
        kind::PROMPT_TOKENS => 2,
        _ => u32::try_from(row).unwrap_or(0) + 1,
    };
    let of = |kind: u32| (0..MAX_ROWS).map(|row| value(kind, row)).collect();
    (kind::TENANT..=kind::PREEMPTIONS).fold(Table::new(MAX_ROWS), |table, kind| table.with(kind, of(kind)))
}

fn length<T>(answer: &Answer<T>, of: impl Fn(&T) -> Vec<usize>) -> Vec<usize> {
    assert_eq!(answer.fault, None, "the native fallback answered");
    of(&answer.value)
}

/// In prefill with a chunk for each row: nothing that is valid is longer.
#[test]
fn a_schedule_may_name_every_row_three_times() {
    let loaded = engine().load(builtin::SCHEDULE, PolicyKind::Schedule, &options(PolicyKind::Schedule)).expect("loads");
    let slot = slot_of(&loaded);
    let most = u32::try_from(MAX_ROWS).expect("fits");
    for (stage, state, named) in [(Stage::Prefill, 1, [MAX_ROWS; 3]), (Stage::Decode, 3, [MAX_ROWS, 0, MAX_ROWS])] {
        let budget = Budget { tokens: most, sequences: most, ..support::budget(stage, 0) };
        let answer = slot.plan_step(0, &budget, &rows(state), &Table::new(1));
        let lengths = length(&answer, |plan| vec![plan.run.len(), plan.tokens.len(), plan.preempt.len()]);
        assert_eq!(lengths, named, "{stage}: {:?}", slot.status().last_error);
    }
}

#[test]
fn a_precision_may_be_chosen_for_as_many_requests() {
    let loaded = engine().load(builtin::PRECISION, PolicyKind::Precision, &options(PolicyKind::Precision)).expect("loads");
    let policy = loaded.precision().expect("an instance");
    let slot = PrecisionSlot::new(policy, loaded.info().clone(), HELD_CLOSED, TierPrecision::default());
    let asks: Vec<Ask> = (0..MAX_ROWS).map(|_| Ask { attributes: Vec::new(), ..support::ask(0, 100) }).collect();
    let answer = slot.choose(0, &asks, &Table::new(1), &Table::new(1));
    assert_eq!(length(&answer, |choices| vec![choices.len()]), [MAX_ROWS], "{:?}", slot.status().last_error);
}
