//! Trial decisions at load, on made-up facts with every column: a policy that cannot answer them is refused before it serves.
//! Generous in time (the first call of an instance is slow), strict in rules.

use millrace_core::{Stage, TenantId};
use millrace_policy::{
    Ask, Budget, Choice, MAX_HANDOVER_BYTES, RouteLimits, RouteRequest, Table, kind, validate_choices, validate_decision,
    validate_plan,
};

use crate::fault::one_line;
use crate::instance::{Fault, Instance};
use crate::wire;
use crate::worlds::{self, Asking, PrecisionWorld, RouteWorld, ScheduleWorld, World};

const ROWS: usize = 4;

pub(crate) fn precision(instance: &mut Instance<PrecisionWorld>, wants: &[u32]) -> Result<(), String> {
    let (asks, precisions) = ([ask(0), ask(1)], table(kind::PREFILL_WEIGHT_BITS..=kind::PREFILL_KV_FORMAT));
    let arguments = worlds::choose_arguments(&asks, &precisions, &tenants(), wants);
    let (choices,) = instance.decide(asking(instance), arguments).map_err(text)?;
    let choices: Vec<Choice> = choices.into_iter().map(Choice::from).collect();
    validate_choices(&choices, &asks, &precisions).map_err(|error| error.to_string())
}

pub(crate) fn route(instance: &mut Instance<RouteWorld>, wants: &[u32]) -> Result<(), String> {
    // With values of 1 every lane is healthy and eligible.
    let mut lanes = table(kind::LANE_WAITING..=kind::ITL_US);
    for flag in kind::FREE_PAGES..=kind::LANE_STEP_US {
        lanes = lanes.with(flag, vec![1; ROWS]);
    }
    let arguments = worlds::decide_arguments(&request(), &lanes, &tenants(), wants);
    let (decision,) = instance.decide(asking(instance), arguments).map_err(text)?;
    validate_decision(decision.into(), &lanes, &RouteLimits::default()).map(|_| ()).map_err(|error| error.to_string())
}

pub(crate) fn schedule(instance: &mut Instance<ScheduleWorld>, wants: &[u32]) -> Result<(), String> {
    let rows = table(kind::TENANT..=kind::PREEMPTIONS);
    for stage in [Stage::Prefill, Stage::Decode] {
        let budget = Budget {
            stage,
            step: 0,
            tokens: 64,
            sequences: 3,
            free_pages: 8,
            total_pages: 16,
            page_tokens: 16,
            step_us: 0,
            answer_within_us: None,
        };
        let arguments = worlds::plan_arguments(&budget, &rows, &tenants(), wants);
        let (plan,) = instance.decide(asking(instance), arguments).map_err(text)?;
        validate_plan(&plan.into(), &budget, &rows).map_err(|error| format!("in {stage}: {error}"))?;
    }
    Ok(())
}

/// What is called beside decisions, where it is exported: made-up outcomes, then what the policy would hand over.
pub(crate) fn beside<W: World>(instance: &mut Instance<W>, wants: &[u32]) -> Result<Option<Vec<u8>>, String> {
    let setup_us = instance.setup_us();
    let outcomes = wire::table(&outcomes(), wants);
    instance.aside_now();
    instance.observe(outcomes, setup_us).map_err(|fault| format!("feedback: {}", text(fault)))?;
    if !instance.hands_over() {
        return Ok(None);
    }
    let saved = instance.save(setup_us).map_err(|fault| format!("handover: `save`: {}", text(fault)))?;
    if saved.len() > MAX_HANDOVER_BYTES {
        return Err(format!("handover: `save` gave {} bytes, at most {MAX_HANDOVER_BYTES}", saved.len()));
    }
    Ok(Some(saved))
}

/// On a fresh instance.
pub(crate) fn restore<W: World>(instance: &mut Instance<W>, saved: &[u8]) -> Result<(), String> {
    instance.aside_now();
    let restored = instance.restore(saved, instance.setup_us());
    restored
        .map_err(text)
        .and_then(|answer| answer.map_err(|refusal| format!("it refused what it had saved itself: {}", one_line(&refusal))))
        .map_err(|why| format!("handover: `restore`: {why}"))
}

fn outcomes() -> Table {
    let of_schedule =
        [kind::TENANT, kind::PRIORITY, kind::PROMPT_TOKENS, kind::CACHED_TOKENS, kind::OUTPUT_TOKENS, kind::MAX_OUTPUT_TOKENS];
    of_schedule
        .into_iter()
        .chain(kind::OUTCOME..=kind::OUTCOME_REASON)
        .fold(Table::new(ROWS), |table, kind| table.with(kind, (0..ROWS as u32).collect()))
}

fn asking<W: World>(instance: &Instance<W>) -> Asking {
    Asking { call: 0, deadline_us: instance.setup_us() }
}

fn text((kind, detail): Fault) -> String {
    format!("{kind}: {detail}")
}

/// Values 0, 1, 2, 3 in every column.
fn table(kinds: std::ops::RangeInclusive<u32>) -> Table {
    kinds.fold(Table::new(ROWS), |table, kind| table.with(kind, (0..ROWS as u32).collect()))
}

fn tenants() -> Table {
    (kind::WEIGHT..=kind::TIER).fold(Table::new(ROWS), |table, kind| table.with(kind, vec![1; ROWS]))
}

fn ask(tenant: u32) -> Ask {
    Ask {
        tenant: TenantId(tenant),
        model: "model".to_owned(),
        prompt_tokens: 100,
        max_output_tokens: 16,
        priority: 0,
        streaming: true,
        attributes: Vec::new(),
    }
}

fn request() -> RouteRequest {
    RouteRequest {
        tenant: TenantId(1),
        model: "model".to_owned(),
        session: Some(7),
        prompt_tokens: 100,
        max_output_tokens: 16,
        priority: 0,
        slack_us: None,
        streaming: true,
        attributes: Vec::new(),
    }
}
