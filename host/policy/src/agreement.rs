//! Whether two answers that keep to the rules come to the same: trials and replays compare by this alone. All of an answer counts that
//! the host or a client acts on; a reason does not, which is the policy's own number for its log. Pure; it does not know who answered.

use millrace_core::Stage;

use crate::{Budget, Choice, Decision, Forward, Plan};

/// The same precision for each, and the same leave to take a cheaper one.
#[must_use]
pub fn same_choices(one: &[Choice], other: &[Choice]) -> bool {
    let acted_on = |choice: &Choice| (choice.precision, choice.may_downgrade);
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| acted_on(one) == acted_on(other))
}

/// The same lanes in the same order, because a full one makes way for the next; the same wait; the same words to the client.
#[must_use]
pub fn same_decision(one: &Decision, other: &Decision) -> bool {
    match (one, other) {
        (Decision::Forward(Forward { lanes, priority, .. }), Decision::Forward(other)) => {
            (lanes, priority) == (&other.lanes, &other.priority)
        }
        (Decision::Hold(one), Decision::Hold(other)) => one == other,
        (Decision::Refuse(one), Decision::Refuse(other)) => {
            (one.status, one.retry_after_ms, &one.message) == (other.status, other.retry_after_ms, &other.message)
        }
        _ => false,
    }
}

/// The same rows in the same order with the same tokens, the same victims, for as long. In decode one token a row is what no tokens
/// at all mean; in prefill the host would divide the budget itself, which is another answer.
#[must_use]
pub fn same_plan(one: &Plan, other: &Plan, budget: &Budget) -> bool {
    let are_ones = |plan: &Plan| plan.tokens.iter().all(|&tokens| tokens == 1);
    let tokens = one.tokens == other.tokens || (budget.stage == Stage::Decode && are_ones(one) && are_ones(other));
    tokens && (&one.run, &one.preempt, one.valid_steps) == (&other.run, &other.preempt, other.valid_steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Refusal;

    fn budget(stage: Stage) -> Budget {
        Budget {
            stage,
            step: 1,
            tokens: 8,
            sequences: 8,
            free_pages: 1,
            total_pages: 1,
            page_tokens: 16,
            step_us: 1,
            answer_within_us: None,
        }
    }

    #[test]
    fn a_choice_is_more_than_its_precision() {
        let choice = Choice { precision: 1, may_downgrade: false, reason: 0 };
        assert!(same_choices(&[choice], &[Choice { reason: 9, ..choice }]));
        assert!(!same_choices(&[choice], &[Choice { may_downgrade: true, ..choice }]));
        assert!(!same_choices(&[choice], &[Choice { precision: 0, ..choice }]));
        assert!(!same_choices(&[choice], &[]));
    }

    #[test]
    fn a_decision_is_more_than_its_first_lane_or_its_status() {
        let forward = Forward { lanes: vec![1, 0], priority: None, reason: 0 };
        let same = |one: &Forward, other: Forward| same_decision(&Decision::Forward(one.clone()), &Decision::Forward(other));
        assert!(same(&forward, Forward { reason: 3, ..forward.clone() }));
        assert!(!same(&forward, Forward { lanes: vec![1], ..forward.clone() }));
        assert!(!same(&forward, Forward { priority: Some(0), ..forward.clone() }));
        assert!(same_decision(&Decision::Hold(5), &Decision::Hold(5)));
        assert!(!same_decision(&Decision::Hold(5), &Decision::Hold(6)));
        let refusal = Refusal { status: 429, retry_after_ms: Some(5), reason: 0, message: "later".into() };
        let refused = |other: Refusal| same_decision(&Decision::Refuse(refusal.clone()), &Decision::Refuse(other));
        assert!(refused(Refusal { reason: 1, ..refusal.clone() }));
        assert!(!refused(Refusal { retry_after_ms: None, ..refusal.clone() }));
        assert!(!refused(Refusal { message: "never".into(), ..refusal.clone() }));
        assert!(!same_decision(&Decision::Hold(5), &Decision::Refuse(refusal)));
    }

    #[test]
    fn a_plan_is_more_than_its_order() {
        let plan = Plan { run: vec![2, 0], tokens: vec![], preempt: vec![0], valid_steps: 2, reason: 0 };
        let (decode, prefill) = (budget(Stage::Decode), budget(Stage::Prefill));
        assert!(same_plan(&plan, &Plan { reason: 7, ..plan.clone() }, &decode));
        let ones = Plan { tokens: vec![1, 1], ..plan.clone() };
        assert!(same_plan(&plan, &ones, &decode));
        assert!(!same_plan(&plan, &ones, &prefill), "the host would divide the budget");
        assert!(!same_plan(&ones, &Plan { tokens: vec![1, 2], ..plan.clone() }, &prefill));
        assert!(!same_plan(&plan, &Plan { preempt: vec![], ..plan.clone() }, &decode), "the host would choose victims itself");
        assert!(!same_plan(&plan, &Plan { preempt: vec![0, 2], ..plan.clone() }, &decode));
        assert!(!same_plan(&plan, &Plan { valid_steps: 0, ..plan.clone() }, &decode));
        assert!(!same_plan(&plan, &Plan { run: vec![0, 2], ..plan.clone() }, &decode));
    }
}
