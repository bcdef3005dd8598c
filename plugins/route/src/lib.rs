//! The built-in route: lanes by load, with the tenant in mind.
//!
//! Standard: least work first, then KV in use. Gold: fewest waiting first, then the quickest to a first token, so that it never
//! queues where it need not. Bulk: the busiest lane that is not under pressure, which leaves the others short queues.
//! A tenant may be held to a queue in proportion to its weight; over it, 429.

use millrace_policy_sdk::route::{Decision, Forward, Refusal, Request, Route, eligible};
use millrace_policy_sdk::{Policy, Table, kind, route_policy};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Most sequences of a tenant that wait, per unit of its weight; 0: no bound of this policy's.
    max_waiting_per_weight: u32,
    /// KV in use from which bulk requests go elsewhere.
    pressure_per_mille: u32,
    /// Told to a client that was refused.
    retry_after_ms: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_waiting_per_weight: 0, pressure_per_mille: 900, retry_after_ms: 1_000 }
    }
}

struct TenantRoute {
    config: Config,
}

const BULK: u32 = 0;
const STANDARD: u32 = 1;
const GOLD: u32 = 2;

/// Reasons of this policy, for the log.
const REASON_OVER_SHARE: u32 = 1;
const REASON_NO_LANE: u32 = 2;

impl Policy for TenantRoute {
    type Config = Config;

    const WANTS: &'static [u32] = &[
        kind::WEIGHT,
        kind::TENANT_WAITING,
        kind::TIER,
        kind::LANE_WAITING,
        kind::LANE_RUNNING,
        kind::KV_USED_PER_MILLE,
        kind::TTFT_US,
        kind::HEALTHY,
        kind::ELIGIBLE,
    ];

    fn new(config: Config) -> Result<Self, Vec<String>> {
        if (1..=1_000).contains(&config.pressure_per_mille) {
            return Ok(Self { config });
        }
        Err(vec![format!("pressure_per_mille is {}; it is a share of the pool, 1 to 1000", config.pressure_per_mille)])
    }
}

impl Route for TenantRoute {
    fn decide(&mut self, request: &Request, lanes: &Table, tenants: &Table) -> Decision {
        if self.is_over_share(request.tenant, tenants) {
            return self.refuse(429, REASON_OVER_SHARE, "too many requests of this tenant wait already");
        }
        let rows = self.in_order(tenants.column(kind::TIER).or(request.tenant, STANDARD), lanes);
        if rows.is_empty() {
            return self.refuse(503, REASON_NO_LANE, "no lane takes requests now");
        }
        Decision::Forward(Forward { lanes: rows, priority: None, reason: 0 })
    }
}

route_policy!(TenantRoute);

impl TenantRoute {
    fn is_over_share(&self, tenant: u32, tenants: &Table) -> bool {
        let bound = u64::from(self.config.max_waiting_per_weight) * u64::from(tenants.column(kind::WEIGHT).or(tenant, 1).max(1));
        bound > 0 && u64::from(tenants.column(kind::TENANT_WAITING).or(tenant, 0)) >= bound
    }

    fn in_order(&self, tier: u32, lanes: &Table) -> Vec<u32> {
        let mut rows = eligible(lanes);
        let waiting = |row: u32| u64::from(lanes.column(kind::LANE_WAITING).or(row, 0));
        let load = |row: u32| waiting(row) + u64::from(lanes.column(kind::LANE_RUNNING).or(row, 0));
        let kv = |row: u32| lanes.column(kind::KV_USED_PER_MILLE).or(row, 0);
        match tier {
            GOLD => rows.sort_by_key(|&row| (waiting(row), lanes.column(kind::TTFT_US).or(row, 0), load(row), kv(row))),
            // Under pressure even bulk takes the least loaded.
            BULK => rows.sort_by_key(|&row| {
                let pressed = kv(row) >= self.config.pressure_per_mille;
                (pressed, if pressed { 0 } else { u64::MAX - load(row) }, load(row), kv(row))
            }),
            _ => rows.sort_by_key(|&row| (load(row), kv(row))),
        }
        rows
    }

    fn refuse(&self, status: u16, reason: u32, message: &str) -> Decision {
        Decision::Refuse(Refusal { status, retry_after_ms: Some(self.config.retry_after_ms), reason, message: message.into() })
    }
}
