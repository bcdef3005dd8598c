//! The types of `wit/` as wasmtime lowers and lifts them, and their conversion from and to those of `millrace-policy`.
//! Loading compares them with the component's own types.

use std::sync::Arc;

use millrace_core::{Stage, TenantId};
use millrace_policy as host;
use serde::{Deserialize, Serialize};
use wasmtime::component::{ComponentType, Lift, Lower};

#[derive(Debug, Clone, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Attribute {
    pub(crate) key: String,
    pub(crate) value: String,
}

#[derive(Debug, Clone, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Column {
    pub(crate) kind: u32,
    pub(crate) values: Vec<u32>,
}

#[derive(Debug, Clone, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Table {
    pub(crate) rows: u32,
    pub(crate) columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[component(enum)]
#[repr(u8)]
pub(crate) enum WireStage {
    #[component(name = "prefill")]
    Prefill,
    #[component(name = "decode")]
    Decode,
}

#[derive(Debug, Clone, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Info {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) wants: Vec<u32>,
}

#[derive(Debug, Clone, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Ask {
    tenant: u32,
    model: String,
    #[component(name = "prompt-tokens")]
    prompt_tokens: u32,
    #[component(name = "max-output-tokens")]
    max_output_tokens: u32,
    priority: i32,
    streaming: bool,
    attributes: Vec<Attribute>,
}

#[derive(Debug, Clone, Copy, PartialEq, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Choice {
    precision: u32,
    #[component(name = "may-downgrade")]
    may_downgrade: bool,
    reason: u32,
}

#[derive(Debug, Clone, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Request {
    tenant: u32,
    model: String,
    session: Option<u64>,
    #[component(name = "prompt-tokens")]
    prompt_tokens: u32,
    #[component(name = "max-output-tokens")]
    max_output_tokens: u32,
    priority: i32,
    #[component(name = "slack-us")]
    slack_us: Option<u32>,
    streaming: bool,
    attributes: Vec<Attribute>,
}

#[derive(Debug, Clone, PartialEq, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Forward {
    lanes: Vec<u32>,
    priority: Option<i32>,
    reason: u32,
}

#[derive(Debug, Clone, PartialEq, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Refusal {
    status: u16,
    #[component(name = "retry-after-ms")]
    retry_after_ms: Option<u32>,
    reason: u32,
    message: String,
}

#[derive(Debug, Clone, PartialEq, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[component(variant)]
pub(crate) enum Decision {
    #[component(name = "forward")]
    Forward(Forward),
    #[component(name = "hold")]
    Hold(u32),
    #[component(name = "refuse")]
    Refuse(Refusal),
}

#[derive(Debug, Clone, Copy, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Budget {
    stage: WireStage,
    step: u64,
    tokens: u32,
    sequences: u32,
    #[component(name = "free-pages")]
    free_pages: u32,
    #[component(name = "total-pages")]
    total_pages: u32,
    #[component(name = "page-tokens")]
    page_tokens: u32,
    #[component(name = "step-us")]
    step_us: u32,
}

#[derive(Debug, Clone, PartialEq, ComponentType, Lower, Lift, Serialize, Deserialize)]
#[component(record)]
pub(crate) struct Plan {
    run: Vec<u32>,
    tokens: Vec<u32>,
    preempt: Vec<u32>,
    #[component(name = "valid-steps")]
    valid_steps: u32,
    reason: u32,
}

/// Leaves out what the policy does not want; `wants` is sorted, empty: all.
pub(crate) fn narrow(table: &mut Table, wants: &[u32]) {
    table.columns.retain(|c| wants.is_empty() || wants.binary_search(&c.kind).is_ok());
}

/// Columns that the policy wants; `wants` is sorted, empty: all.
pub(crate) fn table(facts: &host::Table, wants: &[u32]) -> Table {
    let wanted = facts.columns.iter().filter(|c| wants.is_empty() || wants.binary_search(&c.kind).is_ok());
    Table { rows: facts.rows, columns: wanted.map(|c| Column { kind: c.kind, values: c.values.to_vec() }).collect() }
}

