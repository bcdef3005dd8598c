//! The native precision choice: by the tenant's tier, the length of the prompt and how full the pools are.
//! It does not know recipes, only bits, formats and cost.

use std::cmp::Reverse;

use crate::{Ask, Choice, Policy, PolicyFault, PrecisionPolicy, Table, format, kind};

/// Gold: the most precise. Bulk: the cheapest. Standard: the operator's first; a long prompt takes the most precise while that
/// one's pools have room; whatever was taken gives way to the cheapest where its pools are under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierPrecision {
    /// A prompt of this many tokens is long.
    pub long_context_tokens: u32,
    /// KV in use from which a precision's pools are under pressure.
    pub pressure_per_mille: u32,
}

const BULK: u32 = 0;
const STANDARD: u32 = 1;
const GOLD: u32 = 2;

impl Default for TierPrecision {
    fn default() -> Self {
        Self { long_context_tokens: 4_096, pressure_per_mille: 900 }
    }
}

impl TierPrecision {
    /// One choice per ask, valid where `precisions` has at least one row.
    #[must_use]
    pub fn choices(&self, asks: &[Ask], precisions: &Table, tenants: &Table) -> Vec<Choice> {
        let offers = Offers::new(precisions);
        asks.iter()
            .map(|ask| {
                let tier = tenants.value(kind::TIER, ask.tenant.0 as usize).unwrap_or(STANDARD);
                let precision = match tier {
                    GOLD => offers.most_precise,
                    BULK => offers.cheapest,
                    _ => self.standard(ask, precisions, &offers),
                };
                Choice { precision, may_downgrade: tier != GOLD, reason: 0 }
            })
            .collect()
    }

    fn standard(&self, ask: &Ask, precisions: &Table, offers: &Offers) -> u32 {
        let pressed =
            |row: u32| precisions.value(kind::PRECISION_KV_USED_PER_MILLE, row as usize).unwrap_or(0) >= self.pressure_per_mille;
        let long = ask.prompt_tokens >= self.long_context_tokens;
        let wanted = if long && !pressed(offers.most_precise) { offers.most_precise } else { offers.first };
        if pressed(wanted) { offers.cheapest } else { wanted }
    }
}

impl Policy for TierPrecision {}

impl PrecisionPolicy for TierPrecision {
    fn choose(&mut self, asks: &[Ask], precisions: &Table, tenants: &Table) -> Result<Vec<Choice>, PolicyFault> {
        Ok(self.choices(asks, precisions, tenants))
    }
}

/// The rows that matter, found once for all asks.
struct Offers {
    first: u32,
    most_precise: u32,
    cheapest: u32,
}

