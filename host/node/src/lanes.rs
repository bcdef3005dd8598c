//! The lanes as policies see them: which precisions a tenant may have, which lanes serve them, and the tables of facts.
//! Makes no decision.

use std::sync::Arc;

use millrace_config::{Config, Tenant, Tier};
use millrace_core::{LaneId, PoolId, Precision, StageRecipe};
use millrace_engine::{EngineSnapshot, LaneFacts, TenantFacts};
use millrace_ops::KvFormat;
use millrace_policy::{Choice, Table, format, kind};

use crate::admission::Admission;

/// What does not change about a lane.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) name: Arc<str>,
    pub(crate) precision: Precision,
    /// Row of [`Lanes::precisions`].
    pub(crate) precision_row: usize,
    pub(crate) fingerprint: Arc<str>,
    /// Tokens that its smaller pool can hold for one sequence.
    pub(crate) capacity_tokens: u32,
    /// Of the decode stage, read once for every step.
    decode_weight_bytes: u64,
    kl_micronat: Option<u32>,
}

/// What is known of a pool once its model is loaded.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PoolFigures {
    pub(crate) capacity_tokens: u32,
    pub(crate) weight_bytes: u64,
}

/// All lanes and their precisions.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) rows: Vec<Lane>,
    /// Each once, in the order of the lanes.
    pub(crate) precisions: Vec<Precision>,
    /// Per tenant, which lanes it may use.
    allowed: Vec<Vec<bool>>,
    weights: Vec<u32>,
    tiers: Vec<u32>,
}

/// The precisions that are offered for one request: a table, and what its rows are.
pub(crate) struct Offer {
    pub(crate) table: Table,
    /// Row of the table to row of [`Lanes::precisions`].
    pub(crate) rows: Vec<usize>,
}

impl Lanes {
    /// `digest` identifies the weights, `pools` are in the order of the configuration, which refused lanes without pools.
    pub(crate) fn new(config: &Config, digest: &str, pools: &[PoolFigures]) -> Self {
        let mut precisions: Vec<Precision> = Vec::new();
        let mut rows = Vec::with_capacity(config.lanes.len());
        let figures = |pool: PoolId| pools.get(pool.0 as usize).copied().unwrap_or_default();
        let short: String = digest.chars().take(8).collect();
        for lane in &config.lanes {
            let Some(precision) = config.precision(lane) else { continue };
            let precision_row = precisions.iter().position(|p| *p == precision).unwrap_or_else(|| {
                precisions.push(precision);
                precisions.len() - 1
            });
            rows.push(Lane {
                name: lane.name.as_str().into(),
                precision,
                precision_row,
                fingerprint: format!("{}/{precision}/{short}", lane.name).into(),
                capacity_tokens: figures(lane.prefill).capacity_tokens.min(figures(lane.decode).capacity_tokens),
                decode_weight_bytes: figures(lane.decode).weight_bytes,
                kl_micronat: lane.kl_micronat,
            });
        }
        let may = |tenant: &Tenant| (0..).map(LaneId).take(rows.len()).map(|lane| tenant.allowed_lanes.contains(&lane)).collect();
        Self {
            allowed: config.tenants.iter().map(may).collect(),
            weights: config.tenants.iter().map(|t| t.weight).collect(),
            tiers: config.tenants.iter().map(|t| tier(t.tier)).collect(),
            precisions,
            rows,
        }
    }

    fn may(&self, tenant: usize, lane: usize) -> bool {
        self.allowed.get(tenant).and_then(|lanes| lanes.get(lane)).copied().unwrap_or(false)
    }

