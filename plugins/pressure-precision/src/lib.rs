//! Pressure-adaptive precision: everybody is served with the most precise precision whose pools have room, and step by step with
//! cheaper ones as those fill up; relief comes later than pressure, so that the choice does not swing.
//!
//! Precisions are taken from the most bits to the fewest; of as many bits first what the operator measured to be closer, then INT8 before
//! FP8, then in the operator's order. One is left while its KV is used beyond `pressure_per_mille` or more than
//! `max_waiting` requests wait for it, and taken again once both are below three quarters of that. Gold goes one step later.

use std::cmp::Reverse;

use millrace_policy_sdk::precision::{Ask, Choice, Precision};
use millrace_policy_sdk::{Format, Policy, Table, kind, precision_policy};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// KV in use from which a precision is under pressure.
    pressure_per_mille: u32,
    /// Requests waiting for it from which it is.
    max_waiting: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { pressure_per_mille: 850, max_waiting: 16 }
    }
}

struct Adaptive {
    config: Config,
    /// Precisions that were left; rows may change from call to call.
    left: Vec<Name>,
}

/// What tells a precision from call to call; rows do not, because what is offered differs from tenant to tenant.
#[derive(PartialEq, Eq)]
enum Name {
    Formats([Format; 4]),
    /// Of a host that tells no formats: the bits, and which of those with the same bits it is, in the host's order.
    Bits(u64, u32),
}

const STANDARD: u32 = 1;
const GOLD: u32 = 2;
/// More precisions than any deployment offers.
const MAX_LEFT: usize = 64;

impl Policy for Adaptive {
    type Config = Config;

    const WANTS: &'static [u32] = &[
        kind::TIER,
        kind::PREFILL_WEIGHT_BITS,
        kind::DECODE_WEIGHT_BITS,
        kind::KV_BITS,
        kind::KL_MICRONAT,
        kind::LANES_READY,
        kind::PRECISION_KV_USED_PER_MILLE,
        kind::PRECISION_WAITING,
        kind::PREFILL_WEIGHT_FORMAT,
        kind::DECODE_WEIGHT_FORMAT,
        kind::KV_FORMAT,
        kind::PREFILL_KV_FORMAT,
    ];

    fn new(config: Config) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        if !(1..=1_000).contains(&config.pressure_per_mille) {
            faults.push(format!("pressure_per_mille is {}; it is a share of the pool, 1 to 1000", config.pressure_per_mille));
        }
        if config.max_waiting == 0 {
            faults.push("max_waiting is 0; every precision would always be under pressure, so use 1 or more".into());
        }
        if faults.is_empty() { Ok(Self { config, left: Vec::new() }) } else { Err(faults) }
    }
}

impl Precision for Adaptive {
    fn choose(&mut self, asks: &[Ask], precisions: &Table, tenants: &Table) -> Vec<Choice> {
        let ready = precisions.column(kind::LANES_READY);
        let mut rows: Vec<u32> = (0..precisions.rows).filter(|&row| ready.get(row) != Some(0)).collect();
        if rows.is_empty() {
            rows = (0..precisions.rows).collect();
        }
        rows.sort_unstable_by_key(|&row| {
            (Reverse(bits(row, precisions)), divergence(row, precisions), coarse(row, precisions), row)
        });
        rows.iter().for_each(|&row| self.update(row, precisions));
        let is_open = |row: u32| !self.left.contains(&name(row, precisions));
        // The cheapest takes what nobody else does.
        let open = rows.iter().position(|&row| is_open(row)).unwrap_or(rows.len().saturating_sub(1));
        let at = |place: usize| rows.get(place).copied().unwrap_or(0);
        let tier = tenants.column(kind::TIER);
        let choice = |ask: &Ask| {
            let is_gold = tier.or(ask.tenant, STANDARD) == GOLD;
            let place = if is_gold { open.saturating_sub(1) } else { open };
            Choice { precision: at(place), may_downgrade: !is_gold, reason: u32::try_from(place).unwrap_or(0) }
        };
        asks.iter().map(choice).collect()
    }
}

impl Adaptive {
    fn update(&mut self, row: u32, precisions: &Table) {
        let (used, waiting) = (precisions.column(kind::PRECISION_KV_USED_PER_MILLE), precisions.column(kind::PRECISION_WAITING));
        let load = |share: u64, of: u32| u64::from(of) * share / 4;
        let beyond = |share: u64| {
            u64::from(used.or(row, 0)) >= load(share, self.config.pressure_per_mille)
                || u64::from(waiting.or(row, 0)) >= load(share, self.config.max_waiting).max(1)
        };
        let name = name(row, precisions);
        let was_left = self.left.contains(&name);
        if was_left && !beyond(3) {
            self.left.retain(|left| *left != name);
        } else if !was_left && beyond(4) && self.left.len() < MAX_LEFT {
            self.left.push(name);
        }
    }
}

precision_policy!(Adaptive);

fn name(row: u32, precisions: &Table) -> Name {
    let format = |kind: u32| precisions.column(kind).format(row);
    let weights = (format(kind::PREFILL_WEIGHT_FORMAT), format(kind::DECODE_WEIGHT_FORMAT));
    if let ((Some(prefill), Some(decode)), Some(kv), Some(before)) =
        (weights, format(kind::KV_FORMAT), format(kind::PREFILL_KV_FORMAT))
    {
        return Name::Formats([prefill, decode, kv, before]);
    }
    let own = bits(row, precisions);
    let before = (0..row).filter(|&other| bits(other, precisions) == own).count();
    Name::Bits(own, u32::try_from(before).unwrap_or(u32::MAX))
}

/// As the operator says; unknown counts as worst.
fn divergence(row: u32, precisions: &Table) -> u32 {
    precisions.column(kind::KL_MICRONAT).or(row, u32::MAX)
}

/// Stages whose weights are FP8: farther from the unquantized model than INT8, which has as many bits.
fn coarse(row: u32, precisions: &Table) -> usize {
    let weights = [kind::PREFILL_WEIGHT_FORMAT, kind::DECODE_WEIGHT_FORMAT];
    weights.iter().filter(|&&kind| precisions.column(kind).format(row) == Some(Format::Fp8E4m3)).count()
}

/// Of weights and KV; unknown counts as 16. Prefill is told apart too.
fn bits(row: u32, precisions: &Table) -> u64 {
    let bits = |kind: u32| u64::from(precisions.column(kind).or(row, 16));
    (bits(kind::DECODE_WEIGHT_BITS) + bits(kind::KV_BITS)) << 16 | bits(kind::PREFILL_WEIGHT_BITS) << 8 | bits(kind::KV_BITS)
}
