//! Each rule with an answer that just keeps it and one that just breaks it; then random answers against a naive twin.

use millrace_core::TenantId;

use super::*;

fn budget(stage: Stage) -> Budget {
    Budget {
        stage,
        step: 0,
        tokens: 10,
        sequences: 3,
        free_pages: 0,
        total_pages: 0,
        page_tokens: 16,
        step_us: 0,
        answer_within_us: None,
    }
}

fn plan(run: &[u32], tokens: &[u32]) -> Plan {
    Plan { run: run.to_vec(), tokens: tokens.to_vec(), ..Plan::default() }
}

fn forward(lanes: &[u32], priority: Option<i32>) -> Decision {
    Decision::Forward(Forward { lanes: lanes.to_vec(), priority, reason: 5 })
}

fn route(decision: Decision, lanes: &Table) -> Result<Decision, InvalidAnswer> {
    validate_decision(decision, lanes, &RouteLimits { min_priority: -2, max_priority: 7, max_hold_ms: 50 })
}

#[test]
fn plans() {
    let rows = Table::new(5);
    let prefill = budget(Stage::Prefill);
    let check = |p: Plan| validate_plan(&p, &prefill, &rows);
    assert_eq!(check(plan(&[4, 0, 2], &[5, 4, 1])), Ok(()));
    assert_eq!(check(plan(&[4, 0, 2], &[])), Ok(()));
    assert_eq!(check(plan(&[], &[])), Ok(()));
    assert_eq!(check(plan(&[5], &[])), Err(InvalidAnswer::OutOfRange { list: "run", row: 5, rows: 5 }));
    assert_eq!(check(plan(&[u32::MAX], &[])), Err(InvalidAnswer::OutOfRange { list: "run", row: u32::MAX, rows: 5 }));
    assert_eq!(check(plan(&[1, 1], &[])), Err(InvalidAnswer::Duplicate { list: "run", row: 1 }));
    assert_eq!(check(plan(&[0, 1, 2, 3], &[])), Err(InvalidAnswer::OverSequences { run: 4, sequences: 3 }));
    assert_eq!(check(plan(&[0, 1], &[1])), Err(InvalidAnswer::TokenCounts { tokens: 1, run: 2 }));
    assert_eq!(check(plan(&[0], &[1, 1])), Err(InvalidAnswer::TokenCounts { tokens: 2, run: 1 }));
    assert_eq!(check(plan(&[0, 1], &[10, 1])), Err(InvalidAnswer::OverTokens { tokens: 11, budget: 10 }));
    assert_eq!(
        check(plan(&[0, 1], &[u32::MAX, u32::MAX])),
        Err(InvalidAnswer::OverTokens { tokens: 2 * u64::from(u32::MAX), budget: 10 })
    );
    assert!(matches!(check(plan(&[0], &[0])), Err(InvalidAnswer::RowTokens { row: 0, tokens: 0, .. })));
    let preempt = |rows: &[u32]| Plan { preempt: rows.to_vec(), ..Plan::default() };
    assert_eq!(check(preempt(&[4, 3])), Ok(()));
    assert_eq!(check(preempt(&[5])), Err(InvalidAnswer::OutOfRange { list: "preempt", row: 5, rows: 5 }));
    assert_eq!(check(preempt(&[3, 3])), Err(InvalidAnswer::Duplicate { list: "preempt", row: 3 }));
    assert_eq!(check(Plan { valid_steps: 32, ..Plan::default() }), Ok(()));
    assert_eq!(check(Plan { valid_steps: 33, ..Plan::default() }), Err(InvalidAnswer::ValidSteps { valid_steps: 33 }));
}

#[test]
fn decode_plans_take_one_token_a_row() {
    let (rows, decode) = (Table::new(5), Budget { tokens: 2, ..budget(Stage::Decode) });
    assert_eq!(validate_plan(&plan(&[0, 1], &[1, 1]), &decode, &rows), Ok(()));
    assert!(matches!(validate_plan(&plan(&[0], &[2]), &decode, &rows), Err(InvalidAnswer::RowTokens { row: 0, tokens: 2, .. })));
    assert_eq!(validate_plan(&plan(&[0, 1, 2], &[]), &decode, &rows), Err(InvalidAnswer::OverTokens { tokens: 3, budget: 2 }));
}

#[test]
fn forwards() {
    let lanes = Table::new(3).with(kind::ELIGIBLE, vec![1, 0, 1]);
    assert_eq!(route(forward(&[2, 1, 0], Some(9)), &lanes), Ok(forward(&[2, 0], Some(7))));
    assert_eq!(route(forward(&[0], Some(-9)), &lanes), Ok(forward(&[0], Some(-2))));
    assert_eq!(route(forward(&[0], None), &lanes), Ok(forward(&[0], None)));
    assert_eq!(route(forward(&[3], None), &lanes), Err(InvalidAnswer::OutOfRange { list: "lanes", row: 3, rows: 3 }));
    assert_eq!(route(forward(&[0, 0], None), &lanes), Err(InvalidAnswer::Duplicate { list: "lanes", row: 0 }));
    assert_eq!(route(forward(&[1], None), &lanes), Err(InvalidAnswer::NoEligibleLane));
    assert_eq!(route(forward(&[], None), &lanes), Err(InvalidAnswer::NoEligibleLane));
    // What is neither 0 nor 1 is no yes: absent facts are among these.
    let odd = Table::new(3).with(kind::ELIGIBLE, vec![u32::MAX, 2, 1]).with(kind::HEALTHY, vec![1, 1, 1]);
    assert_eq!(route(forward(&[0, 1, 2], None), &odd), Ok(forward(&[2], None)));
    let none = Table::new(2).with(kind::HEALTHY, vec![0, 0]);
    assert_eq!(route(forward(&[1], None), &none), Ok(Decision::Refuse(no_lane())));
}