    /// The precisions of healthy lanes that the tenant may use. What a token costs is told by the bytes of the decode weights, for
    /// which decode waits: a stand-in that is there before the first request and does not change with the load, where measured
    /// speed depends on who shares the batch.
    pub(crate) fn offer(&self, tenant: usize, engine: &EngineSnapshot) -> Offer {
        let usable = |lane: usize| engine.lanes.get(lane).is_some_and(|facts| facts.healthy) && self.may(tenant, lane);
        let of = |precision: usize| {
            let lanes = self.rows.iter().enumerate();
            lanes.filter(move |(i, lane)| lane.precision_row == precision && usable(*i)).filter_map(|(i, _)| engine.lanes.get(i))
        };
        let rows: Vec<usize> = (0..self.precisions.len()).filter(|p| of(*p).next().is_some()).collect();
        let each = |value: &dyn Fn(usize) -> u32| rows.iter().map(|row| value(*row)).collect::<Vec<u32>>();
        let precision = |row: usize| self.precisions.get(row).copied();
        let format = |of: fn(Precision) -> u32| each(&|row| precision(row).map_or(u32::MAX, of));
        let cost =
            |row: usize| self.rows.iter().find(|lane| lane.precision_row == row).map_or(0, |lane| lane.decode_weight_bytes);
        let dearest = rows.iter().map(|row| cost(*row)).max().unwrap_or(0);
        let table = Table::new(rows.len())
            .with(kind::PREFILL_WEIGHT_BITS, each(&|row| precision(row).map_or(u32::MAX, |p| recipe_bits(p.prefill.recipe))))
            .with(kind::DECODE_WEIGHT_BITS, each(&|row| precision(row).map_or(u32::MAX, |p| recipe_bits(p.decode.recipe))))
            .with(kind::KV_BITS, each(&|row| precision(row).map_or(u32::MAX, |p| kv_bits(p.decode.kv))))
            .with(kind::KL_MICRONAT, each(&|row| self.kl_micronat(row)))
            .with(kind::RELATIVE_COST_PER_MILLE, each(&|row| per_mille(cost(row), dearest)))
            .with(kind::LANES_READY, each(&|row| count(of(row).count())))
            .with(kind::PRECISION_KV_USED_PER_MILLE, each(&|row| kv_used_per_mille(of(row))))
            .with(kind::PRECISION_WAITING, each(&|row| of(row).map(|l| l.waiting).fold(0, u32::saturating_add)))
            .with(kind::PRECISION_PREFILL_TOKENS_PER_S, each(&|row| mean(of(row).map(|l| l.speed.prefill_tokens_per_s))))
            .with(kind::PRECISION_DECODE_TOKENS_PER_S, each(&|row| mean(of(row).map(|l| l.speed.decode_tokens_per_s))))
            .with(kind::PREFILL_WEIGHT_FORMAT, format(|p| weight_format(p.prefill.recipe)))
            .with(kind::DECODE_WEIGHT_FORMAT, format(|p| weight_format(p.decode.recipe)))
            .with(kind::KV_FORMAT, format(|p| kv_format(p.decode.kv)))
            .with(kind::PREFILL_KV_FORMAT, format(|p| kv_format(p.prefill.kv)));
        Offer { table, rows }
    }

    /// All lanes with their facts; eligible are the healthy ones of a precision that the tenant may use and that hold `needed` tokens.
    pub(crate) fn table(&self, tenant: usize, precision_row: usize, needed: u32, engine: &EngineSnapshot) -> Table {
        let facts = |value: fn(&LaneFacts) -> u32| -> Vec<u32> {
            (0..self.rows.len()).map(|i| engine.lanes.get(i).map_or(u32::MAX, value)).collect()
        };
        let eligible = self.rows.iter().enumerate().map(|(i, lane)| {
            let healthy = engine.lanes.get(i).is_some_and(|l| l.healthy);
            u32::from(healthy && lane.precision_row == precision_row && lane.capacity_tokens >= needed && self.may(tenant, i))
        });
        Table::new(self.rows.len())
            .with(kind::LANE_WAITING, facts(|l| l.waiting))
            .with(kind::LANE_RUNNING, facts(|l| l.running))
            .with(kind::KV_USED_PER_MILLE, facts(|l| l.kv_used_per_mille))
            .with(kind::TTFT_US, facts(|l| l.ttft_us))
            .with(kind::ITL_US, facts(|l| l.itl_us))
            .with(kind::FREE_PAGES, facts(|l| l.free_pages))
            .with(kind::HEALTHY, facts(|l| u32::from(l.healthy)))
            .with(kind::LANE_PRECISION, self.rows.iter().map(|lane| count(lane.precision_row)).collect())
            .with(kind::ELIGIBLE, eligible.collect())
            .with(kind::LANE_PREFILL_TOKENS_PER_S, facts(|l| measured(l.speed.prefill_tokens_per_s)))
            .with(kind::LANE_DECODE_TOKENS_PER_S, facts(|l| measured(l.speed.decode_tokens_per_s)))
            .with(kind::LANE_STEP_US, facts(|l| measured(l.speed.decode_step_us)))
    }

    /// Of the lane of a precision that is farthest from the unquantized model, as the operator says; absent: nobody said.
    fn kl_micronat(&self, precision_row: usize) -> u32 {
        let lanes = self.rows.iter().filter(|lane| lane.precision_row == precision_row);
        lanes.filter_map(|lane| lane.kl_micronat).max().unwrap_or(u32::MAX)
    }

    /// What the largest lane of a precision holds that the tenant may use, in service or not.
    pub(crate) fn capacity_tokens(&self, tenant: usize, precision_row: usize) -> u32 {
        let lanes = self.rows.iter().enumerate().filter(|(i, lane)| lane.precision_row == precision_row && self.may(tenant, *i));
        lanes.map(|(_, lane)| lane.capacity_tokens).max().unwrap_or(0)
    }

