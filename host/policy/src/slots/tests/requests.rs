//! What is decided for a request: a route or a precision that breaks a rule never reaches it, and witnesses see what did.

use std::sync::Mutex;

use millrace_core::TenantId;

use super::*;
use crate::{Forward, Refusal};

/// Answers what it was made with, to either question.
struct Fixed {
    route: Decision,
    choices: Vec<Choice>,
}

impl Policy for Fixed {}

impl RoutePolicy for Fixed {
    fn decide(&mut self, _: &RouteRequest, _: &Table, _: &Table) -> Result<Decision, PolicyFault> {
        Ok(self.route.clone())
    }
}

impl PrecisionPolicy for Fixed {
    fn choose(&mut self, _: &[Ask], _: &Table, _: &Table) -> Result<Vec<Choice>, PolicyFault> {
        Ok(self.choices.clone())
    }
}

fn fixed(route: Decision, choices: &[u32]) -> Box<Fixed> {
    let choice = |&precision: &u32| Choice { precision, may_downgrade: true, reason: 0 };
    Box::new(Fixed { route, choices: choices.iter().map(choice).collect() })
}

fn forward(lanes: &[u32], priority: Option<i32>) -> Decision {
    Decision::Forward(Forward { lanes: lanes.to_vec(), priority, reason: 0 })
}

/// Three lanes, of which the second takes no requests; the fallback prefers the third.
fn decided(route: Decision) -> Answer<Decision> {
    let limits = RouteLimits { min_priority: 0, max_priority: 10, max_hold_ms: 50 };
    let slot = RouteSlot::new(fixed(route, &[]), named("fixed"), BREAKER, limits);
    let seen: Arc<Mutex<Vec<Answer<Decision>>>> = Arc::default();
    let log = seen.clone();
    slot.witnessed_by(Arc::new(move |_: &RouteRequest, _: &Table, _: &Table, answer: &Answer<Decision>| {
        log.lock().unwrap().push(answer.clone());
    }));
    let request = RouteRequest {
        tenant: TenantId(0),
        model: String::new(),
        session: None,
        prompt_tokens: 1,
        max_output_tokens: 1,
        priority: 0,
        slack_us: None,
        streaming: false,
        attributes: Vec::new(),
    };
    let lanes = Table::new(3).with(kind::ELIGIBLE, vec![1, 0, 1]).with(kind::LANE_WAITING, vec![9, 0, 0]);
    let answer = slot.decide(0, &request, &lanes, &Table::new(0));
    assert_eq!(*seen.lock().unwrap(), std::slice::from_ref(&answer));
    answer
}

#[test]
fn a_route_is_used_within_the_rules_and_replaced_outside_of_them() {
    let used = |value| Answer { value, generation: 1, fault: None };
    assert_eq!(decided(forward(&[0, 1, 2], Some(99))), used(forward(&[0, 2], Some(10))));
    assert_eq!(decided(Decision::Hold(u32::MAX)), used(Decision::Hold(50)));
    let refusal = |status| Refusal { status, retry_after_ms: None, reason: 0, message: String::new() };
    assert_eq!(decided(Decision::Refuse(refusal(200))), used(Decision::Refuse(refusal(503))));
    let replaced = Answer { value: forward(&[2, 0], None), generation: 1, fault: Some(FaultKind::Invalid) };
    for broken in [forward(&[1], None), forward(&[], None), forward(&[3], None), forward(&[0, 0], None)] {
        assert_eq!(decided(broken), replaced);
    }
}

/// Two requests, two precisions; the fallback chooses the first for both.
fn chosen(choices: &[u32]) -> (Vec<u32>, Option<FaultKind>) {
    let policy = fixed(forward(&[], None), choices);
    let slot = PrecisionSlot::new(policy, named("fixed"), BREAKER, TierPrecision::default());
    let seen: Arc<Mutex<Vec<Answer<Vec<Choice>>>>> = Arc::default();
    let log = seen.clone();
    slot.witnessed_by(Arc::new(move |_: &[Ask], _: &Table, _: &Table, answer: &Answer<Vec<Choice>>| {
        log.lock().unwrap().push(answer.clone());
    }));
    let ask = Ask {
        tenant: TenantId(0),
        model: String::new(),
        prompt_tokens: 1,
        max_output_tokens: 1,
        priority: 0,
        streaming: false,
        attributes: Vec::new(),
    };
    let answer = slot.choose(0, &[ask.clone(), ask], &Table::new(2), &Table::new(0));
    assert_eq!(*seen.lock().unwrap(), std::slice::from_ref(&answer));
    (answer.value.iter().map(|choice| choice.precision).collect(), answer.fault)
}

#[test]
fn a_precision_is_one_of_those_that_are_offered() {
    assert_eq!(chosen(&[1, 0]), (vec![1, 0], None));
    for broken in [&[2, 0][..], &[0, u32::MAX], &[1], &[1, 1, 1]] {
        assert_eq!(chosen(broken), (vec![0, 0], Some(FaultKind::Invalid)), "{broken:?}");
    }
}
