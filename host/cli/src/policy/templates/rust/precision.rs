//! Bulk tenants take the cheapest precision, all others the operator's first.

{{#feedback}}
use millrace_policy_sdk::feedback::{Feedback, outcome};
{{/feedback}}
{{#handover}}
use millrace_policy_sdk::handover::Handover;
{{/handover}}
use millrace_policy_sdk::precision::{Ask, Choice, Precision};
use millrace_policy_sdk::{Policy, Table, kind{{#feedback}}, policy_feedback{{/feedback}}{{#handover}}, policy_handover{{/handover}}, precision_policy};
use serde::Deserialize;

/// The policy's table in the deployment: `config = { cheap_tier = 0 }`. A key that is not here is refused.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Tenants of this tier and below are served cheaply: 0 bulk, 1 standard, 2 gold.
    cheap_tier: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { cheap_tier: 0 }
    }
}

struct CheapForBulk {
    config: Config,
{{learnt}}
}

const STANDARD: u32 = 1;

impl Policy for CheapForBulk {
    type Config = Config;

    /// The host copies these columns and no others.
    const WANTS: &'static [u32] = &[kind::TIER, kind::RELATIVE_COST_PER_MILLE{{#feedback}}, kind::OUTCOME{{/feedback}}];

    fn new(config: Config) -> Result<Self, Vec<String>> {
        if config.cheap_tier > 2 {
            return Err(vec![format!("cheap_tier is {}; tiers are 0 bulk, 1 standard, 2 gold", config.cheap_tier)]);
        }
        Ok(Self { config{{#beside}}, learnt: 0{{/beside}} })
    }
}

impl Precision for CheapForBulk {
    fn choose(&mut self, asks: &[Ask], precisions: &Table, tenants: &Table) -> Vec<Choice> {
{{#unheard}}
        self.learnt = self.learnt.wrapping_add(1);
{{/unheard}}
        let (tier, cost) = (tenants.column(kind::TIER), precisions.column(kind::RELATIVE_COST_PER_MILLE));
        let cheapest = (0..precisions.rows).min_by_key(|&row| (cost.or(row, u32::MAX), row)).unwrap_or(0);
        let choice = |ask: &Ask| {
            let is_cheap = tier.or(ask.tenant, STANDARD) <= self.config.cheap_tier;
            Choice { precision: if is_cheap { cheapest } else { 0 }, may_downgrade: is_cheap, reason: {{#plain}}0{{/plain}}{{#beside}}self.learnt{{/beside}} }
        };
        asks.iter().map(choice).collect()
    }
}

precision_policy!(CheapForBulk);