impl Offers {
    /// Among precisions with a lane that is ready, or among all where none is.
    fn new(precisions: &Table) -> Self {
        let ready = |row: &u32| precisions.value(kind::LANES_READY, *row as usize) != Some(0);
        let any_ready = (0..precisions.rows).any(|row| ready(&row));
        let rows = || (0..precisions.rows).filter(|row| !any_ready || ready(row));
        let fact = |row: u32, kind: u32| precisions.value(kind, row as usize).map(u64::from);
        let bits = |row: u32| {
            let stages = [kind::PREFILL_WEIGHT_BITS, kind::DECODE_WEIGHT_BITS, kind::KV_BITS];
            stages.iter().filter_map(|&kind| fact(row, kind)).sum::<u64>()
        };
        let divergence = |row: u32| fact(row, kind::KL_MICRONAT).unwrap_or(u64::MAX);
        // Weights of as many bits: FP8 is farther from the unquantized model than INT8 (`host/model/QUALITY.md`).
        let coarse = |row: u32| {
            let stages = [kind::PREFILL_WEIGHT_FORMAT, kind::DECODE_WEIGHT_FORMAT];
            stages.iter().filter(|&&kind| fact(row, kind) == Some(u64::from(format::FP8_E4M3))).count()
        };
        let worse = |row: u32| (divergence(row), coarse(row), row);
        let cost = |row: u32| fact(row, kind::RELATIVE_COST_PER_MILLE).unwrap_or(u64::MAX);
        Self {
            first: rows().next().unwrap_or(0),
            most_precise: rows().min_by_key(|&row| (Reverse(bits(row)), worse(row))).unwrap_or(0),
            cheapest: rows().min_by_key(|&row| (cost(row), bits(row), worse(row))).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::TenantId;

    use super::*;

    fn ask(tenant: u32, prompt_tokens: u32) -> Ask {
        Ask {
            tenant: TenantId(tenant),
            model: String::new(),
            prompt_tokens,
            max_output_tokens: 16,
            priority: 0,
            streaming: false,
            attributes: Vec::new(),
        }
    }

    /// 0 middle, 1 exact, 2 cheap.
    fn precisions(kv_used: [u32; 3]) -> Table {
        Table::new(3)
            .with(kind::PREFILL_WEIGHT_BITS, vec![8, 16, 4])
            .with(kind::DECODE_WEIGHT_BITS, vec![4, 16, 4])
            .with(kind::KV_BITS, vec![8, 16, 8])
            .with(kind::RELATIVE_COST_PER_MILLE, vec![500, 1_000, 400])
            .with(kind::PRECISION_KV_USED_PER_MILLE, kv_used.to_vec())
    }

    fn chosen(asks: &[Ask], precisions: &Table) -> Vec<u32> {
        let tenants = Table::new(3).with(kind::TIER, vec![BULK, STANDARD, GOLD]);
        TierPrecision::default().choices(asks, precisions, &tenants).iter().map(|c| c.precision).collect()
    }

    #[test]
    fn tiers_take_cheapest_first_and_most_precise() {
        assert_eq!(chosen(&[ask(0, 10), ask(1, 10), ask(2, 10), ask(9, 10)], &precisions([0; 3])), [2, 0, 1, 0]);
    }

    #[test]
    fn a_long_standard_prompt_takes_the_most_precise_while_it_has_room() {
        assert_eq!(chosen(&[ask(1, 4_095), ask(1, 4_096)], &precisions([0; 3])), [0, 1]);
        assert_eq!(chosen(&[ask(1, 4_096)], &precisions([0, 900, 0])), [0]);
    }

    /// Of equal bits and cost: what the operator measured comes first, then the format, then the operator's order.
    #[test]
    fn int8_is_more_precise_than_fp8_unless_the_operator_measured_otherwise() {
        let bits = [kind::PREFILL_WEIGHT_BITS, kind::DECODE_WEIGHT_BITS, kind::KV_BITS];
        let alike = bits.iter().fold(Table::new(3), |table, kind| table.with(*kind, vec![8; 3]));
        let formats = |prefill: [u32; 3], decode: [u32; 3]| {
            alike.clone().with(kind::PREFILL_WEIGHT_FORMAT, prefill.to_vec()).with(kind::DECODE_WEIGHT_FORMAT, decode.to_vec())
        };
        let (fp8, int8) = (format::FP8_E4M3, format::INT8);
        let (bulk_and_gold, mixed) = ([ask(0, 10), ask(2, 10)], formats([fp8, int8, int8], [fp8, fp8, int8]));
        assert_eq!(chosen(&bulk_and_gold, &alike), [0, 0]);
        assert_eq!(chosen(&bulk_and_gold, &mixed), [2, 2]);
        assert_eq!(chosen(&bulk_and_gold, &formats([fp8, int8, int8], [fp8; 3])), [1, 1]);
        assert_eq!(chosen(&bulk_and_gold, &formats([int8; 3], [int8; 3])), [0, 0]);
        let measured = mixed.with(kind::KL_MICRONAT, vec![700, u32::MAX, 900]);
        assert_eq!(chosen(&bulk_and_gold, &measured), [0, 0]);
    }

    #[test]
    fn pressure_moves_standard_to_the_cheapest() {
        assert_eq!(chosen(&[ask(1, 10), ask(2, 10)], &precisions([900, 950, 950])), [2, 1]);
        assert_eq!(chosen(&[ask(1, 10)], &precisions([899, 0, 0])), [0]);
    }

    #[test]
    fn precisions_without_a_ready_lane_are_left_out_unless_all_are() {
        let none_exact = precisions([0; 3]).with(kind::LANES_READY, vec![1, 0, 1]);
        assert_eq!(chosen(&[ask(2, 10)], &none_exact), [0]);
        let none = precisions([0; 3]).with(kind::LANES_READY, vec![0, 0, 0]);
        assert_eq!(chosen(&[ask(2, 10)], &none), [1]);
    }

    #[test]
    fn without_facts_the_first_is_taken() {
        assert_eq!(chosen(&[ask(0, 1), ask(1, 1), ask(2, 1)], &Table::new(2)), [0, 0, 0]);
        assert_eq!(chosen(&[ask(1, 1)], &Table::new(0)), [0]);
    }
}