    /// The tenants, with their requests as the node counts them.
    pub(crate) fn tenants(&self, admission: &Admission, engine: &EngineSnapshot) -> Table {
        let counts: Vec<(u32, u32)> = (0..self.weights.len()).map(|i| admission.of_tenant(i)).collect();
        let served = |i: usize| engine.tenants.get(i).map_or(0, |t| u32::try_from(t.tokens_served).unwrap_or(u32::MAX - 1));
        let of = |fact: fn(&TenantFacts) -> u32| -> Vec<u32> {
            (0..self.weights.len()).map(|i| engine.tenants.get(i).map_or(u32::MAX, fact)).collect()
        };
        Table::new(self.weights.len())
            .with(kind::WEIGHT, self.weights.clone())
            .with(kind::TOKENS_SERVED, (0..self.weights.len()).map(served).collect())
            .with(kind::TENANT_RUNNING, counts.iter().map(|c| c.1).collect())
            .with(kind::TENANT_WAITING, counts.iter().map(|c| c.0).collect())
            .with(kind::CACHED_PAGES, of(|tenant| tenant.cached_pages))
            .with(kind::PAGE_QUOTA, of(|tenant| measured(tenant.page_quota)))
            .with(kind::TIER, self.tiers.clone())
    }
}

impl Offer {
    /// Rows of precisions to try in turn: the chosen one, then cheaper ones if the policy allows that.
    pub(crate) fn to_try(&self, choice: Choice) -> Vec<usize> {
        let chosen = choice.precision as usize;
        let mut rows = vec![chosen];
        if choice.may_downgrade {
            let bits = |row: usize| {
                let of = |kind| self.table.value(kind, row).unwrap_or(u32::MAX / 4);
                of(kind::DECODE_WEIGHT_BITS).saturating_add(of(kind::KV_BITS))
            };
            let mut cheaper: Vec<usize> = (0..self.rows.len()).filter(|row| bits(*row) < bits(chosen)).collect();
            cheaper.sort_by_key(|row| std::cmp::Reverse(bits(*row)));
            rows.extend(cheaper);
        }
        rows.into_iter().filter_map(|row| self.rows.get(row).copied()).collect()
    }
}

pub(crate) fn tier(tier: Tier) -> u32 {
    match tier {
        Tier::Bulk => 0,
        Tier::Standard => 1,
        Tier::Gold => 2,
    }
}

/// Bits per weight; `u32::MAX` (absent) where the checkpoint decides.
fn recipe_bits(recipe: StageRecipe) -> u32 {
    match recipe {
        StageRecipe::Stored => u32::MAX,
        StageRecipe::Bf16 => 16,
        StageRecipe::Fp8 | StageRecipe::Int8 => 8,
        StageRecipe::Int4 => 4,
    }
}

fn weight_format(recipe: StageRecipe) -> u32 {
    match recipe {
        StageRecipe::Stored => format::STORED,
        StageRecipe::Bf16 => format::BF16,
        StageRecipe::Fp8 => format::FP8_E4M3,
        StageRecipe::Int8 => format::INT8,
        StageRecipe::Int4 => format::INT4,
    }
}

fn kv_format(kv: KvFormat) -> u32 {
    match kv {
        KvFormat::F32 => format::F32,
        KvFormat::Bf16 => format::BF16,
        KvFormat::Fp8 => format::FP8_E4M3,
    }
}

fn kv_bits(kv: KvFormat) -> u32 {
    match kv {
        KvFormat::F32 => 32,
        KvFormat::Bf16 => 16,
        KvFormat::Fp8 => 8,
    }
}

/// Absent where nobody knows the whole.
fn per_mille(part: u64, whole: u64) -> u32 {
    let share = (u128::from(part) * 1_000).checked_div(u128::from(whole));
    share.and_then(|share| u32::try_from(share).ok()).unwrap_or(u32::MAX)
}

/// A measured figure is 0 where nothing was measured yet, and absent then.
fn measured(figure: u32) -> u32 {
    if figure == 0 { u32::MAX } else { figure }
}

/// Over the lanes that have a figure; absent where none has.
fn mean(figures: impl Iterator<Item = u32>) -> u32 {
    let (mut sum, mut count) = (0_u64, 0_u64);
    for figure in figures.filter(|figure| *figure > 0) {
        sum += u64::from(figure);
        count += 1;
    }
    sum.checked_div(count).and_then(|mean| u32::try_from(mean).ok()).unwrap_or(u32::MAX)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn kv_used_per_mille<'a>(lanes: impl Iterator<Item = &'a LaneFacts>) -> u32 {
    let (mut used, mut total) = (0_u64, 0_u64);
    for lane in lanes {
        used += u64::from(lane.kv_used_per_mille) * u64::from(lane.total_pages);
        total += u64::from(lane.total_pages);
    }
    used.checked_div(total).map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
