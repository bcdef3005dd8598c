//! What an engine is built from. Plain data plus the models and backends that the node made; knows no TOML.

use std::sync::Arc;

use millrace_core::{Clock, KvFormat, PoolId, Precision, Stage, StagePrecision};
use millrace_kv::PrefixOptions;
use millrace_model::Architecture;
use millrace_ops::Backend;
use millrace_policy::ScheduleSlot;
use millrace_scheduler::{StageLimits, TenantShare};

/// Whether decode checks page tags before and after each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagChecks {
    On,
    Off,
}

/// One stage's engine: a page pool with a recipe on a device.
pub struct PoolSpec {
    pub name: String,
    pub stage: Stage,
    pub precision: StagePrecision,
    pub model: Arc<dyn Architecture>,
    pub backend: Arc<dyn Backend>,
    pub kv: KvFormat,
    pub pages: u32,
    pub page_tokens: u32,
    pub limits: StageLimits,
    pub zero_freed: millrace_kv::ZeroFreed,
    pub tag_checks: TagChecks,
    /// Keeps the pages of prompts for others that begin alike; of prefill pools only, ignored in others. `None`: no page
    /// outlives its sequence.
    pub prefixes: Option<PrefixOptions>,
    /// Identifies the weights; compared in a hand-off.
    pub weights_digest: String,
}

/// A prefill pool and a decode pool between which the hand-off is allowed.
pub struct LaneSpec {
    pub name: String,
    pub prefill: PoolId,
    pub decode: PoolId,
    pub precision: Precision,
    /// Sequences that may wait for this lane.
    pub max_waiting: usize,
}

/// Everything.
pub struct EngineSpec {
    pub pools: Vec<PoolSpec>,
    pub lanes: Vec<LaneSpec>,
    pub tenants: Vec<TenantShare>,
    pub schedule: Arc<ScheduleSlot>,
    pub clock: Arc<dyn Clock>,
    /// Random per process: part of every page tag.
    pub boot_nonce: u16,
}