fn attributes(attributes: &[(String, String)]) -> Vec<Attribute> {
    attributes.iter().map(|(key, value)| Attribute { key: key.clone(), value: value.clone() }).collect()
}

impl From<&host::Ask> for Ask {
    fn from(ask: &host::Ask) -> Self {
        Self {
            tenant: ask.tenant.0,
            model: ask.model.clone(),
            prompt_tokens: ask.prompt_tokens,
            max_output_tokens: ask.max_output_tokens,
            priority: ask.priority,
            streaming: ask.streaming,
            attributes: attributes(&ask.attributes),
        }
    }
}

impl From<&Ask> for host::Ask {
    fn from(ask: &Ask) -> Self {
        Self {
            tenant: TenantId(ask.tenant),
            model: ask.model.clone(),
            prompt_tokens: ask.prompt_tokens,
            max_output_tokens: ask.max_output_tokens,
            priority: ask.priority,
            streaming: ask.streaming,
            attributes: ask.attributes.iter().map(|a| (a.key.clone(), a.value.clone())).collect(),
        }
    }
}

impl From<&Table> for host::Table {
    fn from(facts: &Table) -> Self {
        let columns = facts.columns.iter().map(|c| host::Column { kind: c.kind, values: Arc::new(c.values.clone()) }).collect();
        Self { rows: facts.rows, columns }
    }
}

impl From<Choice> for host::Choice {
    fn from(choice: Choice) -> Self {
        Self { precision: choice.precision, may_downgrade: choice.may_downgrade, reason: choice.reason }
    }
}

impl From<&host::RouteRequest> for Request {
    fn from(request: &host::RouteRequest) -> Self {
        Self {
            tenant: request.tenant.0,
            model: request.model.clone(),
            session: request.session,
            prompt_tokens: request.prompt_tokens,
            max_output_tokens: request.max_output_tokens,
            priority: request.priority,
            slack_us: request.slack_us,
            streaming: request.streaming,
            attributes: attributes(&request.attributes),
        }
    }
}

impl From<Decision> for host::Decision {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Forward(Forward { lanes, priority, reason }) => Self::Forward(host::Forward { lanes, priority, reason }),
            Decision::Hold(ms) => Self::Hold(ms),
            Decision::Refuse(Refusal { status, retry_after_ms, reason, message }) => {
                Self::Refuse(host::Refusal { status, retry_after_ms, reason, message })
            }
        }
    }
}

impl From<&host::Budget> for Budget {
    fn from(budget: &host::Budget) -> Self {
        Self {
            stage: match budget.stage {
                Stage::Prefill => WireStage::Prefill,
                Stage::Decode => WireStage::Decode,
            },
            step: budget.step,
            tokens: budget.tokens,
            sequences: budget.sequences,
            free_pages: budget.free_pages,
            total_pages: budget.total_pages,
            page_tokens: budget.page_tokens,
            step_us: budget.step_us,
        }
    }
}

impl From<&Budget> for host::Budget {
    fn from(budget: &Budget) -> Self {
        Self {
            stage: match budget.stage {
                WireStage::Prefill => Stage::Prefill,
                WireStage::Decode => Stage::Decode,
            },
            step: budget.step,
            tokens: budget.tokens,
            sequences: budget.sequences,
            free_pages: budget.free_pages,
            total_pages: budget.total_pages,
            page_tokens: budget.page_tokens,
            step_us: budget.step_us,
            answer_within_us: None,
        }
    }
}

impl From<Plan> for host::Plan {
    fn from(plan: Plan) -> Self {
        let Plan { run, tokens, preempt, valid_steps, reason } = plan;
        Self { run, tokens, preempt, valid_steps, reason }
    }
}
