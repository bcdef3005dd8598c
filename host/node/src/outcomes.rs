//! What became of requests, told to the policies that decided about them: gathered in a queue, given in batches on a thread of its own.
//! Nobody who serves a request waits for any of it.
//!
//! ```text
//!   end of a request --(1,024, never waited for)--> thread: up to 64, or 100 ms after the first --> each slot that hears, its own rows
//!                         | full: dropped, counted
//! ```
//! It does not know what policies do with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use millrace_core::{Clock, TenantId};
use millrace_policy::{Table, kind};

use crate::metrics::Outcome;
use crate::policies::Slots;

/// Rows of one call.
const MAX_ROWS: usize = 64;
/// Ends that wait to be told.
const QUEUE: usize = 1_024;
/// Between two calls of a policy.
const PAUSE: Duration = Duration::from_millis(100);

/// What is known of a request when it is placed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) tenant: TenantId,
    pub(crate) priority: i32,
    /// Row of the lanes.
    pub(crate) lane: u32,
    /// As the lanes number precisions.
    pub(crate) precision: u32,
    pub(crate) prompt_tokens: u32,
    pub(crate) max_output_tokens: u32,
    pub(crate) by: Deciders,
}

/// Whose decisions it was served by: generation and reason; none where the native fallback answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deciders {
    pub(crate) precision: Option<(u64, u32)>,
    pub(crate) route: Option<(u64, u32)>,
    /// In force when it was placed.
    pub(crate) schedule: u64,
}

/// A request that is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) told: Told,
    pub(crate) outcome: Outcome,
    pub(crate) cached_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) queued: Option<Duration>,
    pub(crate) first_token: Option<Duration>,
    pub(crate) total: Duration,
}

/// Where ends are handed in. Cheap to clone; the thread ends with the last of them.
#[derive(Debug, Clone)]
pub(crate) struct Outcomes {
    queue: SyncSender<Ended>,
    dropped: Arc<AtomicU64>,
}

impl Outcomes {
    /// # Errors
    /// The machine gives no thread.
    pub(crate) fn start(slots: Slots, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let (queue, ends) = sync_channel(QUEUE);
        thread::Builder::new().name("policy-outcomes".into()).spawn(move || run(&ends, &slots, &*clock))?;
        Ok(Self { queue, dropped: Arc::default() })
    }

    /// Never waits.
    pub(crate) fn ended(&self, ended: Ended) {
        if self.queue.try_send(ended).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends that nobody was told of, because too many waited.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn run(ends: &Receiver<Ended>, slots: &Slots, clock: &dyn Clock) {
    while let Ok(first) = ends.recv() {
        let batch = gather(first, ends);
        tell(slots, clock.now_us(), &batch);
    }
}

/// What came by the end of the pause, or as many as one call takes; then the rest of the pause, so that calls stay rare.
fn gather(first: Ended, ends: &Receiver<Ended>) -> Vec<Ended> {
    let mut batch = vec![first];
    let until = Instant::now() + PAUSE;
    while batch.len() < MAX_ROWS {
        match ends.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(ended) => batch.push(ended),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return batch,
        }
    }
    thread::sleep(until.saturating_duration_since(Instant::now()));
    batch
}

/// How it went is the slots' to count.
fn tell(slots: &Slots, now_us: u64, batch: &[Ended]) {
    let own = |generation: u64, by: &dyn Fn(&Deciders) -> Option<(u64, u32)>| {
        let row = |ended: &Ended| by(&ended.told.by).filter(|(of, _)| *of == generation).map(|(_, reason)| (*ended, reason));
        Some(batch.iter().filter_map(row).collect::<Vec<_>>()).filter(|rows| !rows.is_empty())
    };
    if let Some(generation) = slots.precision.hears()
        && let Some(rows) = own(generation, &|by| by.precision)
    {
        slots.precision.observe(now_us, generation, &table(&rows));
    }
    if let Some(generation) = slots.route.hears()
        && let Some(rows) = own(generation, &|by| by.route)
    {
        slots.route.observe(now_us, generation, &table(&rows));
    }
    if let Some(generation) = slots.schedule.hears()
        // A plan's reason is no request's.
        && let Some(rows) = own(generation, &|by| Some((by.schedule, u32::MAX)))
    {
        slots.schedule.observe(now_us, generation, &table(&rows));
    }
}

fn table(rows: &[(Ended, u32)]) -> Table {
    let column = |fact: fn(&Ended) -> u32| rows.iter().map(|(ended, _)| fact(ended)).collect::<Vec<u32>>();
    let reasons: Vec<u32> = rows.iter().map(|(_, reason)| *reason).collect();
    Table::new(rows.len())
        .with(kind::TENANT, column(|ended| ended.told.tenant.0))
        // The bits of the i32; the kind says so.
        .with(kind::PRIORITY, column(|ended| ended.told.priority.cast_unsigned()))
        .with(kind::PROMPT_TOKENS, column(|ended| ended.told.prompt_tokens))
        .with(kind::CACHED_TOKENS, column(|ended| ended.cached_tokens))
        .with(kind::OUTPUT_TOKENS, column(|ended| ended.output_tokens))
        .with(kind::MAX_OUTPUT_TOKENS, column(|ended| ended.told.max_output_tokens))
        .with(kind::OUTCOME, column(|ended| number(ended.outcome)))
        .with(kind::OUTCOME_LANE, column(|ended| ended.told.lane))
        .with(kind::OUTCOME_PRECISION, column(|ended| ended.told.precision))
        .with(kind::OUTCOME_QUEUED_US, column(|ended| ended.queued.map_or(u32::MAX, us)))
        .with(kind::OUTCOME_TTFT_US, column(|ended| ended.first_token.map_or(u32::MAX, us)))
        .with(kind::OUTCOME_TOTAL_US, column(|ended| us(ended.total)))
        .with(kind::OUTCOME_REASON, reasons)
}

/// As `wit/column-kinds.wit` numbers them.
fn number(outcome: Outcome) -> u32 {
    match outcome {
        Outcome::Stop => 0,
        Outcome::Length => 1,
        Outcome::Abort => 2,
        Outcome::Error => 3,
    }
}

/// `u32::MAX` means absent, so it is never a value.
fn us(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX).min(u32::MAX - 1)
}

#[cfg(test)]
mod tests;
