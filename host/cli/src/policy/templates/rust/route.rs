//! The eligible lane with the least work.

{{#feedback}}
use millrace_policy_sdk::feedback::{Feedback, outcome};
{{/feedback}}
{{#handover}}
use millrace_policy_sdk::handover::Handover;
{{/handover}}
use millrace_policy_sdk::route::{Decision, Forward, Refusal, Request, Route, eligible};
use millrace_policy_sdk::{Policy, Table, kind{{#feedback}}, policy_feedback{{/feedback}}{{#handover}}, policy_handover{{/handover}}, route_policy};
use serde::Deserialize;

/// The policy's table in the deployment: `config = { max_waiting = 100 }`. A key that is not here is refused.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// A lane with more requests waiting takes no further ones.
    max_waiting: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_waiting: 1_000 }
    }
}

struct LeastWork {
    config: Config,
{{learnt}}
}

impl Policy for LeastWork {
    type Config = Config;

    /// The host copies these columns and no others.
    const WANTS: &'static [u32] = &[kind::LANE_WAITING, kind::LANE_RUNNING, kind::ELIGIBLE{{#feedback}}, kind::OUTCOME{{/feedback}}];

    fn new(config: Config) -> Result<Self, Vec<String>> {
        if config.max_waiting == 0 {
            return Err(vec!["max_waiting is 0; no request would ever be taken, so use 1 or more".into()]);
        }
        Ok(Self { config{{#beside}}, learnt: 0{{/beside}} })
    }
}

impl Route for LeastWork {
    fn decide(&mut self, _request: &Request, lanes: &Table, _tenants: &Table) -> Decision {
{{#unheard}}
        self.learnt = self.learnt.wrapping_add(1);
{{/unheard}}
        let (waiting, running) = (lanes.column(kind::LANE_WAITING), lanes.column(kind::LANE_RUNNING));
        let has_room = |row: &u32| waiting.or(*row, 0) < self.config.max_waiting;
        let mut rows: Vec<u32> = eligible(lanes).into_iter().filter(has_room).collect();
        if rows.is_empty() {
            let message = "every lane is full".into();
            return Decision::Refuse(Refusal { status: 503, retry_after_ms: Some(1_000), reason: 1, message });
        }
        rows.sort_by_key(|&row| (u64::from(waiting.or(row, 0)) + u64::from(running.or(row, 0)), row));
        Decision::Forward(Forward { lanes: rows, priority: None, reason: {{#plain}}0{{/plain}}{{#beside}}self.learnt{{/beside}} })
    }
}

route_policy!(LeastWork);