#[test]
fn holds_and_refusals() {
    let lanes = Table::new(1);
    for (asked, allowed) in [(0, 1), (1, 1), (50, 50), (51, 50), (u32::MAX, 50)] {
        assert_eq!(route(Decision::Hold(asked), &lanes), Ok(Decision::Hold(allowed)));
    }
    for (asked, allowed) in
        [(429, 429), (503, 503), (400, 400), (499, 499), (399, 503), (200, 503), (500, 503), (0, 503), (u16::MAX, 503)]
    {
        let refusal = Refusal { status: asked, retry_after_ms: Some(u32::MAX), reason: 1, message: "é".repeat(400) };
        let Ok(Decision::Refuse(bounded)) = route(Decision::Refuse(refusal), &lanes) else { panic!("{asked}") };
        assert_eq!(bounded.status, allowed);
        assert_eq!(bounded.retry_after_ms, Some(3_600_000));
        assert_eq!(bounded.message, "é".repeat(256));
    }
}

/// An operator's bounds that exclude each other are no reason to fall over.
#[test]
fn bounds_that_cross_still_give_an_answer() {
    let limits = RouteLimits { min_priority: 5, max_priority: -5, max_hold_ms: 0 };
    let decide = |decision| validate_decision(decision, &Table::new(1), &limits);
    assert_eq!(decide(forward(&[0], Some(0))), Ok(forward(&[0], Some(5))));
    assert_eq!(decide(Decision::Hold(7)), Ok(Decision::Hold(1)));
}

#[test]
fn choices() {
    let ask = Ask {
        tenant: TenantId(0),
        model: String::new(),
        prompt_tokens: 1,
        max_output_tokens: 1,
        priority: 0,
        streaming: false,
        attributes: Vec::new(),
    };
    let choice = |precision| Choice { precision, may_downgrade: false, reason: 0 };
    let (asks, precisions) = ([ask.clone(), ask], Table::new(2));
    assert_eq!(validate_choices(&[choice(0), choice(1)], &asks, &precisions), Ok(()));
    assert_eq!(validate_choices(&[choice(0)], &asks, &precisions), Err(InvalidAnswer::ChoiceCount { choices: 1, asks: 2 }));
    let three = [choice(0), choice(1), choice(1)];
    assert_eq!(validate_choices(&three, &asks, &precisions), Err(InvalidAnswer::ChoiceCount { choices: 3, asks: 2 }));
    assert_eq!(
        validate_choices(&[choice(0), choice(2)], &asks, &precisions),
        Err(InvalidAnswer::OutOfRange { list: "choices", row: 2, rows: 2 })
    );
}

/// The rules again, as slowly and plainly as can be.
fn twin(plan: &Plan, budget: &Budget, rows: u32) -> bool {
    let unique = |list: &[u32]| list.iter().all(|a| list.iter().filter(|b| a == *b).count() == 1 && *a < rows);
    let decode = budget.stage == Stage::Decode;
    let each = match (plan.tokens.is_empty(), decode) {
        (true, true) => vec![1; plan.run.len()],
        (true, false) => vec![],
        _ => plan.tokens.clone(),
    };
    let range = if decode { 1..=1 } else { 1..=u32::MAX };
    unique(&plan.run)
        && unique(&plan.preempt)
        && plan.run.len() <= budget.sequences as usize
        && (plan.tokens.is_empty() || plan.tokens.len() == plan.run.len())
        && each.iter().all(|t| range.contains(t))
        && each.iter().map(|&t| u64::from(t)).sum::<u64>() <= u64::from(budget.tokens)
        && plan.valid_steps <= 32
}

#[test]
fn random_plans_agree_with_the_twin() {
    let mut seed = 7u64;
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((seed >> 33) % n).expect("small")
    };
    let (mut good, mut bad) = (0, 0);
    for _ in 0..20_000 {
        let rows = below(7);
        let budget = Budget {
            tokens: below(9),
            sequences: below(6),
            ..budget(if below(2) == 0 { Stage::Prefill } else { Stage::Decode })
        };
        let mut list = |len: u64, max: u64| (0..below(len)).map(|_| below(max)).collect::<Vec<_>>();
        let run = list(5, 7);
        let preempt = list(3, 7);
        let tokens = if list(2, 2).is_empty() { vec![] } else { run.iter().map(|_| 1).collect() };
        let plan = Plan { run, tokens, preempt, valid_steps: below(34), reason: 0 };
        let valid = validate_plan(&plan, &budget, &Table::new(rows as usize)).is_ok();
        assert_eq!(valid, twin(&plan, &budget, rows), "{plan:?} {budget:?} {rows}");
        if valid { good += 1 } else { bad += 1 }
    }
    assert!(good > 500 && bad > 500, "{good} good, {bad} bad");
}
