//! The built-in precision choice: by the tenant's tier, the length of the prompt and how full the pools are.
//!
//! Gold: the most precise. Bulk: the cheapest. Standard: the operator's first; a long prompt takes the most precise while that
//! one's pools have room; whatever was taken gives way to the cheapest where its pools are under pressure.
//! The host's native fallback decides the same with the same configuration; a test compares the two.

use std::cmp::Reverse;

use millrace_policy_sdk::precision::{Ask, Choice, Precision};
use millrace_policy_sdk::{Format, Policy, Table, kind, precision_policy};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// A prompt of this many tokens is long.
    long_context_tokens: u32,
    /// KV in use from which a precision's pools are under pressure.
    pressure_per_mille: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { long_context_tokens: 4_096, pressure_per_mille: 900 }
    }
}

struct Tier {
    config: Config,
}

const BULK: u32 = 0;
const STANDARD: u32 = 1;
const GOLD: u32 = 2;

impl Policy for Tier {
    type Config = Config;

    const WANTS: &'static [u32] = &[
        kind::TIER,
        kind::PREFILL_WEIGHT_BITS,
        kind::DECODE_WEIGHT_BITS,
        kind::KV_BITS,
        kind::KL_MICRONAT,
        kind::RELATIVE_COST_PER_MILLE,
        kind::LANES_READY,
        kind::PRECISION_KV_USED_PER_MILLE,
        kind::PREFILL_WEIGHT_FORMAT,
        kind::DECODE_WEIGHT_FORMAT,
    ];

    fn new(config: Config) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        if config.long_context_tokens == 0 {
            faults.push("long_context_tokens is 0; every prompt would be long, so use 1 or more".into());
        }
        if !(1..=1_000).contains(&config.pressure_per_mille) {
            faults.push(format!("pressure_per_mille is {}; it is a share of the pool, 1 to 1000", config.pressure_per_mille));
        }
        if faults.is_empty() { Ok(Self { config }) } else { Err(faults) }
    }
}

impl Precision for Tier {
    fn choose(&mut self, asks: &[Ask], precisions: &Table, tenants: &Table) -> Vec<Choice> {
        let (offers, tiers) = (Offers::new(precisions), tenants.column(kind::TIER));
        let choice = |ask: &Ask| {
            let tier = tiers.or(ask.tenant, STANDARD);
            let precision = match tier {
                GOLD => offers.most_precise,
                BULK => offers.cheapest,
                _ => self.standard(ask, precisions, &offers),
            };
            Choice { precision, may_downgrade: tier != GOLD, reason: 0 }
        };
        asks.iter().map(choice).collect()
    }
}

impl Tier {
    fn standard(&self, ask: &Ask, precisions: &Table, offers: &Offers) -> u32 {
        let used = precisions.column(kind::PRECISION_KV_USED_PER_MILLE);
        let pressed = |row: u32| used.or(row, 0) >= self.config.pressure_per_mille;
        let long = ask.prompt_tokens >= self.config.long_context_tokens;
        let wanted = if long && !pressed(offers.most_precise) { offers.most_precise } else { offers.first };
        if pressed(wanted) { offers.cheapest } else { wanted }
    }
}

precision_policy!(Tier);

/// The rows that matter, found once for all asks.
struct Offers {
    first: u32,
    most_precise: u32,
    cheapest: u32,
}

impl Offers {
    /// Among precisions with a lane that is ready, or among all where none is.
    fn new(precisions: &Table) -> Self {
        let lanes_ready = precisions.column(kind::LANES_READY);
        let mut rows: Vec<u32> = (0..precisions.rows).filter(|&row| lanes_ready.get(row) != Some(0)).collect();
        if rows.is_empty() {
            rows = (0..precisions.rows).collect();
        }
        let stages = [kind::PREFILL_WEIGHT_BITS, kind::DECODE_WEIGHT_BITS, kind::KV_BITS].map(|kind| precisions.column(kind));
        let bits = |row: u32| stages.iter().map(|stage| u64::from(stage.or(row, 0))).sum::<u64>();
        // Unknown counts as worst; values stop below u32::MAX, which means absent.
        let divergence = |row: u32| precisions.column(kind::KL_MICRONAT).or(row, u32::MAX);
        // Weights of as many bits: FP8 is farther from the unquantized model than INT8.
        let weights = [kind::PREFILL_WEIGHT_FORMAT, kind::DECODE_WEIGHT_FORMAT].map(|kind| precisions.column(kind));
        let coarse = |row: u32| weights.iter().filter(|stage| stage.format(row) == Some(Format::Fp8E4m3)).count();
        let worse = |row: u32| (divergence(row), coarse(row), row);
        let cost = |row: u32| precisions.column(kind::RELATIVE_COST_PER_MILLE).or(row, u32::MAX);
        let best = |found: Option<&u32>| found.copied().unwrap_or(0);
        Self {
            first: best(rows.first()),
            most_precise: best(rows.iter().min_by_key(|&&row| (Reverse(bits(row)), worse(row)))),
            cheapest: best(rows.iter().min_by_key(|&&row| (cost(row), bits(row), worse(row)))),
        }
    }
}
