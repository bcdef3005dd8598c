//! What an engine is built from. Plain data plus the models and backends that the node made; knows no TOML.

use std::sync::Arc;

use millrace_core::{Clock, KvFormat, PoolId, Precision, SeqId, Stage, StagePrecision};
use millrace_kv::PrefixOptions;
use millrace_model::Architecture;
use millrace_ops::Backend;
use millrace_policy::ScheduleSlot;
use millrace_scheduler::{StageLimits, TenantShare};
use millrace_transfer::Incarnation;
use millrace_transfer::tcp::Port;

use crate::EventSink;

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

/// A lane of which this process has one pool.
pub struct StageLane {
    pub name: String,
    pub pool: PoolId,
    pub precision: Precision,
    /// Sequences that may wait for this lane, where this is its prefill pool.
    pub max_waiting: usize,
    /// This process's end of the connection to the other pool's.
    pub incarnation: Incarnation,
    pub port: Port,
    /// Of the model that is served.
    pub model: String,
    /// Format of the pages on the wire, where this is the prefill pool.
    pub wire: KvFormat,
}

/// Where the events of a sequence go that came from another process.
pub type SinkOf = dyn Fn(SeqId, &[u32]) -> Box<dyn EventSink> + Send;

/// One stage's engine as a process of its own: pools of one stage, and lanes whose other pools are in other processes.
pub struct StageSpec {
    /// All of one stage.
    pub pools: Vec<PoolSpec>,
    pub lanes: Vec<StageLane>,
    pub tenants: Vec<TenantShare>,
    pub schedule: Arc<ScheduleSlot>,
    pub clock: Arc<dyn Clock>,
    /// Random per process: part of every page tag.
    pub boot_nonce: u16,
    /// Of a decode stage: called on the driver's thread with each sequence that comes and the output tokens that it brings.
    pub sinks: Box<SinkOf>,
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
