//! Made-up facts of any size, with every column that a host may have, and a clock. Knows no policy.

use std::ops::RangeInclusive;
use std::time::Instant;

use millrace_core::{Clock, LaneId, RequestId, SeqId, Stage, TenantId};
use millrace_policy::{Ask, Budget, RouteRequest, Table, format, kind};
use millrace_scheduler::{Entry, RowFacts, RowState, TenantLedger, TenantShare, rows_table};

/// Tenants that the facts have.
pub(super) const TENANTS: usize = 8;

/// Microseconds since it was made.
pub(super) struct Monotonic(Instant);

impl Monotonic {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Sequences in decode, their facts spread so that sorting has something to do, as a scheduler keeps them. The view of them is made
/// anew for every question, as it is in an engine.
pub(super) struct Sequences {
    entries: Vec<Entry>,
    ledger: TenantLedger,
}

impl Sequences {
    pub(super) fn new(count: usize) -> Self {
        let shares: Vec<TenantShare> = (0..TENANTS as u32).map(|row| TenantShare { weight: row + 1, tier: row % 3 }).collect();
        let rows = u32::try_from(count).unwrap_or(u32::MAX);
        Self { entries: (0..rows).map(entry).collect(), ledger: TenantLedger::new(&shares, 0) }
    }

    pub(super) fn view(&self) -> Table {
        rows_table(NOW_US, &self.entries.iter().map(running).collect::<Vec<_>>())
    }

    pub(super) fn tenants(&self) -> Table {
        self.ledger.table()
    }
}

fn running(entry: &Entry) -> RowFacts<'_> {
    let row = u32::try_from(entry.seq.0).unwrap_or(u32::MAX);
    let computed_tokens = scattered(row);
    RowFacts {
        entry,
        state: RowState::Running,
        computed_tokens,
        cached_tokens: None,
        output_tokens: computed_tokens % 512,
        pages_held: computed_tokens / 64 + 1,
        pages_for_next_step: row % 2,
    }
}

const NOW_US: u64 = 1_000_000;

fn entry(row: u32) -> Entry {
    Entry {
        seq: SeqId(u64::from(row)),
        request: RequestId(u64::from(row)),
        tenant: TenantId(row % TENANTS as u32),
        lane: LaneId(0),
        priority: i32::try_from(row % 3).unwrap_or(0),
        arrival_us: NOW_US - u64::from(scattered(row)),
        deadline_us: Some(NOW_US + u64::from(scattered(row))),
        prompt: vec![0; 64].into(),
        max_output: 512,
        stop_tokens: Vec::new().into(),
        replay: Vec::new(),
        preemptions: 0,
        scope: None,
    }
}

/// Lanes that all take requests.
pub(super) fn lanes(count: usize) -> Table {
    table(count, kind::LANE_WAITING..=kind::LANE_STEP_US, |kind, row| match kind {
        kind::HEALTHY | kind::ELIGIBLE => 1,
        kind::LANE_PRECISION => 0,
        kind::KV_USED_PER_MILLE => scattered(row) % 1_000,
        _ => scattered(row),
    })
}

pub(super) fn precisions(count: usize) -> Table {
    table(count, kind::PREFILL_WEIGHT_BITS..=kind::PREFILL_KV_FORMAT, |kind, row| match kind {
        kind::PREFILL_WEIGHT_BITS | kind::DECODE_WEIGHT_BITS | kind::KV_BITS => [16, 8, 4][row as usize % 3],
        kind::RELATIVE_COST_PER_MILLE | kind::PRECISION_KV_USED_PER_MILLE => scattered(row) % 1_000 + 1,
        kind::LANES_READY => 1,
        kind::PREFILL_WEIGHT_FORMAT..=kind::PREFILL_KV_FORMAT => [format::BF16, format::FP8_E4M3, format::INT4][row as usize % 3],
        _ => scattered(row),
    })
}

pub(super) fn tenants() -> Table {
    table(TENANTS, kind::WEIGHT..=kind::TIER, |kind, row| match kind {
        kind::WEIGHT => row + 1,
        kind::TIER => row % 3,
        kind::PAGE_QUOTA => u32::MAX,
        _ => scattered(row),
    })
}

pub(super) fn budget(count: usize, step: u64) -> Budget {
    let bound = u32::try_from(count).unwrap_or(u32::MAX);
    Budget {
        stage: Stage::Decode,
        step,
        tokens: bound,
        sequences: bound,
        free_pages: 100,
        total_pages: 1_000,
        page_tokens: 64,
        step_us: 5_000,
        answer_within_us: None,
    }
}

pub(super) fn request(number: u32) -> RouteRequest {
    RouteRequest {
        tenant: TenantId(number % TENANTS as u32),
        model: "model".to_owned(),
        session: Some(u64::from(number % 64)),
        prompt_tokens: scattered(number) % 4_096 + 1,
        max_output_tokens: 128,
        priority: 0,
        slack_us: None,
        streaming: true,
        attributes: Vec::new(),
    }
}

pub(super) fn ask(number: u32) -> Ask {
    let RouteRequest { tenant, model, prompt_tokens, max_output_tokens, priority, streaming, attributes, .. } = request(number);
    Ask { tenant, model, prompt_tokens, max_output_tokens, priority, streaming, attributes }
}

fn table(count: usize, kinds: RangeInclusive<u32>, value: impl Fn(u32, u32) -> u32) -> Table {
    kinds.fold(Table::new(count), |table, kind| {
        let rows = table.rows;
        table.with(kind, (0..rows).map(|row| value(kind, row)).collect())
    })
}

fn scattered(row: u32) -> u32 {
    row.wrapping_mul(7_919) % 100_000 + 1
}
