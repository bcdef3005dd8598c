//! Prefix affinity: a request goes where most of its prompt is cached, or where its session went before, unless that lane is much
//! busier. Without either it goes where the least work is.
//!
//! A session keeps its lane by rendezvous hashing, so nothing has to be remembered, and a lane that comes or goes moves only its own
//! sessions.

use std::cmp::Reverse;

use millrace_policy_sdk::route::{Decision, Forward, Refusal, Request, Route, eligible};
use millrace_policy_sdk::{Policy, Table, kind, route_policy};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Cached tokens that weigh as much as one sequence in the lane's queue.
    tokens_per_sequence: u32,
    /// What a session's own lane counts as cached where the host does not tell what the lane has.
    session_tokens: u32,
    /// KV in use from which a lane comes last.
    pressure_per_mille: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { tokens_per_sequence: 512, session_tokens: 1_024, pressure_per_mille: 950 }
    }
}

struct Affinity {
    config: Config,
}

impl Policy for Affinity {
    type Config = Config;

    const WANTS: &'static [u32] = &[
        kind::LANE_WAITING,
        kind::LANE_RUNNING,
        kind::KV_USED_PER_MILLE,
        kind::PREFIX_HIT_TOKENS,
        kind::HEALTHY,
        kind::ELIGIBLE,
    ];

    fn new(config: Config) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        if config.tokens_per_sequence == 0 {
            faults.push("tokens_per_sequence is 0; queues would not count, so use 1 or more".into());
        }
        if !(1..=1_000).contains(&config.pressure_per_mille) {
            faults.push(format!("pressure_per_mille is {}; it is a share of the pool, 1 to 1000", config.pressure_per_mille));
        }
        if faults.is_empty() { Ok(Self { config }) } else { Err(faults) }
    }
}

impl Route for Affinity {
    fn decide(&mut self, request: &Request, lanes: &Table, _tenants: &Table) -> Decision {
        let mut rows = eligible(lanes);
        let home = request.session.and_then(|session| rows.iter().copied().max_by_key(|&lane| (weight(session, lane), lane)));
        if rows.is_empty() {
            let message = "no lane takes requests now".into();
            return Decision::Refuse(Refusal { status: 503, retry_after_ms: Some(1_000), reason: 0, message });
        }
        let (waiting, running) = (lanes.column(kind::LANE_WAITING), lanes.column(kind::LANE_RUNNING));
        let (hits, used) = (lanes.column(kind::PREFIX_HIT_TOKENS), lanes.column(kind::KV_USED_PER_MILLE));
        let score = |lane: u32| {
            let own = if home == Some(lane) { self.config.session_tokens } else { 0 };
            let cached = hits.or(lane, own);
            let queue = i64::from(waiting.or(lane, 0)) + i64::from(running.or(lane, 0));
            i64::from(cached) - queue * i64::from(self.config.tokens_per_sequence)
        };
        // Of equals a session's own, where its first request may still be on its way into the cache.
        let away = |lane: u32| home != Some(lane);
        rows.sort_by_key(|&lane| (used.or(lane, 0) >= self.config.pressure_per_mille, Reverse(score(lane)), away(lane), lane));
        Decision::Forward(Forward { lanes: rows, priority: None, reason: 0 })
    }
}

route_policy!(Affinity);

/// A number for a session on a lane that differs from lane to lane as if it were drawn (the finalizer of SplitMix64).
fn weight(session: u64, lane: u32) -> u64 {
    let mut z = session ^ u64::from(lane + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
