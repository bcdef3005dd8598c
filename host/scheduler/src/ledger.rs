//! Service per tenant, as policies see it. Survives any policy; knows no sequences and decides nothing.

use millrace_core::TenantId;
use millrace_policy::{Table, kind};

use crate::StepPlan;

/// Decay is applied in sixteenths of a half-life: 2^(-1/16) in 16.16 fixed point, so that every run counts alike.
const DECAY_SIXTEENTH: u128 = 62_757;
const SIXTEENTHS: u64 = 16;
/// After 64 half-lives nothing is left of any u64.
const MAX_DECAYS: u64 = 64 * SIXTEENTHS;
/// Served tokens are kept in 1/1024, so that small counts decay too.
const FRACTION_BITS: u32 = 10;

/// What a tenant is entitled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantShare {
    /// Its part of the service, relative to others; at least 1.
    pub weight: u32,
    /// 0 bulk, 1 standard, 2 gold.
    pub tier: u32,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    share: TenantShare,
    /// Tokens, decayed, with [`FRACTION_BITS`].
    served: u64,
    running: u32,
    waiting: u32,
}

/// Counters of all tenants, in the order of the configuration.
#[derive(Debug)]
pub struct TenantLedger {
    accounts: Vec<Account>,
    /// 0: no decay.
    half_life_us: u64,
    decayed_to_us: u64,
}

impl TenantLedger {
    /// One share per tenant; `TenantId` is the index. Service counts half after `half_life_us`; 0 keeps it for ever.
    pub fn new(shares: &[TenantShare], half_life_us: u64) -> Self {
        let account = |&share| Account { share, served: 0, running: 0, waiting: 0 };
        Self { accounts: shares.iter().map(account).collect(), half_life_us, decayed_to_us: 0 }
    }

    /// Books a dispatched step's tokens. Rows of tenants that the ledger does not know are not booked.
    pub fn charge(&mut self, plan: &StepPlan) {
        for row in &plan.rows {
            if let Some(account) = self.accounts.get_mut(row.tenant.0 as usize) {
                account.served = account.served.saturating_add(u64::from(row.billed_tokens) << FRACTION_BITS);
            }
        }
    }

    /// Lets service fade up to `now_us`. Time that goes back changes nothing.
    pub fn advance(&mut self, now_us: u64) {
        let period = (self.half_life_us / SIXTEENTHS).max(1);
        let elapsed = now_us.saturating_sub(self.decayed_to_us);
        if self.half_life_us == 0 || elapsed < period {
            return;
        }
        let periods = elapsed / period;
        self.decayed_to_us += periods * period;
        for account in &mut self.accounts {
            for _ in 0..periods.min(MAX_DECAYS) {
                // Never above the u64 that it was.
                account.served = ((u128::from(account.served) * DECAY_SIXTEENTH) >> 16) as u64;
            }
        }
    }

    /// Forgets who runs and waits; each scheduler's `count_into` then adds its own.
    pub fn begin_counts(&mut self) {
        for account in &mut self.accounts {
            (account.running, account.waiting) = (0, 0);
        }
    }

    pub(crate) fn count_running(&mut self, tenant: TenantId) {
        if let Some(account) = self.accounts.get_mut(tenant.0 as usize) {
            account.running = account.running.saturating_add(1);
        }
    }

    pub(crate) fn count_waiting(&mut self, tenant: TenantId) {
        if let Some(account) = self.accounts.get_mut(tenant.0 as usize) {
            account.waiting = account.waiting.saturating_add(1);
        }
    }

    /// Decayed prompt and output tokens; 0 for a tenant that the ledger does not know.
    pub fn served(&self, tenant: TenantId) -> u64 {
        self.accounts.get(tenant.0 as usize).map_or(0, |account| account.served >> FRACTION_BITS)
    }

    /// (running, waiting) sequences as counted last.
    pub fn load(&self, tenant: TenantId) -> (u32, u32) {
        self.accounts.get(tenant.0 as usize).map_or((0, 0), |account| (account.running, account.waiting))
    }

    /// One row per tenant, for every policy.
    pub fn table(&self) -> Table {
        let column = |fact: fn(&Account) -> u32| self.accounts.iter().map(fact).collect::<Vec<u32>>();
        Table::new(self.accounts.len())
            .with(kind::WEIGHT, column(|account| account.share.weight))
            // The low 32 bits, as the kind says.
            .with(kind::TOKENS_SERVED, column(|account| (account.served >> FRACTION_BITS) as u32))
            .with(kind::TENANT_RUNNING, column(|account| account.running))
            .with(kind::TENANT_WAITING, column(|account| account.waiting))
            .with(kind::TIER, column(|account| account.share.tier))
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::{SeqId, Stage};

    use super::*;
    use crate::PlanRow;

    fn ledger(half_life_us: u64) -> TenantLedger {
        TenantLedger::new(&[TenantShare { weight: 1, tier: 1 }, TenantShare { weight: 4, tier: 2 }], half_life_us)
    }

    fn step(tenant: u32, billed_tokens: u32) -> StepPlan {
        let row = PlanRow {
            seq: SeqId(1),
            epoch: 1,
            tenant: TenantId(tenant),
            start: 0,
            tokens: vec![0],
            sample: true,
            table: Vec::new(),
            billed_tokens,
        };
        StepPlan { step: 1, stage: Stage::Decode, rows: vec![row], changes: Vec::new(), draft: 1 }
    }

    #[test]
    fn service_halves_in_a_half_life_however_often_time_is_told() {
        for steps in [1, 7, 100] {
            let mut ledger = ledger(1_000_000);
            ledger.charge(&step(1, 10_000));
            ledger.charge(&step(9, 5));
            (1..=steps).for_each(|part| ledger.advance(1_000_000 * part / steps));
            assert!((4_990..=5_010).contains(&ledger.served(TenantId(1))), "{}", ledger.served(TenantId(1)));
            assert_eq!(ledger.served(TenantId(0)), 0);
            ledger.advance(u64::MAX);
            assert_eq!(ledger.served(TenantId(1)), 0);
        }
    }

    #[test]
    fn without_a_half_life_nothing_fades() {
        let mut ledger = ledger(0);
        ledger.charge(&step(0, 3));
        ledger.advance(u64::MAX);
        assert_eq!(ledger.table().column(kind::TOKENS_SERVED), Some(&[3, 0][..]));
        assert_eq!(ledger.table().column(kind::WEIGHT), Some(&[1, 4][..]));
        assert_eq!(ledger.table().column(kind::TIER), Some(&[1, 2][..]));
    }
}
