//! Least loaded: a request goes where the fewest sequences wait and run, of equals where less KV is in use. No tenants, no sessions, no
//! prefixes: what the host falls back to where a route fails, and the one to compare others with; a test compares the two.

use millrace_policy_sdk::route::{Decision, Forward, Refusal, Request, Route, eligible};
use millrace_policy_sdk::{NoConfig, Policy, Table, kind, route_policy};

struct LeastLoaded;

impl Policy for LeastLoaded {
    type Config = NoConfig;

    const WANTS: &'static [u32] =
        &[kind::LANE_WAITING, kind::LANE_RUNNING, kind::KV_USED_PER_MILLE, kind::HEALTHY, kind::ELIGIBLE];

    fn new(_: NoConfig) -> Result<Self, Vec<String>> {
        Ok(Self)
    }
}

impl Route for LeastLoaded {
    fn decide(&mut self, _request: &Request, lanes: &Table, _tenants: &Table) -> Decision {
        let mut rows = eligible(lanes);
        if rows.is_empty() {
            let message = "no lane takes requests now".into();
            return Decision::Refuse(Refusal { status: 503, retry_after_ms: Some(1_000), reason: 0, message });
        }
        let (waiting, running) = (lanes.column(kind::LANE_WAITING), lanes.column(kind::LANE_RUNNING));
        let used = lanes.column(kind::KV_USED_PER_MILLE);
        rows.sort_by_key(|&lane| (u64::from(waiting.or(lane, 0)) + u64::from(running.or(lane, 0)), used.or(lane, 0), lane));
        Decision::Forward(Forward { lanes: rows, priority: None, reason: 0 })
    }
}

route_policy!(LeastLoaded);
