//! What a bench engine is made of: its pools and lanes, and what they cost. Knows no test.

use std::sync::Arc;

use millrace_core::{PoolId, Stage};
use millrace_engine::{LaneSpec, PoolSpec, TagChecks};
use millrace_kv::PrefixOptions;
use millrace_model::Architecture;
use millrace_ops::Backend;
use millrace_policy::{BreakerSettings, FairSchedule, PolicyInfo, ScheduleSlot};
use millrace_scheduler::StageLimits;

use super::super::room::{Cost, PAGE_TOKENS, Room};
use super::{LaneOptions, PREFILL, Prompts, decode_pool};

/// What all pools are made of.
pub(in super::super) struct Parts<'a> {
    pub(in super::super) options: &'a LaneOptions,
    pub(in super::super) room: Room,
    pub(in super::super) backend: &'a Arc<dyn Backend>,
    pub(in super::super) digest: &'a str,
    /// Of prefill and of decode.
    pub(in super::super) models: &'a [Arc<dyn Architecture>; 2],
}

impl Parts<'_> {
    /// The prefill pool, then a decode pool for each entry of the options' tags.
    pub(super) fn pools(&self) -> Vec<PoolSpec> {
        let tags = &self.options.tags;
        let first = tags.first().copied().unwrap_or(TagChecks::Off);
        let decode = tags.iter().map(|&tags| self.pool(Stage::Decode, tags));
        std::iter::once(self.pool(Stage::Prefill, first)).chain(decode).collect()
    }

    /// One for each decode pool.
    pub(super) fn lanes(&self) -> Vec<LaneSpec> {
        let lane = |lane: usize| LaneSpec {
            name: format!("bench-{lane}"),
            prefill: PREFILL,
            decode: decode_pool(lane),
            precision: self.options.precision,
            max_waiting: self.room.streams as usize + 1,
        };
        (0..self.options.tags.len()).map(lane).collect()
    }

    pub(in super::super) fn pool(&self, stage: Stage, tag_checks: TagChecks) -> PoolSpec {
        let (options, streams) = (self.options, self.room.streams);
        let (precision, pages, max_step_tokens, model) = match stage {
            Stage::Prefill => (options.precision.prefill, self.room.prefill_pages, options.wanted.chunk as u32, &self.models[0]),
            Stage::Decode => (options.precision.decode, self.room.decode_pages, streams, &self.models[1]),
        };
        let keeps = stage == Stage::Prefill && options.prompts == Prompts::Kept;
        PoolSpec {
            name: stage.to_string(),
            stage,
            precision,
            model: model.clone(),
            backend: self.backend.clone(),
            kv: precision.kv,
            pages,
            page_tokens: PAGE_TOKENS as u32,
            limits: StageLimits {
                max_step_tokens,
                // The chunk is what is measured.
                max_step_us: None,
                max_sequences: streams,
                max_resident: streams,
                max_waiting: streams + 1,
                max_context: model.max_tokens() as u32,
                watermark_pages: 0,
                max_preemptions: 3,
                // A stream that the schedule does not see would be in no step.
                max_view_rows: streams.max(1024),
                step_us_hint: 5_000,
            },
            zero_freed: millrace_kv::ZeroFreed::Keep,
            tag_checks,
            prefixes: keeps.then_some(PrefixOptions { owner_pages: u32::MAX }),
            weights_digest: self.digest.to_owned(),
        }
    }
}

/// Row of the lane's decode pool.
pub(super) fn row(pool: PoolId) -> usize {
    pool.0 as usize
}

/// The host's own order, so that the numbers are the engine's.
pub(in super::super) fn native_schedule() -> ScheduleSlot {
    ScheduleSlot::new(Box::new(FairSchedule), PolicyInfo::native("fair"), BreakerSettings::default())
}

/// Pages and logits: what grows with the streams.
pub(super) fn cost(pools: &[PoolSpec], room: Room) -> Cost {
    let page_bytes = |pool: &PoolSpec| pool.model.kv_layout(pool.kv, PAGE_TOKENS).page_bytes() as u64;
    let pages_bytes = pools.iter().map(|pool| u64::from(pool.pages).saturating_mul(page_bytes(pool))).sum();
    let logits = |pool: &PoolSpec| u64::from(room.streams).saturating_mul(4 * pool.model.vocab() as u64);
    Cost { pages_bytes, logits_bytes: pools.iter().map(logits).sum() }
}
